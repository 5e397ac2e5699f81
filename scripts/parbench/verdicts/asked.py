"""The claims that the studies of a plan are asked, as cells that are done tell of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from parbench.measure import metrics_json
from parbench.plan import expansion, places, published
from parbench.verdicts import claims
from parbench.verdicts.comparisons import Rebuilt
from parbench.verdicts.groups import groups_of
from parbench.verdicts.incomplete import cut
from parbench.verdicts.published import PublishedSource


def judged(
    plan: expansion.Plan, studies: Collection[str], done: Collection[str] = ()
) -> list[claims.Judged]:
    """Those of ``studies``, by name, together; ``done``: the cells that count."""
    rebuilt = [_rebuilt(name, plan, done) for name in studies]
    return claims.judge(published.claims(places.CLAIMS), rebuilt, [])


def _rebuilt(name: str, plan: expansion.Plan, done: Collection[str]) -> Rebuilt:
    whole = cut(plan.studies[name].stated(), done, _none_yet)
    runs = {cell: metrics_json.read(places.folder(cell) / "metrics.json") for cell in done}
    groups = tuple(groups_of(whole, runs).values())
    about = whole["study"]
    source = PublishedSource.read(about["published"], places.published_files())
    return Rebuilt(name, about["tolerance"], source, groups, {}, about.get("claims", ()))


def _none_yet(group: Mapping, left: list[str]) -> dict:
    """What the plan says of a group of which no cell is done."""
    return {"cells": []}
