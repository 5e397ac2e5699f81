"""Cut a plan down to the cells that are done, for a report on these."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

# Returns a plan's entries on a group's missing cells; ``not_run`` counts only if none is done.
Lost = Callable[[Mapping, list[str]], dict[str, Any]]


def cut(plan: Mapping, done: Collection[str], lost: Lost) -> dict:
    """Return ``plan`` with only the cells that are ``done``.

    ``lost`` is called with a group, or a pair, and its cells that are not done. Several models
    together count as not run if one of them was not run, or no seed has them all.
    """
    groups = {group["id"]: _cut(group, done, lost) for group in plan["groups"]}
    together = []
    for group in plan["together"]:
        members = [groups[name] for name in group["members"]]
        common_seeds = set.intersection(*(set(entry["seeds"]) for entry in members))
        reasons = [entry["not_run"] for entry in members if entry["not_run"]]
        reasons += [] if common_seeds else ["no seed of which all models are done"]
        seeds = [seed for seed in group["seeds"] if seed in common_seeds] or group["seeds"]
        changes = {"seeds": seeds, "not_run": next(iter(reasons), None)}
        together.append(_cut(group, done, lost) | changes)
    reduced = {**plan, "groups": list(groups.values()), "together": together}
    if "pairs" in plan:
        reduced["pairs"] = [_cut(entry, done, lost, "restarts") for entry in plan["pairs"]]
    return reduced


def _cut(group: Mapping, done: Collection[str], lost: Lost, key: str = "seeds") -> dict:
    missing = [cell for cell in group["cells"] if cell not in done]
    if group["not_run"] is not None or not missing:
        return dict(group)
    entry = {**group, **lost(group, missing)}
    cells = [cell for cell in group["cells"] if cell in done]
    if not cells:
        return entry
    numbers = [n for n, cell in zip(group[key], group["cells"], strict=False) if cell in done]
    return entry | {"cells": cells, key: numbers, "not_run": None}
