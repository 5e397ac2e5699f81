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
        shared = set.intersection(*(set(each["seeds"]) for each in members))
        reasons = [each["not_run"] for each in members if each["not_run"]]
        reasons += [] if shared else ["no seed of which all models are done"]
        kept = [seed for seed in group["seeds"] if seed in shared] or group["seeds"]
        own = {"seeds": kept, "not_run": next(iter(reasons), None)}
        together.append(_cut(group, done, lost) | own)
    whole = {**plan, "groups": list(groups.values()), "together": together}
    if "pairs" in plan:
        whole["pairs"] = [_cut(each, done, lost, "restarts") for each in plan["pairs"]]
    return whole


def _cut(group: Mapping, done: Collection[str], lost: Lost, key: str = "seeds") -> dict:
    left = [cell for cell in group["cells"] if cell not in done]
    if group["not_run"] is not None or not left:
        return dict(group)
    told = {**group, **lost(group, left)}
    kept = [cell for cell in group["cells"] if cell in done]
    if not kept:
        return told
    numbers = [n for n, cell in zip(group[key], group["cells"], strict=False) if cell in done]
    return told | {"cells": kept, key: numbers, "not_run": None}
