"""Cut a plan down to the cells that are done, for a report on them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from parbench.plan.study_plan import PairGroup, PlannedGroup, StudyPlan

GroupKind = TypeVar("GroupKind", PlannedGroup, PairGroup)
# Returns what a plan says about a group's or a pair's missing cells; ``not_run`` counts only if
# none is done.
Lost = Callable[[PlannedGroup | PairGroup, list[str]], dict[str, object]]


def cut(plan: StudyPlan, done: Collection[str], lost: Lost) -> StudyPlan:
    """Return ``plan`` with only the cells that are ``done``.

    ``lost`` is called with a group, or a pair, and its cells that are not done, and returns the
    fields to change in that group. Several models
    together count as not run if one of them was not run, or no seed has them all.
    """
    groups = {group.id: _cut(group, done, lost) for group in plan.groups}
    together: list[PlannedGroup] = []
    for group in plan.together:
        members = [groups[name] for name in group.members]
        common_seeds = set(members[0].seeds).intersection(*(member.seeds for member in members))
        reasons = [member.not_run for member in members if member.not_run]
        reasons += [] if common_seeds else ["no seed for which all models are done"]
        seeds = [seed for seed in group.seeds if seed in common_seeds] or group.seeds
        changes = {"seeds": seeds, "not_run": next(iter(reasons), None)}
        together.append(_cut(group, done, lost).model_copy(update=changes))
    changes = {"groups": list(groups.values()), "together": together}
    changes |= {"pairs": [_cut(pair, done, lost) for pair in plan.pairs]} if plan.pairs else {}
    return plan.model_copy(update=changes)


def _cut(group: GroupKind, done: Collection[str], lost: Lost) -> GroupKind:
    missing = [cell for cell in group.cells if cell not in done]
    if group.not_run is not None or not missing:
        return group
    entry = group.model_copy(update=lost(group, missing))
    cells = [cell for cell in group.cells if cell in done]
    if not cells:
        return entry
    key = "seeds" if isinstance(group, PlannedGroup) else "restarts"
    numbers = zip(getattr(group, key), group.cells, strict=False)
    own = [number for number, cell in numbers if cell in done]
    return entry.model_copy(update={"cells": cells, key: own, "not_run": None})
