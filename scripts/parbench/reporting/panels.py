"""The details behind every number: each group's cells, with their environments."""

from __future__ import annotations

import math
from typing import TypedDict

from parbench.plan.study_plan import PairGroup
from parbench.printable import log_line
from parbench.reporting import certificates
from parbench.reporting.study_results import StudyResults
from parbench.reporting.table import TableCell, TableEntry, absent, make_table, number
from parbench.reporting.text import (
    date_time,
    decimals,
    deployment_text,
    fixed,
    hardware_text,
    heading,
    listed,
    machine_text,
    mapping_text,
    period,
    settings_pairs,
    status_text,
)
from parbench.runs.metrics import METRICS
from parbench.runs.parts import Environment
from parbench.runs.records import CellRun, PairRun
from parbench.verdicts.groups import Group
from parbench.verdicts.pairs import LEAST_PAIRS, Restart, restart
from parbench.words import count

LOG_LINES = 20  # the last lines shown of a failed cell's log
FACTS = (  # of a cell's environment, besides those shared with other cells
    "world_size",
    "backend",
    "cores",
    "git_commit",
    "git_dirty",
    "code_digest",
    "dataset_digest",
)
OF_CORES = (
    "threads of a core",
    "NUMA",
)  # of `steering`: they differ with the cores of a cell


class EnvironmentPanel(TypedDict):
    """An environment in report.json: its anchor, its name (E1), and pairs of name and value."""

    id: str
    name: str
    pairs: list[list[str]]


Environments = dict[str, EnvironmentPanel]  # by what each shows


# ---------------------------------------------------------------- environments


def environments(studies: list[StudyResults]) -> Environments:
    """Return the studies' distinct environments, named E1, E2, ... as they appear."""
    by_pairs: Environments = {}
    for study in studies:
        for run in study.runs.all.values():
            for environment in run.environments:
                pairs, name = _environment_pairs(environment), f"E{len(by_pairs) + 1}"
                by_pairs.setdefault(str(pairs), {"id": name.lower(), "name": name, "pairs": pairs})
    return by_pairs


def _named(run: CellRun | PairRun, known: Environments) -> TableCell:
    """Return the names of a run's environments; a pair may have several."""
    keys = dict.fromkeys(str(_environment_pairs(each)) for each in run.environments)
    found = [known[key] for key in keys]
    return TableCell(", ".join(each["name"] for each in found), link=found[0]["id"])


def _environment_pairs(environment: Environment) -> list[list[str]]:
    machine, digest = environment.machine, environment.image_digest
    packages = (f"{name} {version}" for name, version in sorted(environment.packages.items()))
    drivers = dict.fromkeys(card.driver for card in machine.accelerators if card.driver)
    steering = environment.steering.items()
    speed = (f"{name} {text}" for name, text in steering if name not in OF_CORES)
    software = f"{environment.stack}, in {deployment_text(environment.deployment)}"
    own = [["Differs from the lock", ", ".join(environment.lock_mismatch) or "no"]]
    if (python := environment.interpreter) is not None:
        build = (f"{name} {text}" for name, text in python.torch.items() if text)
        software = environment.stack
        own = [["Its program", python.path], ["Its torch", ", ".join(build)]]
        own += [["Its packages", f"sha256:{python.records}"]]
    pairs = [
        ["Machine", machine_text(machine)],
        ["System", ", ".join(filter(None, (machine.os, machine.kernel)))],
        ["Driver", ", ".join(drivers)],
        ["Speed", "; ".join(speed)],
        ["Stack", software],
        ["Image", environment.image or ""],
        ["Image digest", f"sha256:{digest}" if digest else ""],
        ["Python", environment.python],
        ["Packages", ", ".join(packages)],
        *own,
    ]
    return [pair for pair in pairs if pair[1]]


# ---------------------------------------------------------------- what is lacking


class UnfinishedEntry(TypedDict):
    """What an unfinished report lacks, in a sentence, and its failed cells (failed.json)."""

    sentence: str
    failed: list[dict[str, object]]


