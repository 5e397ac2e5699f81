"""What stands behind every number: each group's cells, their environments, histories and logs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from parbench.errors import ParbenchError
from parbench.files import canonical_json
from parbench.measure.metrics import METRICS, Run
from parbench.printable import LOG_WIDTH, log_line
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
    image_pairs,
    label,
    listed,
    machine_text,
    mapping_text,
    moment,
    settings_pairs,
    status_text,
)
from parbench.reporting.work import TOLD, work_pairs
from parbench.verdicts.groups import Group

LOG_LINES = 60
LOG_BUDGET = 300_000  # characters of all logs together
HISTORY_BUDGET = 3_000  # rows of all histories together
CONFUSION_CLASSES = 20  # a larger matrix is shown as its largest confusions

CELL_NUMBERS = (
    "train_seconds",
    "samples_per_second",
    "startup_seconds",
    "test_accuracy",
    "test_precision_macro",
    "test_recall_macro",
    "test_f1_macro",
    "test_specificity_macro",
)
HISTORY = (  # heading, key of an epoch, decimals
    ("train loss", "train_loss", 4),
    ("test loss", "test_loss", 4),
    ("accuracy", "test_accuracy", 4),
    ("learning rate", "learning_rate", None),  # three significant digits
    ("seconds", "seconds", 2),
    ("total seconds", "elapsed_seconds", 2),
    ("samples/s", "samples_per_second", 0),
)


# ---------------------------------------------------------------- environments


class Environments:
    """The different environments of the studies' cells, named E1, E2, ... as they appear.

    ``described`` is the list for the report.
    """

    def __init__(self, studies: list[Study]):
        self._names: dict[str, str] = {}
        self.described: list[dict] = []
        for study in studies:
            for metrics in study.runs.values():
                environment = metrics["environment"]
                key = _environment_key(environment)
                if key not in self._names:
                    number = len(self.described) + 1
                    self.described.append(_environment_json(number, environment))
                    self._names[key] = self.described[-1]["name"]

    def name(self, environment: dict) -> str:
        """The name of a cell's environment."""
        return self._names[_environment_key(environment)]


def _environment_key(environment: dict) -> str:
    """What tells one software and hardware environment from another."""
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
    return canonical_json({key: environment[key] for key in keys})


def _environment_json(number: int, environment: dict) -> dict:
    """One environment, in words."""
    machine = environment["machine"]
    stack = f"{environment['stack']}, in {deployment_text(environment['deployment'])}"
    packages = (f"{name} {version}" for name, version in sorted(environment["packages"].items()))
    drivers = dict.fromkeys(
        card["driver"] for card in machine.get("accelerators") or [] if card.get("driver")
    )
    pairs = [
        ["Machine", machine_text(machine)],
        ["System", ", ".join(filter(None, (machine.get("os"), machine.get("kernel"))))],
        ["Driver", ", ".join(drivers)],
        ["Stack", stack],
        *([name.capitalize(), text] for name, text in image_pairs(environment)),
        ["Python", environment["python"]],
        ["Packages", ", ".join(packages)],
        ["Differs from the lock", ", ".join(environment["lock_mismatch"]) or "no"],
    ]
    return {"id": f"e{number}", "name": f"E{number}", "pairs": [pair for pair in pairs if pair[1]]}


def images(studies: list[Study]) -> list[list[str]]:
    """Every image that a cell ran in, with its digest and how many cells."""
    environments = (run["environment"] for run in every_run(studies).values())
    used = Counter((e["image"], e["image_digest"]) for e in environments if e["image"])
    return [
        [image, f"sha256:{digest or 'unknown'}, {count(cells, 'cell')}"]
        for (image, digest), cells in sorted(used.items(), key=str)
    ]


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
    return {
        "sentence": f"This report is not finished: {listed(said)}.",
        "failed": [
            {
                "cell": each["cell"],
                "sentence": each["sentence"],
                "lines": [log_line(line) for line in each["lines"]],
                "log": each["log"],
            }
            for each in failed.values()
        ],
    }


# ---------------------------------------------------------------- all cells


def every_run(studies: list[Study]) -> dict[str, dict]:
    """metrics.json of each cell once, by the anchor of its details."""
    return {study.cell_panel(cell): run for study in studies for cell, run in study.runs.items()}


def cells_table(studies: list[Study], environments: Environments) -> dict:
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
    rows = [_cell_row(panel, run, environments) for panel, run in every_run(studies).items()]
    return make_table(
        "t-cells", "All cells", [("", ["Cell"]), ("", columns)], rows, empty="No cell has run."
    )


