"""What stands behind every number: each group's cells, with their environments and histories."""

from __future__ import annotations

from collections.abc import Iterable

from parbench.files import canonical_json
from parbench.measure.metrics import METRICS, Run
from parbench.printable import log_line
from parbench.reporting import certificates
from parbench.reporting.study import Study
from parbench.reporting.table import Cell, absent, make_table, number, whole
from parbench.reporting.text import (
    ABSENT,
    count,
    decimals,
    deployment_text,
    fixed,
    hardware_text,
    heading,
    listed,
    machine_text,
    mapping_text,
    moment,
    settings_pairs,
    status_text,
)
from parbench.reporting.work import TOLD, work_pairs
from parbench.verdicts.groups import Group

LOG_LINES = 20  # of a cell that failed
CONFUSION_CLASSES = 20  # a larger matrix nobody reads

HISTORY = {  # what is shown of an epoch, and how
    "epoch": "d",
    "train_loss": ".4f",
    "test_loss": ".4f",
    "test_accuracy": ".4f",
    "learning_rate": ".3g",
    "seconds": ".2f",
    "elapsed_seconds": ".2f",
    "samples_per_second": ",.0f",
}

Environments = dict[str, dict]  # for the report, by what tells one from another


# ---------------------------------------------------------------- environments


def environments(studies: list[Study]) -> Environments:
    """The different environments of the studies' cells, named E1, E2, ... as they appear."""
    found: Environments = {}
    for study in studies:
        for run in study.runs.values():
            key = _environment_key(run)
            if key not in found:
                name = f"E{len(found) + 1}"
                pairs = _environment_pairs(run["environment"])
                found[key] = {"id": name.lower(), "name": name, "pairs": pairs}
    return found


def _environment_key(run: Run) -> str:
    keys = (
        "stack",
        "deployment",
        "image",
        "image_digest",
        "python",
        "packages",
        "lock_mismatch",
        "machine",
    )
    return canonical_json({key: run["environment"][key] for key in keys})


def _environment_pairs(environment: dict) -> list[list[str]]:
    machine = environment["machine"]
    packages = (f"{name} {version}" for name, version in sorted(environment["packages"].items()))
    cards = machine.get("accelerators") or []
    drivers = dict.fromkeys(card["driver"] for card in cards if card.get("driver"))
    digest = environment["image_digest"]
    pairs = [
        ["Machine", machine_text(machine)],
        ["System", ", ".join(filter(None, (machine.get("os"), machine.get("kernel"))))],
        ["Driver", ", ".join(drivers)],
        ["Stack", f"{environment['stack']}, in {deployment_text(environment['deployment'])}"],
        ["Image", environment["image"]],
        ["Image digest", f"sha256:{digest}" if digest else ""],
        ["Python", environment["python"]],
        ["Packages", ", ".join(packages)],
        ["Differs from the lock", ", ".join(environment["lock_mismatch"]) or "no"],
    ]
    return [pair for pair in pairs if pair[1]]


# ---------------------------------------------------------------- what is lacking


def unfinished(studies: list[Study]) -> dict | None:
    """What is lacking in a report of what is there (reporting/unfinished.py): cells that failed,
    with the ends of their logs, and how many are still to be trained. None for a whole report."""
    groups = {group.id: group for study in studies for group in study.own}.values()
    failed = {each["cell"]: each for group in groups for each in group.failed}
    waiting = sum(group.waiting for group in groups)
    if not failed and not waiting:
        return None
    said = [f"{count(len(failed), 'cell')} failed"] if failed else []
    said += [f"{count(waiting, 'cell')} not trained yet"] if waiting else []
    shown = [
        {**each, "lines": [log_line(line) for line in each["lines"]]} for each in failed.values()
    ]
    return {"sentence": f"This report is not finished: {listed(said)}.", "failed": shown}


# ---------------------------------------------------------------- all cells


def every_run(studies: list[Study]) -> dict[str, Run]:
    """metrics.json of each cell once, by the anchor of its details."""
    return {study.cell_panel(cell): run for study in studies for cell, run in study.runs.items()}


def cells_table(studies: list[Study], known: Environments) -> dict:
    """Every cell in a row."""
    columns = [
        "Seed",
        "Status",
        "Training time (s)",
        "Test accuracy",
        "Started (UTC)",
        "Environment",
        "Code",
    ]
    rows = [_cell_row(panel, run, known) for panel, run in every_run(studies).items()]
    return make_table(
        "t-cells", "All cells", [("", ["Cell"]), ("", columns)], rows, empty="No cell has run."
    )


def _cell_row(panel: str, run: Run, known: Environments) -> list[Cell]:
    environment = known[_environment_key(run)]
    return [
        Cell(run["cell"]["id"], link=panel),
        whole(run["cell"]["seed"]),
        Cell(status_text(run["status"]), tone="plain" if run["status"] == "ok" else "bad"),
        _number_cell(run["train_seconds"], 2),
        _number_cell(run["test_accuracy"], 4),
        Cell(moment(run["started"])),
        Cell(environment["name"], link=environment["id"]),
        Cell(run["environment"]["code_digest"][:8]),
    ]


def _number_cell(value: float | None, places: int) -> Cell:
    return absent("no number") if value is None else number(value, fixed(value, places))