def unfinished(studies: list[StudyResults], stopped: bool = False) -> UnfinishedEntry | None:
    """Return what an unfinished report (workflow/unfinished.py) lacks: failed cells with the ends
    of their logs, and how many are not trained yet; for evidence, the cells that a file lacks. None
    for a complete report whose run was not ``stopped`` before its end."""
    trained = _parts([study for study in studies if study.evidence is None])
    failed = {failure.cell: failure for part in trained for failure in part.failed}
    waiting = sum(part.waiting for part in trained)
    parts = [f"{count(len(failed), 'cell')} failed"] if failed else []
    parts += [f"{count(waiting, 'cell')} not trained yet"] if waiting else []
    if stopped and not parts:
        parts = [
            "all cells are done, but the run stopped before its certificates and its report were"
        ]
    sentences = [f"This report is not finished: {listed(parts)}."] if parts else []
    missing = {
        study.evidence.file: sum(part.waiting for part in _parts([study]))
        for study in studies
        if study.evidence is not None
    }
    files = [f"{file} lacks {count(cells, 'cell')}" for file, cells in missing.items() if cells]
    sentences += [f"Partial evidence: {listed(files)} of its study."] if files else []
    if not sentences:
        return None
    failures: list[dict[str, object]] = [
        {**failure.stated(), "lines": [log_line(line) for line in failure.lines]}
        for failure in failed.values()
    ]
    return {"sentence": " ".join(sentences), "failed": failures}


def _parts(studies: list[StudyResults]) -> list[Group | PairGroup]:
    """Return the groups and pairs of the studies, each once."""
    parts = [part for study in studies for part in (*study.own, *study.pairs)]
    return list({part.id: part for part in parts}.values())


# ---------------------------------------------------------------- all cells


def cells_table(study: StudyResults, known: Environments) -> TableEntry:
    """Return the table of all cells of a study."""
    columns = [
        "Status",
        "Training time (s)",
        "Test accuracy",
        "Memory (MiB)",
        "Started (UTC)",
        "Environment",
        "Code",
    ]
    return make_table(
        f"t-{study.name}-cells",
        "Cells",
        [("", ["Cell"]), ("", columns)],
        [_cell_row(study, run, known) for run in study.runs.alone.values()],
        caption="Training time: by the cell's own clock, on a machine that it may have shared with "
        "other cells and programs. Ratios between variants come from sides in turns alone.",
        empty="No cell has run.",
    )


def _cell_row(study: StudyResults, run: CellRun, known: Environments) -> list[TableCell]:
    return [
        TableCell(run.cell.id, link=study.cell_panel(run.cell.id)),
        TableCell(status_text(run.status), tone="plain" if run.status == "ok" else "bad"),
        _number_cell(run.train_seconds, 2),
        _number_cell(run.test_accuracy, 4),
        _number_cell(_memory(run), 0),
        TableCell(date_time(run.started)),
        _named(run, known),
        TableCell(run.environment.code_digest[:8]),
    ]


def restarts_table(study: StudyResults, known: Environments) -> TableEntry | None:
    """Return the table of all restarts of a study's pairs; None without any."""
    if not study.runs.pairs:
        return None
    columns = [
        "Status",
        "Times as fast",
        "Pairs of slices",
        "Load of others (cores)",
        "Ran (UTC)",
        "Environment",
        "Commit",
        "Code",
    ]
    cell = next(iter(study.runs.pairs))
    of_cell = {
        cell: f"{pair.variant} with {pair.baseline}" for pair in study.pairs for cell in pair.cells
    }
    command = study.cell_command(cell)
    return make_table(
        f"t-{study.name}-restarts",
        "Restarts of pairs",
        [("", ["Restart", "Compares"]), ("", columns)],
        [_restart_row(run, of_cell[cell], known) for cell, run in study.runs.pairs.items()],
        caption="Every restart behind the ratios above. Disturbed pairs of slices are left out if "
        f"{LEAST_PAIRS} others remain. Load of others: how many of its cores other programs and "
        "the hypervisor kept busy, on average over all slices. To measure a restart again, use its "
        f"name: {command}",
    )


def _restart_row(run: PairRun, compares: str, known: Environments) -> list[TableCell]:
    is_ok, slices = run.status == "ok", run.slices
    status = status_text(run.status) + (f": {run.reason}" if run.reason else "")
    measured = restart(run) if is_ok else None
    spent = sum(each.seconds for each in slices)
    others = sum(each.others + each.steal for each in slices)
    return [
        TableCell(run.cell.id),
        TableCell(compares),
        TableCell(status, tone="plain" if is_ok else "bad"),
        _number_cell(measured and math.exp(measured.value), 3),
        absent("no ratio") if measured is None else _pairs_cell(measured),
        number(others / spent, fixed(others / spent, 3)) if spent else absent("no slice"),
        TableCell(period(run.started, run.finished)),
        _named(run, known),
        TableCell(run.environment.commit),
        TableCell(run.environment.code_digest[:8]),
    ]