def _cell_row(panel: str, metrics: Run, environments: Environments) -> list[Cell]:
    seed, status = metrics["cell"]["seed"], metrics["status"]
    environment = environments.name(metrics["environment"])
    return [
        Cell(metrics["cell"]["id"], link=panel),
        whole(seed),
        Cell(status_text(status), tone="plain" if status == "ok" else "bad"),
        _number_cell(metrics["train_seconds"], 2),
        _number_cell(metrics["test_accuracy"], 4),
        Cell(moment(metrics["started"])),
        Cell(environment, link=environment.lower()),
        Cell(metrics["environment"]["code_digest"][:8]),
    ]


def _number_cell(value: float | None, places: int) -> Cell:
    if value is None:
        return absent("no number")
    return number(value, fixed(value, places))


# ---------------------------------------------------------------- groups and cells


def group_panels(studies: list[Study], environments: Environments) -> list[dict]:
    """What stands behind every number: the groups' settings and their cells, each cell once."""
    wanted = sum(len(run["history"]) for study in studies for run in study.runs.values())
    thin = max(1, math.ceil(wanted / HISTORY_BUDGET))
    logs = _logs(studies)
    panels, seen = [], set()
    for study in studies:
        for group in study.own:
            if group.not_run:
                continue
            hardware = hardware_text(group.hardware)
            panel = {
                "id": study.panel(group),
                "study": study.name,
                "title": f"{group.model}, {group.variant}, {hardware}",
                "status": group.short_status,
                "group": group.id,
                "settings": _settings(group),
                "software": _software(group.runs),
                "cells": [],
                "elsewhere": [],
            }
            for cell in group.cells:
                place = study.cell_panel(cell)
                if place in seen:
                    panel["elsewhere"].append({"id": cell, "anchor": place})
                else:
                    shown = _cell_panel(study, cell, environments, thin)
                    shown["facts"] += certificates.fact(study.proofs, study.runs[cell])
                    panel["cells"].append(shown | {"log": logs[cell]})
                seen.add(place)
            panels.append(panel)
    return panels


def _software(runs: Iterable[dict]) -> list[str]:
    """Each image that the runs of a group ran in: one, unless it was built anew between them."""
    found = (" ".join(text for _, text in image_pairs(run["environment"])) for run in runs)
    return list(dict.fromkeys(found))


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


def _cell_panel(study: Study, cell: str, environments: Environments, thin: int) -> dict:
    """Everything about one cell but its log, formatted; every ``thin``-th epoch."""
    metrics = study.runs[cell]
    status, reason = status_text(metrics["status"]), metrics["reason"]
    command = study.cell_command(cell)
    return {
        "id": cell,
        "anchor": study.cell_panel(cell),
        "seed": str(metrics["cell"]["seed"]),
        "status": f"{status}: {reason}" if reason else status,
        "tone": "good" if metrics["status"] == "ok" else "bad",
        "numbers": _cell_numbers(metrics),
        "facts": _cell_facts(metrics),
        "environment": environments.name(metrics["environment"]),
        "history": _history(metrics["history"], thin),
        "confusion": _confusion(metrics["confusion"]),
        "command": command,
        "force": f"{command} --force",
    }


def _cell_numbers(metrics: Run) -> list[list[str]]:
    numbers = []
    for key in CELL_NUMBERS:
        unit = METRICS[key].unit
        if metrics[key] is not None:
            text = fixed(metrics[key], decimals([metrics[key]], unit))
            numbers.append([label(key), text if unit == "fraction" else f"{text} {unit}"])
    for place in ("processes", "devices"):
        peaks = [fixed(entry["mib"], 1) for entry in metrics["peak_memory_mib"][place]]
        if peaks:
            numbers.append([f"Peak memory, {place}", ", ".join(peaks) + " MiB"])
    if (inference := metrics["inference"]) is not None:
        samples, seconds = inference["samples"], fixed(inference["seconds"], 3)
        of_input = fixed(inference["input_seconds"], 3)
        told = f"{samples} samples in {seconds} s, {of_input} s of it to prepare them"
        numbers.append(["Inference", told])
    if metrics["energy_joules"] is not None:
        numbers.append(["Energy", f"{fixed(metrics['energy_joules'], 1)} J"])
    if metrics["steps_per_epoch"] is not None:
        steps = f"{metrics['steps_per_epoch']} an epoch, {metrics['warmup_steps']} warm-up"
        numbers.append(["Steps", steps])
    return numbers


