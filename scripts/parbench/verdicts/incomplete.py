"""A plan of which only some cells are done, as a report of these shows it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

# What a plan says of a group's cells that are not done; ``not_run`` of it where none is.
Lost = Callable[[Mapping, list[str]], dict[str, Any]]


def cut(plan: Mapping, done: Collection[str], lost: Lost) -> dict:
    """``plan`` with the cells that are ``done`` alone.

    ``lost`` is called with a group, or a pair, and those of its cells that are not. Several models
    together were not run where one of them was not, or where no seed has them all.
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