# ---------------------------------------------------------------- groups and cells


def group_panels(studies: list[Study], known: Environments) -> list[dict]:
    """What stands behind every number: the groups' settings and their cells, each cell once."""
    panels, seen = [], set()
    for study in studies:
        for group in study.own:
            if group.not_run:
                continue
            places = {cell: study.cell_panel(cell) for cell in group.cells}
            shown = {cell: place for cell, place in places.items() if place not in seen}
            panels.append(
                {
                    "id": study.panel(group),
                    "study": study.name,
                    "title": f"{group.model}, {group.variant}, {hardware_text(group.hardware)}",
                    "status": group.short_status,
                    "group": group.id,
                    "settings": _settings(group),
                    "cells": [_cell_panel(study, cell, known) for cell in shown],
                    "elsewhere": [
                        {"id": cell, "anchor": place}
                        for cell, place in places.items()
                        if place in seen
                    ],
                }
            )
            seen.update(shown.values())
    return panels


def _settings(group: Group) -> list[list[str]]:
    cell = group.runs[0]["cell"]
    sizes = {"train": group.dataset.train_samples, "test": group.dataset.test_samples}
    samples = (f"{part}: {'all' if size is None else size}" for part, size in sizes.items())
    return [
        *(
            [key, f"{cell[key]['name']}; options: {mapping_text(cell[key]['options'])}"]
            for key in ("model", "strategy")
        ),
        ["hardware", f"{group.hardware.name}: {hardware_text(group.hardware)}"],
        ["dataset", f"{group.dataset.name} ({', '.join(samples)})"],
        *work_pairs(group),
        *settings_pairs({k: v for k, v in cell["training"].items() if k not in TOLD}),
        ["stack", cell["stack"]],
        ["deployment", deployment_text(cell["deployment"])],
    ]


def _cell_panel(study: Study, cell: str, known: Environments) -> dict:
    """Everything about one cell, formatted."""
    run = study.runs[cell]
    status, reason, confusion = status_text(run["status"]), run["reason"], run["confusion"]
    return {
        "id": cell,
        "anchor": study.cell_panel(cell),
        "seed": str(run["cell"]["seed"]),
        "status": f"{status}: {reason}" if reason else status,
        "tone": "good" if run["status"] == "ok" else "bad",
        "command": study.cell_command(cell),
        "numbers": _cell_numbers(run),
        "facts": [*_cell_facts(run), *certificates.fact(study.proofs, run)],
        "environment": known[_environment_key(run)]["name"],
        "history": _history(run["history"]),
        "confusion": confusion if len(confusion) <= CONFUSION_CLASSES else [],
        "folder": str(study.cells_folder / cell),
        "log": [] if run["status"] == "ok" else _end_of_log(study, cell),
    }


def _cell_numbers(run: Run) -> list[list[str]]:
    """Every metric that the run has by itself."""
    numbers = []
    for metric in METRICS.values():
        value = metric.read(run) if metric.read and metric.of == "one" else None
        if value is not None:
            unit = "" if metric.unit == "fraction" else metric.unit
            text = fixed(value, decimals([value], metric.unit))
            numbers.append([heading(metric.name, unit), text])
    if run["energy_joules"] is not None:
        numbers.append(["Energy (J)", fixed(run["energy_joules"], 1)])
    if run["steps_per_epoch"] is not None:
        steps = f"{run['steps_per_epoch']} an epoch, {run['warmup_steps']} warm-up"
        numbers.append(["Steps", steps])
    return numbers


def _cell_facts(run: Run) -> list[list[str]]:
    environment = run["environment"]
    dirty = environment["git_dirty"]
    return [
        ["processes", mapping_text(environment["world_size"])],
        ["backend", mapping_text(environment["backend"])],
        ["cores", ", ".join(map(str, environment["cores"])) or "not pinned"],
        ["started", f"{moment(run['started'])} UTC"],
        ["finished", f"{moment(run['finished'])} UTC"],
        ["interrupted, went on from", _resumed(run)],
        ["git commit", environment["git_commit"] or "unknown"],
        ["uncommitted changes", "unknown" if dirty is None else mapping_text(dirty)],
        ["code digest", environment["code_digest"]],
        ["dataset digest", environment["dataset_digest"]],
    ]


def _resumed(run: Run) -> str:
    """Where a run went on from checkpoints, in words."""
    here = run["environment"]["machine"]["fingerprint"]
    told = [
        f"epoch {place['epoch']}, step {place['step']}"
        + ("" if place["machine"] == here else f" (until then on machine [{place['machine']}])")
        for place in run["resumed_from"] or []
    ]
    return "; ".join(told) or "ran in one go"


def _history(epochs: Iterable[dict]) -> list[list[str]]:
    """A row an epoch, below a row of headings; empty without epochs."""
    rows = [
        [
            ABSENT if epoch[key] is None else format(epoch[key], form)
            for key, form in HISTORY.items()
        ]
        for epoch in epochs
    ]
    return [[key.replace("_", " ") for key in HISTORY], *rows] if rows else []


def _end_of_log(study: Study, cell: str) -> list[str]:
    path = study.cells_folder / cell / "log.txt"
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
    return [log_line(line) for line in text.rstrip().split("\n")[-LOG_LINES:]]
