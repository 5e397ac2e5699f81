"""Judge the claims that a plan's studies test, by the cells that are done."""

from __future__ import annotations

from collections.abc import Collection

from parbench.measure import metrics_json
from parbench.plan import expansion, places, published
from parbench.verdicts import audit, claims
from parbench.verdicts.comparisons import Rebuilt
from parbench.verdicts.groups import groups_of
from parbench.verdicts.incomplete import cut
from parbench.verdicts.published import PublishedSource


def judged(
    plan: expansion.Plan, studies: Collection[str], done: Collection[str] = ()
) -> list[claims.Judged]:
    """Return the claims of ``studies`` (names), judged together; ``done``: the cells that count."""
    runs = {cell: metrics_json.read(places.folder(cell) / "metrics.json") for cell in done}
    rebuilt = []
    for name in studies:
        # A group with none of these cells has no runs, and no reason is given.
        study_plan = cut(plan.studies[name].stated(), done, lambda group, left: {"cells": []})
        groups, study = tuple(groups_of(study_plan, runs).values()), study_plan["study"]
        source = PublishedSource.read(study["published"], places.published_files())
        rebuilt.append(Rebuilt(name, study, source, groups, {}))
    stated = published.claims(places.CLAIMS)
    rows = [row for path in places.published_files() for row in published.rows(path)]
    return claims.judge(stated, rebuilt, audit.findings(rows, stated, audit.Granted()))