def _cell_facts(metrics: Run) -> list[list[str]]:
    environment = metrics["environment"]
    dirty = environment["git_dirty"]
    facts = [
        ["processes", mapping_text(environment["world_size"])],
        ["backend", mapping_text(environment["backend"])],
        ["cores", ", ".join(map(str, environment["cores"])) or "not pinned"],
        *image_pairs(environment),
        ["started", f"{moment(metrics['started'])} UTC"],
        ["finished", f"{moment(metrics['finished'])} UTC"],
        ["interrupted, went on from", _resumed(metrics)],
        ["git commit", environment["git_commit"] or "unknown"],
        ["uncommitted changes", "unknown" if dirty is None else mapping_text(dirty)],
        ["code digest", environment["code_digest"]],
        ["dataset digest", environment["dataset_digest"]],
    ]
    if environment.get("oversubscribed"):
        facts.insert(0, ["cores shared", "yes: its times mean nothing"])
    return facts


def _resumed(metrics: Run) -> str:
    """Where a run went on from checkpoints, in words."""
    here = metrics["environment"]["machine"]["fingerprint"]
    told = [
        f"epoch {place['epoch']}, step {place['step']}"
        + ("" if place["machine"] == here else f" (until then on machine [{place['machine']}])")
        for place in metrics["resumed_from"] or []
    ]
    return "; ".join(told) or "ran in one go"


def _history(history: list[dict], thin: int) -> dict | None:
    """Every ``thin``-th epoch and the last."""
    if not history:
        return None
    kept = [e for i, e in enumerate(history) if i % thin == 0 or i == len(history) - 1]
    return {
        "columns": ["epoch", *(title for title, _, _ in HISTORY)],
        "rows": [
            [str(entry["epoch"]), *(_epoch_number(entry[key], p) for _, key, p in HISTORY)]
            for entry in kept
        ],
        "note": "" if thin == 1 else f"Every {thin}th epoch; all of them are in metrics.json.",
    }


def _epoch_number(value: float | None, places: int | None) -> str:
    if value is None:
        return ABSENT
    return f"{value:.3g}" if places is None else fixed(value, places)


def _confusion(matrix: list[list[int]]) -> dict | None:
    """The matrix, or the largest confusions of one that is too large to read."""
    if not matrix:
        return None
    if len(matrix) <= CONFUSION_CLASSES:
        return {"matrix": [[str(value) for value in row] for row in matrix], "largest": []}
    wrong = [
        (value, true, said)
        for true, row in enumerate(matrix)
        for said, value in enumerate(row)
        if true != said and value
    ]
    wrong.sort(key=lambda entry: (-entry[0], entry[1], entry[2]))
    largest = [f"{value} of class {true} taken for {said}" for value, true, said in wrong[:10]]
    return {"matrix": [], "largest": largest or ["no confusion"]}


# ---------------------------------------------------------------- logs


def _logs(studies: list[Study]) -> dict[str, list[str]]:
    """The end of every cell's log, shorter where many cells share the budget."""
    paths = {
        cell: study.metrics_path(cell).with_name("log.txt")
        for study in studies
        for cell in study.runs
    }
    ends = {cell: _log_end(path) for cell, path in paths.items()}
    size = sum(len(line) + 1 for lines, _ in ends.values() for line in lines)
    most = LOG_LINES if size <= LOG_BUDGET else max(5, LOG_LINES * LOG_BUDGET // size)
    return {
        cell: _noted(lines[-most:], total, paths[cell]) for cell, (lines, total) in ends.items()
    }


def _log_end(path: Path) -> tuple[list[str], int]:
    """The last lines of a log as a terminal would show them, and how many lines it has."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise ParbenchError(f"{path}: cannot be read ({error})") from None
    if not text.strip():
        return ["[the log is empty]"], 1  # said, where an empty box would look like a fault
    lines = text.rstrip().split("\n")
    return [log_line(line) for line in lines[-LOG_LINES:]], len(lines)


def _noted(lines: list[str], total: int, path: Path) -> list[str]:
    """The lines, below a note where they are not the whole of the log's ``total`` lines."""
    said = [f"last {len(lines)} lines"] if len(lines) < total else []
    if any(len(line) == LOG_WIDTH and line.endswith("…") for line in lines):
        said.append("long lines cut")
    return [f"[{', '.join(said)}; the whole log lies in {path}]", *lines] if said else lines
