"""The report's input: one study's plan, table and metrics, with look-ups by group."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from parbench.equivalence.certificate import Certificates
from parbench.plan.study import Table
from parbench.plan.study_plan import StudyPlan
from parbench.printable import printable
from parbench.reporting.text import anchor, convert, decimals, spread_text
from parbench.verdicts.groups import Group, groups_of, read_runs, runs_in
from parbench.verdicts.rows import Row, read_rows
from parbench.verdicts.tables import IN_TURNS

CELLS = Path("results/cells")
ELSEWHERE = "published on "  # begins a reason that is given only once
ONCE = (ELSEWHERE, "scaled: ", "not stated by the source")


class StudyResults:
    """One study's plan, table rows and metrics, checked against each other.

    ``study``: the plan's study; ``groups``: all groups; ``own``: groups with cells of their own;
    ``rows``: the table's rows, by (group, metric); ``runs``: the runs of its cells and of the
    restarts of its pairs; ``pairs``: the plan's pairs; ``proofs``: their certificates;
    ``evidence``: what the plan says about the file it was unpacked from (`parbench evidence`),
    which brings its own cells and certificates. Raises ParbenchError if something is missing or
    broken.
    """

    def __init__(
        self,
        plan_path: Path,
        table_path: Path,
        cells_folder: Path,
        proofs: Certificates | None = None,
    ):
        self.table_path, self.cells_folder, self.proofs = table_path, cells_folder, proofs
        plan = StudyPlan.read(plan_path, printable)
        self.evidence = plan.evidence
        if self.evidence is not None:
            results = plan_path.parent.parent
            self.cells_folder = results / "cells"
            self.proofs = Certificates(sorted((results / "certificates").glob("*.json")))
        self.study, self.stack, self.deployment = plan.study, plan.stack, plan.deployment
        self.arguments, self.name, self.tables = plan.arguments, plan.study.name, plan.study.tables
        self.has_source = plan.study.published is not None
        self.runs, self.pairs = read_runs(plan, self.cells_folder), plan.pairs
        self.by_id = groups_of(plan, self.runs, runs_in(self.cells_folder))
        # Groups of several models together follow those with cells of their own.
        self.groups = list(self.by_id.values())
        self.own = self.groups[: len(plan.groups)]
        rows = read_rows(table_path, f"rebuild it: {self.command(table_path)} --force")
        self.rows = {(row.group, row.metric): row for row in rows}

    # ---------------------------------------------------------------- files and anchors

    def command(self, path: Path) -> str:
        """Return the command that rebuilds a file of the study as it is configured."""
        return shlex.join(["snakemake", str(path), *self.arguments])

    def cell_command(self, cell: str) -> str:
        """Return the command that trains a cell again or, if from evidence, on this machine."""
        folder = self.cells_folder if self.evidence is None else CELLS
        return f"{self.command(folder / cell / 'metrics.json')} --force"

    def panel(self, group: Group) -> str | None:
        """Return the anchor of a group's details; None if not run."""
        identity = next(iter(group.members), group.id)
        return None if group.not_run else anchor("g", self.name, identity)

    def cell_panel(self, cell: str) -> str:
        """Return the anchor of a cell's details; two studies may have the same cell."""
        return anchor("c", self.name, cell)

    # ---------------------------------------------------------------- groups and rows

    def row(self, group: Group, metric: str) -> Row | None:
        """Return a group's row of a metric."""
        return self.rows.get((group.id, metric))

    def rows_of(self, metric: str) -> Iterator[Row]:
        """Return a metric's rows."""
        return (row for (_, name), row in self.rows.items() if name == metric)

    def table_groups(self, table: Table) -> list[Group]:
        """Return the groups of one of the paper's tables, by model, then in variant order."""
        models = list(dict.fromkeys(group.model for group in self.groups))
        groups = (g for g in self.groups if table.holds(g.model, g.variant, bool(g.members)))
        order = table.variants.index
        return sorted(groups, key=lambda group: (models.index(group.model), order(group.variant)))

    # ---------------------------------------------------------------- differences from the source

    def differences(self) -> list[str]:
        """Return how the study differs from its source, in sentences that no row repeats."""
        scaled = [set(group.scaled) for group in self.groups if group.scaled]
        shared = set.intersection(*scaled) if len(scaled) == len(self.groups) else set()
        shared_texts = dict.fromkeys(
            text for g in self.groups for text in g.scaled if text in shared
        )
        sentences = [f"scaled: {', '.join(shared_texts)}"] if shared_texts else []
        for model in dict.fromkeys(group.model for group in self.groups):
            groups = [group for group in self.groups if group.model == model]
            if texts := [text for text in self._of_model(groups) if text not in shared]:
                sentences.append(f"{model}: {', '.join(texts)}")
        reasons = [reason for row in self.rows.values() for reason in row.reason.split("; ")]
        assumed = [f"not stated, hence assumed: {', '.join(self.study.assumed)}"]
        sentences += assumed if self.study.assumed else []
        return sentences + sorted({reason for reason in reasons if reason.startswith(ELSEWHERE)})

    def own_scale(self, group: Group) -> str:
        """Return how a group is scaled, beyond what its model's groups share."""
        groups = [other for other in self.groups if other.model == group.model]
        texts = [text for text in group.scaled if text not in self._of_model(groups)]
        return f"scaled: {', '.join(texts)}" if texts else ""

    @staticmethod
    def _of_model(groups: list[Group]) -> list[str]:
        shared = set.intersection(*(set(group.scaled) for group in groups))
        return [text for text in groups[0].scaled if text in shared]

    # ---------------------------------------------------------------- numbers

    def unit(self, metric: str) -> str:
        """Return the unit to show a metric in, unless a table says otherwise."""
        for table in self.tables:
            if table.units and metric in table.units:
                return table.units[metric]
        return next((row.unit for row in self.rows_of(metric)), "")

    def places(self, metric: str, unit: str) -> int:
        """Return a metric's decimals in all tables, so that columns compare."""
        rows = [(row, row.mean) for row in self.rows_of(metric) if row.mean is not None]
        means = [convert(mean, row.unit, unit) for row, mean in rows]
        stds = [convert(row.std, row.unit, unit) for row, _ in rows if row.std is not None]
        return decimals(means, unit, stds)

    def reproduced(self, row: Row, unit: str) -> str:
        """Return ``12.00 ± 0.13 (3)``: mean and standard deviation, or range; count of seeds."""
        spread = spread_text(row, self.places(row.metric, unit), convert(1.0, row.unit, unit))
        return f"{spread} ({row.seeds})"

    # ---------------------------------------------------------------- speedups

    def has_no_pair(self, group: Group, metric: str) -> bool:
        """Return whether pairs measure the metric, but none has the group and its baseline."""
        of_pairs = metric in IN_TURNS and not group.not_run
        return of_pairs and group.baseline not in (None, *group.pairs)
