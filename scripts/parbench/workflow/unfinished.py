"""Make the report of a run that ends without all of its cells: reports/unfinished.html.

A study's report needs all of its cells, so a failed cell, or a time limit, prevents it. This is the
same report for the cells that are done; it also shows why others failed, with the ends of their
logs.
"""

from __future__ import annotations

import functools
import shlex
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from parbench.equivalence import certificate
from parbench.errors import ParbenchError
from parbench.files import read_record, write_json
from parbench.plan import places, state
from parbench.plan.expansion import Plan
from parbench.plan.study_plan import FailedCell, PairGroup, PlannedGroup
from parbench.printable import printable
from parbench.variables import PROGRAM
from parbench.verdicts.incomplete import cut

if TYPE_CHECKING:
    from parbench.launch.outcome import FailureJson
from parbench.words import count

REPORT = Path("reports/unfinished.html")
SHOWN = 10  # number of cells named on the terminal
CELLS = places.RESULTS / "cells"
FOLDER = places.RESULTS / "unfinished"  # its plans, tables and report.json
DATA = FOLDER / "report.json"


def print_failures(plan: Plan, failed: Collection[str], inside: str = "") -> None:
    """Name the ``failed`` cells on the terminal, and make the report.

    ``inside``: the command prefix for programs that make tables and report.
    """
    runnable = len(plan.cells) - len(plan.not_run)
    print(f"{len(failed)} of {count(runnable, 'cell')} failed:", file=sys.stderr)
    for cell in sorted(failed)[:SHOWN]:
        failure = _failure(cell)
        sentence = printable(failure.sentence).partition("\n")[0]
        print(f"  {cell}: {sentence}", file=sys.stderr)
        print(f"    log: {failure.log}", file=sys.stderr)
    write(plan, failed, inside, "All of them, beside what is done")


def write(plan: Plan, failed: Collection[str], inside: str, what: str) -> None:
    """Write the report and print its path after ``what``, its content; print why if that fails."""
    try:
        _write(plan, failed, inside)
    except (ParbenchError, OSError) as error:  # a full disk
        print(f"error: {error}", file=sys.stderr)
    else:
        print(f"{what}: {REPORT}", file=sys.stderr)


def _write(plan: Plan, failed: Collection[str], inside: str) -> None:
    parbench = [*shlex.split(inside), "python", PROGRAM]
    plans: list[Path] = []
    tables: list[Path] = []
    shared_options: list[str | Path] = ["--cells", CELLS]
    shared_options += ["--certificate", *sorted(certificate.FOLDER.glob("*.json"))]
    for name, study in plan.studies.items():
        done_cells = {cell for cell in plan.runnable(name) if state.state(cell, plan)[0] == "done"}
        plans.append(FOLDER / "plan" / f"{name}.json")
        tables.append(FOLDER / "tables" / f"{name}.csv")
        shown = cut(study, done_cells, functools.partial(_not_done, failed))
        write_json(plans[-1], shown.stated())
        options = ["--published", *places.published_files(), "--out", tables[-1]]
        _run(*parbench, "tables", "--plan", plans[-1], *shared_options, *options)
    options = ["--unfinished", "--plan", *plans, "--table", *tables, *shared_options, "--out", DATA]
    options += ["--claims", *places.claims_files(), "--published", *places.published_files()]
    _run(*parbench, "collect", *options)
    _run(*parbench, "render", "html", "--data", DATA, "--out", REPORT)


def _run(*command: str | Path) -> None:
    process = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if process.returncode != 0:
        last_line = (process.stderr.strip() or "no message").splitlines()[-1]
        raise ParbenchError(f"{REPORT} could not be made: {last_line}")


def _not_done(
    failed: Collection[str], group: PlannedGroup | PairGroup, remaining: list[str]
) -> dict[str, object]:
    """Return the plan's entries for the ``remaining`` cells of a group."""
    failures = [_failure(cell) for cell in remaining if cell in failed]
    reason = f"failed: {failures[0].sentence}" if failures else "not trained yet"
    return {"not_run": reason, "failed": failures, "waiting": len(remaining) - len(failures)}


def _failure(cell: str) -> FailedCell:
    """Return why a cell failed, for the report, from its launcher's failed.json if any."""
    folder = places.folder(cell)
    try:
        failure: FailureJson = read_record(folder / "failed.json", "sentence", "log")
    except ParbenchError:
        failure = {"sentence": "its job has not reported how it ended", "log": "", "lines": []}
    return FailedCell(
        cell=cell,
        sentence=failure["sentence"],
        lines=failure.get("lines", []),
        log=failure["log"] or str(folder / "log.txt"),
    )