def _pairs_cell(measured: Restart) -> TableCell:
    text = f"{measured.slice_pairs}, {measured.disturbed} disturbed"
    return TableCell(text + ", all counted" * measured.uses_disturbed, sort=measured.slice_pairs)


def _memory(run: CellRun) -> float | None:
    """Return the peak memory in MiB of a device, else of a process; None if unknown."""
    readings = (METRICS[f"peak_memory_{where}_mib"].value(run) for where in ("device", "process"))
    return next((value for value in readings if value is not None), None)


def _number_cell(value: float | None, places: int) -> TableCell:
    return absent("no number") if value is None else number(value, fixed(value, places))


# ---------------------------------------------------------------- groups and cells


class CellPanel(TypedDict):
    """Everything about one cell, formatted."""

    id: str
    anchor: str
    seed: str
    status: str
    tone: str
    command: str
    numbers: list[list[str]]
    facts: list[list[str]]
    environment: str
    folder: str
    log: list[str]


class GroupPanel(TypedDict):
    """The details of a group: its settings and cells."""

    id: str | None
    study: str
    title: str
    status: str
    group: str
    settings: list[list[str]]
    cells: list[CellPanel]


def group_panels(studies: list[StudyResults], known: Environments) -> list[GroupPanel]:
    """Return the details behind every number: its group's settings and cells."""
    return [
        {
            "id": study.panel(group),
            "study": study.name,
            "title": f"{group.model}, {group.variant}, {hardware_text(group.hardware)}",
            "status": group.short_status,
            "group": group.id,
            "settings": _settings(group),
            "cells": [_cell_panel(study, cell, known) for cell in group.cells],
        }
        for study in studies
        for group in study.own
        if not group.not_run
    ]


def _settings(group: Group) -> list[list[str]]:
    cell = group.runs[0].cell.json()
    sizes = {"train": group.dataset.train_samples, "test": group.dataset.test_samples}
    samples = (f"{part}: {'all' if size is None else size}" for part, size in sizes.items())
    return [
        *(
            [key, f"{cell[key]['name']}; options: {mapping_text(cell[key]['options'])}"]
            for key in ("model", "strategy")
        ),
        ["hardware", f"{group.hardware.name}: {hardware_text(group.hardware)}"],
        ["dataset", f"{group.dataset.name} ({', '.join(samples)})"],
        *settings_pairs(cell["training"]),
    ]


def _cell_panel(study: StudyResults, cell: str, known: Environments) -> CellPanel:
    """Return everything about one cell, formatted."""
    run = study.runs.alone[cell]
    status, reason = status_text(run.status), run.reason
    return {
        "id": cell,
        "anchor": study.cell_panel(cell),
        "seed": str(run.cell.seed),
        "status": f"{status}: {reason}" if reason else status,
        "tone": "good" if run.status == "ok" else "bad",
        "command": study.cell_command(cell),
        "numbers": _cell_numbers(run),
        "facts": [*_cell_facts(run), *certificates.fact(study.proofs, *run.trained)],
        "environment": _named(run, known).text,
        "folder": str(study.cells_folder / cell),
        "log": [] if run.status == "ok" else _end_of_log(study, cell),
    }


def _cell_numbers(run: CellRun) -> list[list[str]]:
    """Return name and value of every metric of one run."""
    numbers = []
    for metric in METRICS.values():
        value = metric.value(run) if metric.of == "one" else None
        if value is not None:
            unit = "" if metric.unit == "fraction" else metric.unit
            text = fixed(value, decimals([value], metric.unit))
            numbers.append([heading(metric.name, unit), text])
    if run.energy_joules is not None:
        numbers.append(["Energy (J)", fixed(run.energy_joules, 1)])
    return numbers


def _cell_facts(run: CellRun) -> list[list[str]]:
    facts = {key: getattr(run.environment, key) for key in FACTS}
    facts |= {key: text for key, text in run.environment.steering.items() if key in OF_CORES}
    facts |= {"started": f"{date_time(run.started)} UTC"}
    facts |= {"finished": f"{date_time(run.finished)} UTC"}
    places = [place.model_dump() for place in run.resumed_from or []]
    facts |= {"interrupted, continued from": places or "ran in one go"}
    facts |= {key: getattr(run, key) for key in ("steps_per_epoch", "warmup_steps")}
    return settings_pairs(facts)


def _end_of_log(study: StudyResults, cell: str) -> list[str]:
    path = study.cells_folder / cell / "log.txt"
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
    return [log_line(line) for line in text.rstrip().split("\n")[-LOG_LINES:]]
