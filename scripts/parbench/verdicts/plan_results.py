"""Judge what a plan's studies test, by the cells that are done."""

from __future__ import annotations

from collections.abc import Collection

from parbench.audit import checks
from parbench.plan import consistency, expansion, places
from parbench.runs import records
from parbench.verdicts import claims
from parbench.verdicts.comparisons import ClaimBasis
from parbench.verdicts.groups import Runs, groups_of
from parbench.verdicts.incomplete import cut
from parbench.verdicts.matching import PublishedSource
from parbench.verdicts.tables import Measured


def measured(plan: expansion.Plan, name: str, done: Collection[str] = ()) -> Measured:
    """Return what the study ``name`` measured; ``done``: the finished cells to use, by default
    none."""
    # A group with none of these cells has no runs, and no reason is given.
    study_plan = cut(plan.studies[name], done, lambda group, left: {"cells": []})
    cells = [cell for cell in study_plan.runnable() if cell in done]
    runs = {cell: records.read(places.folder(cell) / "metrics.json") for cell in cells}
    where = places.shown(places.study(name))
    source = PublishedSource.read(study_plan.study.published, places.published_files(), where)
    return Measured(study_plan, groups_of(study_plan, Runs.of(runs)), source)


def judged(
    plan: expansion.Plan, studies: Collection[str], done: Collection[str] = ()
) -> list[claims.Judged]:
    """Return the claims of ``studies`` (names), judged together; ``done``: as for ``measured``."""
    basis: list[ClaimBasis] = []
    for name in studies:
        made = measured(plan, name, done)
        groups, study = tuple(made.groups.values()), made.plan.study
        basis.append(ClaimBasis(name, study, made.source, groups, {}))
    stated, rows = consistency.checked_claims()
    return claims.judge(stated, basis, checks.findings(rows, stated, checks.DatasetAssumptions()))
