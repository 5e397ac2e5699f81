"""The report: plans, tables and metrics -> one report.json -> one HTML file and one PDF.

Every displayed number is formatted once, by ``collect``, and every figure is drawn once, by
``collect``: ``html`` and ``pdf`` only lay out what report.json holds, so that they cannot differ.
Neither the time of rendering nor the machine that renders enters any byte.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import json
import math
import re
import shlex
import string
import sys
import warnings
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from errors import ParbenchError, run_main
from files import canonical_json, read_json, write_atomically, write_json
from measure import read_metrics

TEMPLATES = Path(__file__).resolve().parent.parent / "reports"
HTML_LIMIT = 3_000_000  # bytes; a report is mailed and opened on phones
LOG_LINES = 60
LOG_WIDTH = 160
LOG_BUDGET = 300_000  # characters of all logs together
HISTORY_BUDGET = 3_000  # rows of all histories together
CONFUSION_CLASSES = 20  # a larger matrix is shown as its largest confusions

# fmt: off
TABLE_COLUMNS = [
    "study", "group", "model", "variant", "hardware", "device", "devices", "nodes", "stack",
    "deployment", "machine", "status", "metric", "unit", "n_seeds", "mean", "std", "ci_low",
    "ci_high", "published", "published_unit", "ratio", "verdict", "reason",
]
# fmt: on

# What a reader sees; a metric that is not here is shown under its own name.
LABELS = {
    "test_accuracy": "Test accuracy",
    "test_precision_macro": "Precision (macro)",
    "test_recall_macro": "Recall (macro)",
    "test_f1_macro": "F1 (macro)",
    "test_specificity_macro": "Specificity (macro)",
    "train_seconds": "Training time",
    "epoch_seconds": "Time per epoch",
    "samples_per_second": "Throughput",
    "startup_seconds": "Start-up",
    "peak_memory_process_mib": "Peak memory, process",
    "peak_memory_device_mib": "Peak memory, device",
    "speedup": "Speedup",
    "noise_floor": "Noise floor",
}
# Metrics that a group that ran well may lack: no baseline, or no accelerator.
OPTIONAL = {"speedup", "noise_floor", "peak_memory_device_mib"}
UNITS = {  # unit: (what it measures, its size, how it is written)
    "ms": ("time", 0.001, "ms"),
    "s": ("time", 1.0, "s"),
    "seconds": ("time", 1.0, "s"),
    "min": ("time", 60.0, "min"),
    "minutes": ("time", 60.0, "min"),
    "h": ("time", 3600.0, "h"),
    "hours": ("time", 3600.0, "h"),
    "fraction": ("share", 1.0, "fraction"),
    "percent": ("share", 0.01, "%"),
    "%": ("share", 0.01, "%"),
    "MiB": ("memory", 1.0, "MiB"),
    "GiB": ("memory", 1024.0, "GiB"),
    "samples/s": ("throughput", 1.0, "samples/s"),
    "x": ("ratio", 1.0, "×"),
}
STATUS = {"out_of_memory": "out of memory"}
TONES = {
    "reproduced": "good",
    "within noise": "good",
    "not reproduced": "bad",
    "better than published (suspicious)": "warn",
}
VERDICTS = (
    "reproduced",
    "within noise",
    "not reproduced",
    "better than published (suspicious)",
    "not comparable",
    "undecided",
    "not run",
    "no published value",
)
ABSENT = "–"


# --------------------------------------------------------------------------- numbers, as text


def convert(value: float, unit: str, into: str) -> float:
    """``value`` of ``unit`` in the unit ``into``; ParbenchError when they measure other things."""
    if unit == into:
        return value
    if unit not in UNITS or into not in UNITS or UNITS[unit][0] != UNITS[into][0]:
        raise ParbenchError(f"cannot show {unit!r} as {into!r}; use one of {', '.join(UNITS)}")
    return value * UNITS[unit][1] / UNITS[into][1]


def unit_text(unit: str) -> str:
    """How a unit is written in a heading."""
    return UNITS[unit][2] if unit in UNITS else unit


def decimals(values: Iterable[float], unit: str, spreads: Iterable[float] = ()) -> int:
    """Decimals for a column, so that its numbers compare.

    A share has four (percent: two), a ratio two, any other unit as many as give its smallest
    number three significant digits; one more, at most three, where a spread would read as zero.
    """
    kind, size, _ = UNITS.get(unit, ("", 1.0, unit))
    if kind == "share":
        return 4 if size == 1.0 else 2
    sizes = [abs(value) for value in values if value]
    places = 2
    if kind != "ratio":
        places = min(3, max(0, 2 - math.floor(math.log10(min(sizes))))) if sizes else 1
    narrowest = min(filter(None, spreads), default=1.0)
    return min(3, places + 1) if round(narrowest, places) == 0 else places


def fixed(value: float, places: int) -> str:
    """A number with a fixed count of decimals and a true minus sign."""
    return f"{value:,.{places}f}".replace("-", "−")


def short(value: float, unit: str = "") -> str:
    """A number as a source prints it; a ratio, which may be computed from two, has four digits."""
    digits = 4 if UNITS.get(unit, ("",))[0] == "ratio" else 6
    return f"{value:.{digits}g}".replace("-", "−")


def ratio_text(value: float) -> str:
    """A ratio: two decimals, or two significant digits when it is small."""
    return fixed(value, 2) if abs(value) >= 0.095 or value == 0 else f"{value:.2g}"


def count(number: int, noun: str) -> str:
    """``1 cell``, ``2 cells``."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def listed(words: list[str], last: str = "and") -> str:
    """``a, b and c``."""
    return " ".join([", ".join(words[:-1]), last, words[-1]]) if len(words) > 1 else "".join(words)


def moment(stamp: str) -> str:
    """``2024-01-31T07:00:00Z`` as ``2024-01-31 07:00``."""
    return stamp[:16].replace("T", " ")


def mapping_text(value: Any) -> str:
    """A setting's value in one line."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {mapping_text(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list):
        return "[" + ", ".join(mapping_text(item) for item in value) + "]"
    return {None: "none", True: "yes", False: "no"}[value] if _is_word(value) else str(value)


def _is_word(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def hardware_text(hardware: dict) -> str:
    """Hardware in words: on a CPU a device is one core."""
    devices = hardware["devices"]
    if hardware["device"] == "cpu":
        text = count(devices, "CPU core")
    else:
        text = f"{devices}× {hardware['gpu_model'] or hardware['device'].upper()}"
    return text if hardware["nodes"] == 1 else f"{hardware['nodes']} nodes, each {text}"


def anchor(*words: str) -> str:
    """An id for HTML, made of any words."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", "-".join(words))


# --------------------------------------------------------------------------- tables, generic
# A table is what `make_table` returns, a cell of it what `text_cell` and its siblings return.
# HTML and PDF need nothing else.


def text_cell(text: str, **more: Any) -> dict:
    """A cell that shows ``text``; ``sort`` (a number), ``link``, ``tone``, ``span``, ``spoken``."""
    if isinstance(more.get("sort"), float):
        more["sort"] = float(f"{more['sort']:.6g}")  # enough to sort by
    return {"text": text} | {key: value for key, value in more.items() if value is not None}


def absent_cell(spoken: str) -> dict:
    """A dash, and the words that a screen reader says for it."""
    return text_cell(ABSENT, spoken=spoken)


class Notes:
    """The notes under one table: each text once, with a letter."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def mark(self, *texts: str) -> list[str]:
        """The letters of these notes; blank texts are left out."""
        wanted = dict.fromkeys(filter(None, texts))
        self.texts += [text for text in wanted if text not in self.texts]
        return [_letters(index) for index in sorted(map(self.texts.index, wanted))]

    def as_json(self) -> list[dict]:
        """Letter and text of every note."""
        return [{"mark": _letters(i), "text": text} for i, text in enumerate(self.texts)]


def _letters(index: int) -> str:
    alphabet = string.ascii_lowercase
    head = alphabet[index // 26 - 1] if index >= 26 else ""
    return head + alphabet[index % 26]


def make_table(identity: str, title: str, heads: list[tuple[str, list[str]]], rows: list, **more):
    """A table. ``heads``: (heading over several columns or "", its columns).

    The first head holds the keys, which every part repeats when a page is too narrow for all.
    """
    return {
        "id": anchor(identity),
        "title": title,
        "caption": more.get("caption", ""),
        "context": more.get("context", ""),
        "heads": [{"title": head, "columns": columns} for head, columns in heads],
        "rows": rows,
        "notes": more.get("notes", []),
        "empty": more.get("empty", "No rows."),
    }


# --------------------------------------------------------------------------- what is read


class Study:
    """One study's plan, table rows and metrics, checked against each other."""

    def __init__(self, plan_path: Path, table_path: Path, cells: Path):
        self.plan_path, self.table_path, self.cells_folder = plan_path, table_path, cells
        plan = read_json(plan_path)
        try:
            self.study, self.groups = plan["study"], plan["groups"]
            self.stack, self.deployment = plan["stack"], plan["deployment"]
            self.name = self.study["name"]
            self.by_id = {group["id"]: group for group in self.groups}
            self.rows = self._read_table()
            self.metrics = self._read_cells()
            self._check_numbers()
        except (KeyError, TypeError) as error:
            raise ParbenchError(
                f"{plan_path}: no key {error}; rebuild it: snakemake --forcerun {plan_path}"
            ) from None
        self.decimals = {}

    def _read_table(self) -> dict[tuple[str, str], dict]:
        """Rows by (group, metric), numbers as floats or None."""
        fix = f"rebuild it: snakemake {self.table_path} --force"
        try:
            text = self.table_path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ParbenchError(f"{self.table_path}: cannot be read ({error}); {fix}") from None
        reader = csv.DictReader(io.StringIO(text))
        missing = [name for name in TABLE_COLUMNS if name not in (reader.fieldnames or [])]
        if missing:
            raise ParbenchError(f"{self.table_path}: no column {', '.join(missing)}; {fix}")
        rows = {}
        for number, row in enumerate(reader, start=2):
            where = f"{self.table_path}, line {number}"
            if None in row or None in row.values():
                raise ParbenchError(f"{where}: not as many fields as the heading has; {fix}")
            if row["group"] not in self.by_id:
                raise ParbenchError(f"{where}: group {row['group']!r} is not in the plan; {fix}")
            for name in ("mean", "std", "ci_low", "ci_high", "published", "ratio", "min", "max"):
                row[name] = _number(row.get(name, ""), f"{where}, {name}", fix)
            row["n_seeds"] = int(_number(row["n_seeds"], f"{where}, n_seeds", fix) or 0)
            rows[row["group"], row["metric"]] = row
        return rows

    def _read_cells(self) -> dict[str, dict]:
        """metrics.json by cell id, for every planned cell that this machine runs."""
        found = {}
        for group in self.groups:
            for cell in [] if group["not_run"] else group["cells"]:
                path = self.cells_folder / cell / "metrics.json"
                if not path.exists():
                    raise ParbenchError(
                        f"{path}: cell {cell} of study {self.name} is planned but has no metrics; "
                        f"run: snakemake {shlex.quote(str(path))}"
                    )
                found[cell] = read_metrics(path)
        return found

    def _check_numbers(self) -> None:
        """Every number that the study's tables ask for exists, or a status says why not."""
        for table in self.study["tables"]:
            for group in self.table_groups(table):
                for metric in table["metrics"]:
                    row = self.rows.get((group["id"], metric))
                    lacking = row is None or (row["status"] == "ok" and row["mean"] is None)
                    if lacking and metric not in OPTIONAL and not group["not_run"]:
                        raise ParbenchError(
                            f"{self.table_path}: no number for metric {metric} of group "
                            f"{group['id']}; rebuild it: snakemake {self.table_path} --force"
                        )

    def table_groups(self, table: dict) -> list[dict]:
        """The groups of one of the paper's tables: model by model, variants in their order."""
        models = list(dict.fromkeys(group["model"] for group in self.groups))
        named = table.get("variants") or [group["variant"] for group in self.groups]
        order = {variant: index for index, variant in enumerate(dict.fromkeys(named))}
        chosen = [group for group in self.groups if group["variant"] in order]
        return sorted(chosen, key=lambda g: (models.index(g["model"]), order[g["variant"]]))

    def status(self, group: dict) -> str:
        """``ok``, ``not run``, ``diverged`` or, of several seeds, ``diverged 1 of 3``."""
        if group["not_run"]:
            return "not run"
        states = Counter(self.metrics[cell]["status"] for cell in group["cells"])
        states.pop("ok", None)
        total = len(group["cells"])
        return (
            ", ".join(
                STATUS.get(state, state) + ("" if number == total else f" {number} of {total}")
                for state, number in states.items()
            )
            or "ok"
        )

    def unit(self, metric: str) -> str:
        """The unit that the study shows a metric in, unless a table says otherwise."""
        for table in self.study["tables"]:
            if metric in table.get("units", {}):
                return table["units"][metric]
        return next((row["unit"] for (_, name), row in self.rows.items() if name == metric), "")

    def places(self, metric: str, unit: str) -> int:
        """Decimals of a metric throughout the study, so that its columns compare."""
        if (metric, unit) not in self.decimals:
            rows = [row for (_, name), row in self.rows.items() if name == metric]
            means = [convert(r["mean"], r["unit"], unit) for r in rows if r["mean"] is not None]
            stds = [convert(r["std"], r["unit"], unit) for r in rows if r["std"] is not None]
            self.decimals[metric, unit] = decimals(means, unit, stds)
        return self.decimals[metric, unit]

    def show(self, metric: str, value: float, unit: str, into: str) -> str:
        """One number of a metric as text."""
        return fixed(convert(value, unit, into), self.places(metric, into))

    def reproduced(self, row: dict, unit: str) -> str:
        """``12.00 ± 0.13 (3)``: mean, standard deviation, seeds."""
        text = self.show(row["metric"], row["mean"], row["unit"], unit)
        if row["std"] is not None:
            text += f" ± {self.show(row['metric'], row['std'], row['unit'], unit)}"
        return f"{text} ({row['n_seeds']})"

    def panel(self, group: dict) -> str | None:
        """The anchor of a group's details; None when it has no cell."""
        return None if group["not_run"] else anchor("g", self.name, group["id"])


def _number(text: str, where: str, fix: str) -> float | None:
    if text == "":
        return None
    try:
        value = float(text)
    except ValueError:
        raise ParbenchError(f"{where}: {text!r} is not a number; {fix}") from None
    # The noise floor of two wild seeds has no upper end: shown as unknown.
    return value if math.isfinite(value) else None


def label(metric: str) -> str:
    """A metric's name for readers."""
    return LABELS.get(metric, metric.replace("_", " "))


def heading(metric: str, unit: str) -> str:
    """A metric's name and unit."""
    return f"{label(metric)} ({unit_text(unit)})" if unit else label(metric)


# --------------------------------------------------------------------------- tables of a study


def key_cells(study: Study, group: dict, marks: list[str] | None = None) -> list[dict]:
    """Model, variant and hardware of a group: the keys of every table of groups."""
    devices = group["hardware"]["devices"] * group["hardware"]["nodes"]
    return [
        text_cell(group["model"]),
        text_cell(group["variant"], marks=marks or None),
        text_cell(hardware_text(group["hardware"]), sort=devices),
    ]


KEYS = ["Model", "Variant", "Hardware"]


def published_cell(row: dict | None, unit: str) -> dict:
    """The source's number, or a dash that says that there is none."""
    if row is None or row["published"] is None:
        return absent_cell("no published value")
    value = convert(row["published"], row["published_unit"] or row["unit"], unit)
    return text_cell(short(value, unit), sort=value)


def outcome_cell(study: Study, group: dict, row: dict | None, unit: str, span: int = 1) -> dict:
    """The reproduced number with a link to its cells, or in words why there is none."""
    link = study.panel(group)
    if row is not None and row["mean"] is not None:
        value = convert(row["mean"], row["unit"], unit)
        return text_cell(study.reproduced(row, unit), sort=value, link=link)
    status = study.status(group)
    if status != "ok":
        why = group["not_run"] or _why(study, group) or (row or {}).get("reason") or ""
        text = status + (f": {why}" if why else "")
        tone = "muted" if group["not_run"] else "bad"
        return text_cell(text, span=span if span > 1 else None, tone=tone, link=link)
    return absent_cell("does not apply")


def _why(study: Study, group: dict) -> str:
    reasons = (study.metrics[cell]["reason"] for cell in group["cells"])
    return next((reason for reason in reasons if reason), "")


def verdict_cell(row: dict | None, group: dict, marks: list[str]) -> dict:
    """A verdict, never blank."""
    verdict = row["verdict"] if row else ("not run" if group["not_run"] else "")
    if verdict in ("", "no published value"):
        cell = absent_cell(verdict or "no verdict") | {"verdict": verdict or "no verdict"}
    else:
        cell = text_cell(verdict, tone=TONES.get(verdict, "plain"), verdict=verdict)
    return cell | ({"marks": marks} if marks else {})


def metric_cells(study: Study, group: dict, metric: str, unit: str, notes: Notes) -> list[dict]:
    """published | reproduced | ratio | verdict of one number."""
    row = study.rows.get((group["id"], metric))
    outcome = outcome_cell(study, group, row, unit, span=2)
    cells = [published_cell(row, unit), outcome]
    if "span" not in outcome:
        ratio = row["ratio"] if row else None
        has_ratio = ratio is not None
        cells.append(
            text_cell(ratio_text(ratio), sort=ratio) if has_ratio else absent_cell("no ratio")
        )
    reason = row["reason"] if row and "span" not in outcome else ""
    return [*cells, verdict_cell(row, group, notes.mark(*reason.split("; ")))]


FOUR = ["Published", "Reproduced", "Ratio", "Verdict"]


def paper_table(study: Study, index: int, table: dict) -> dict:
    """One of the paper's tables, in its own shape."""
    notes, rows = Notes(), []
    units = {m: table.get("units", {}).get(m) or study.unit(m) for m in table["metrics"]}
    groups = study.table_groups(table)
    for group in groups:
        scaled = "scaled: " + ", ".join(group["scaled"]) if group["scaled"] else ""
        row = key_cells(study, group, notes.mark(scaled))
        for metric, unit in units.items():
            row += metric_cells(study, group, metric, unit, notes)
        rows.append(row)
    heads = [("", KEYS)] + [(heading(metric, unit), FOUR) for metric, unit in units.items()]
    return make_table(
        f"t-{study.name}-{index}",
        table["title"],
        heads,
        rows,
        caption=table.get("caption", ""),
        context=context(study, groups),
        notes=notes.as_json(),
        empty="The plan has no group of this table.",
    )


def context(study: Study, groups: list[dict]) -> str:
    """Stack, deployment and machine of a table's numbers, and a warning when devices are mixed."""
    machines = {}
    for group in groups:
        for cell in [] if group["not_run"] else group["cells"]:
            environment = study.metrics[cell]["environment"]
            machines.setdefault(machine_text(environment["machine"]))
    text = f"Reproduced: mean ± standard deviation (seeds). Stack {study.stack}, {study.deployment}"
    where = listed(list(machines)) or "no cell of this table ran"
    text += (
        f"; {'machines' if len(machines) > 1 else 'machine'}: {where}."
        if machines
        else (f"; {where}.")
    )
    kinds = {group["hardware"]["device"] for group in groups}
    if len(kinds) > 1:
        text += (
            " This table holds both CPU and GPU cells: "
            "numbers of one kind say nothing of the other."
        )
    if len(machines) > 1:
        text += " Numbers of different machines are not to be divided by each other."
    return text


def machine_text(machine: dict) -> str:
    """A machine in words: CPU, cores, memory, accelerators, fingerprint."""
    words = [machine.get("cpu") or "unknown CPU"]
    if machine.get("cores"):
        words.append(count(machine["cores"], "core"))
    if machine.get("memory_mib"):
        words.append(f"{machine['memory_mib'] / 1024:.0f} GiB")
    cards = Counter(card["name"] for card in machine.get("accelerators") or [])
    words += [f"{number}× {name}" for name, number in cards.items()]
    return ", ".join(words) + f" [{machine['fingerprint']}]"


def noise_band(row: dict | None) -> tuple[float, float] | None:
    """The range in which the same cell against itself lies with 95 %; None when unknown."""
    if row is None or row["ci_low"] is None or row["ci_high"] is None:
        return None
    return row["ci_low"], row["ci_high"]


def band_text(band: tuple[float, float] | None) -> str:
    """A noise band as text."""
    return "unknown" if band is None else f"{fixed(band[0], 2)} to {fixed(band[1], 2)}"


def reading(speedup: float, bound: int, band: tuple[float, float] | None, against: str) -> str:
    """What a speedup says, given its bound and the noise."""
    if band and band[0] <= speedup <= band[1]:
        return f"no difference from {against} beyond noise"
    if speedup > bound * (band[1] if band else 1.0):
        return "above the bound: suspect the clock"
    words = f"{'faster' if speedup > 1 else 'slower'} than {against}"
    return words if band else f"{words}; noise unknown"


def speedup_table(study: Study) -> dict | None:
    """Speedup of every group that has a baseline, with its bound and its noise floor."""
    notes, rows = Notes(), []
    groups = [group for group in study.groups if group["baseline"]]
    unit = "x"
    for group in groups:
        row = study.rows.get((group["id"], "speedup"))
        bound = group["hardware"]["devices"] * group["hardware"]["nodes"]
        floor = study.rows.get((group["baseline"], "noise_floor"))
        band = noise_band(floor)
        against = study.by_id.get(group["baseline"], {}).get("variant", "the baseline")
        outcome = outcome_cell(study, group, row, unit)
        has = row is not None and row["mean"] is not None
        says = (
            text_cell(reading(row["mean"], bound, band, against))
            if has
            else (absent_cell("not measured"))
        )
        # What did not run or failed says why in the speedup's own place.
        explained = outcome["text"] != ABSENT and not has
        marks = notes.mark(*row["reason"].split("; ")) if row and not explained else []
        rows.append(
            [
                *key_cells(study, group),
                outcome,
                _interval(study, row, unit) if has else absent_cell("not measured"),
                text_cell(f"{bound}×", sort=bound),
                text_cell(band_text(band), sort=band[1] if band else None),
                says | ({"marks": marks} if marks else {}),
                published_cell(row, unit),
                verdict_cell(row, group, []),
            ]
        )
    if not rows:
        return None
    columns = ["Speedup", "95 % interval", "Bound", "Noise floor", "Reading", "Published"]
    return make_table(
        f"t-{study.name}-speedup",
        "Speedup, its bound and its noise floor",
        [("", KEYS), ("", [*columns, "Verdict"])],
        rows,
        caption="Training time of the baseline over that of the variant, paired by seed. The "
        "bound is the number of devices. The noise floor is the baseline against itself: a "
        "speedup within it is no difference.",
        context=context(study, groups),
        notes=notes.as_json(),
    )


def _interval(study: Study, row: dict, unit: str) -> dict:
    if row["ci_low"] is None or row["ci_high"] is None:
        return absent_cell("needs at least two seeds")
    ends = [study.show(row["metric"], row[end], row["unit"], unit) for end in ("ci_low", "ci_high")]
    return text_cell(" to ".join(ends), sort=row["ci_low"])


def every_metric_table(study: Study) -> dict | None:
    """All that was measured, a row a group."""
    named = dict.fromkeys(metric for _, metric in study.rows)
    have = {metric for (_, metric), row in study.rows.items() if row["mean"] is not None}
    metrics = [metric for metric in named if metric in have and metric not in ("speedup",)]
    groups = [
        group
        for group in study.groups
        if any(
            row["mean"] is not None for (name, _), row in study.rows.items() if name == group["id"]
        )
    ]
    if not metrics or not groups:
        return None
    rows = []
    for group in groups:
        row = key_cells(study, group)
        for metric in metrics:
            found = study.rows.get((group["id"], metric))
            row.append(outcome_cell(study, group, found, study.unit(metric)))
        rows.append(row)
    heads = [("", KEYS)] + [("", [heading(metric, study.unit(metric))]) for metric in metrics]
    return make_table(
        f"t-{study.name}-all", "Everything measured", heads, rows, context=context(study, groups)
    )


def judged(study: Study) -> list[tuple[dict, str, dict | None]]:
    """(group, metric, row) of every number in the study's tables, and of every published one."""
    wanted: dict[tuple[str, str], None] = {}
    for table in study.study["tables"]:
        for group in study.table_groups(table):
            for metric in table["metrics"]:
                optional = (group["id"], metric) not in study.rows and metric in OPTIONAL
                if not optional:
                    wanted.setdefault((group["id"], metric))
    for key, row in study.rows.items():
        if row["published"] is not None:
            wanted.setdefault(key)
    return [
        (study.by_id[group], metric, study.rows.get((group, metric))) for group, metric in wanted
    ]


def verdict_table(studies: list[Study]) -> dict:
    """Every verdict of the report in one table."""
    rows = []
    for study in studies:
        for group, metric, _ in judged(study):
            cells = metric_cells(study, group, metric, study.unit(metric), Notes())
            cells[-1].pop("marks", None)
            name = heading(metric, study.unit(metric))
            rows.append([text_cell(study.name), *key_cells(study, group), text_cell(name), *cells])
    heads = [("", ["Study", *KEYS, "Metric"]), ("", FOUR)]
    return make_table(
        "t-verdicts", "Published beside reproduced", heads, rows, empty="No study has a table."
    )


def _citation(citation: dict | None) -> dict | None:
    """The text, and the address where it is one that a browser may safely open."""
    if citation is None:
        return None
    url = citation.get("url") or ""
    web = url.startswith(("https://", "http://"))
    return {"text": citation["text"], "url": url if web else None}


def _settings_pairs(settings: dict | None) -> list[list[str]]:
    return [[key.replace("_", " "), mapping_text(v)] for key, v in (settings or {}).items()]


def study_json(study: Study) -> dict:
    """What the report says of one study."""
    text = study.study
    tables = [paper_table(study, index, table) for index, table in enumerate(text["tables"], 1)]
    tables += filter(None, [speedup_table(study), every_metric_table(study)])
    states = Counter(study.status(group) for group in study.groups)
    ran = listed([f"{number} {state}" for state, number in states.items()])
    tolerance = text.get("tolerance") or {}
    return {
        "id": anchor("study", study.name),
        "name": study.name,
        "title": text["title"],
        "description": text.get("description") or "",
        "citation": _citation(text.get("citation")),
        "facts": [
            ["Dataset", str(text["dataset"])],
            ["Groups", f"{len(study.groups)}: {ran}" if study.groups else "none"],
            ["Stack", study.stack],
            ["Deployment", study.deployment],
            ["Tolerance", mapping_text(tolerance)],
        ],
        "settings": _settings_pairs(text["settings"]),
        "assumed": _settings_pairs(text["assumed"]),
        "tables": tables,
        "figures": figures(study),
    }


# --------------------------------------------------------------------------- figures

INK = "#010203"  # becomes currentColor, so that a figure is read in the dark and on paper
COLOURS = (  # each with a contrast of 3 or more on white and on the dark page
    "#3b7dd8",
    "#d0700d",
    "#1a9480",
    "#c2559d",
    "#8a6fd1",
    "#d14b45",
    "#7f8a1a",
    "#7b8894",
)
DASHES = ("-", "--", ":", "-.")
FIGURE_WIDTH = 6.3  # inches, the text width of an A4 page
PART_HEIGHT = 8.2  # inches; what is taller is continued in another part
STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a model's name is no formula
    "font.family": "DejaVu Sans",  # comes with matplotlib: the layout is the same everywhere
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.axisbelow": True,
    "grid.linewidth": 0.5,
    "grid.alpha": 0.16,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "legend.frameon": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.0,
    **{
        key: INK
        for key in (
            "text.color",
            "axes.edgecolor",
            "axes.labelcolor",
            "axes.titlecolor",
            "xtick.color",
            "ytick.color",
            "grid.color",
        )
    },
}
SVG = "http://www.w3.org/2000/svg"
HREF = "{http://www.w3.org/1999/xlink}href"


def figures(study: Study) -> list[dict]:
    """The study's four figures; none for a study of which no cell ended well."""
    if not any(metrics["status"] == "ok" for metrics in study.metrics.values()):
        return []
    made = (time_figure, speedup_figure, learning_figure, memory_figure)
    return [figure for figure in (make(study) for make in made) if figure]


def bar_label(study: Study, group: dict) -> str:
    """A group's name within its model: the variant, and the hardware where that varies."""
    same = [
        other
        for other in study.groups
        if (other["model"], other["variant"]) == (group["model"], group["variant"])
    ]
    text = group["variant"]
    if len(same) > 1:
        text += f", {hardware_text(group['hardware'])}"
    return _cut(text, 30)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def colours(study: Study) -> dict[str, tuple[str, str]]:
    """Colour and dash by label, the same in every figure of the study."""
    labels = dict.fromkeys(bar_label(study, group) for group in study.groups)
    return {
        name: (COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)])
        for i, name in enumerate(labels)
    }


def measured(study: Study, metric: str) -> dict[str, list[tuple[dict, dict]]]:
    """(group, row) of every group with a number of the metric, by model."""
    panels: dict[str, list[tuple[dict, dict]]] = {}
    for group in study.groups:
        row = study.rows.get((group["id"], metric))
        if row is not None and row["mean"] is not None:
            panels.setdefault(group["model"], []).append((group, row))
    return panels


def draw_panels(
    study: Study,
    name: str,
    alt: str,
    panels: dict[str, list],
    draw: Callable[[Any, list], None],
    xlabel: str,
) -> list[dict]:
    """Small multiples, a panel a model, in as many parts as pages need. ``draw(axes, bars)``."""
    import matplotlib
    from matplotlib.figure import Figure

    longest = max(len(bar_label(study, bar[0])) for bars in panels.values() for bar in bars)
    across = 1 if len(panels) == 1 or longest > 16 else 2
    models = list(panels)
    lines = [models[i : i + across] for i in range(0, len(models), across)]
    height = [max(len(panels[model]) for model in line) * 0.27 + 0.75 for line in lines]
    parts: list[list[int]] = [[]]
    for index in range(len(lines)):
        if parts[-1] and sum(height[i] for i in parts[-1]) + height[index] > PART_HEIGHT:
            parts.append([])
        parts[-1].append(index)
    drawn = []
    with matplotlib.rc_context(STYLE):
        for number, part in enumerate(parts, 1):
            sizes = [height[i] for i in part]
            figure = Figure(figsize=(FIGURE_WIDTH, sum(sizes)), layout="constrained")
            grid = figure.subplots(len(part), across, squeeze=False, height_ratios=sizes)
            for row, index in zip(grid, part, strict=True):
                for axes in row[len(lines[index]) :]:
                    axes.set_axis_off()
                for axes, model in zip(row, lines[index], strict=False):
                    bars = panels[model]
                    axes.set_title(_cut(model, 60 // across))
                    axes.set_yticks(range(len(bars)), [bar_label(study, bar[0]) for bar in bars])
                    axes.set_ylim(len(bars) - 0.4, -0.6)
                    axes.grid(visible=True, axis="x")
                    axes.set_xlabel(xlabel)
                    draw(axes, bars)
            drawn.append(svg_part(figure, f"{study.name}-{name}-{number}", alt))
    return drawn


def figure_json(study: Study, name: str, title: str, caption: str, parts: list[dict]) -> dict:
    """A figure: its question, its answer, its SVG parts."""
    if len({group["hardware"]["device"] for group in study.groups if not group["not_run"]}) > 1:
        caption += " CPU and GPU cells stand side by side here: compare within a kind only."
    return {"id": anchor("f", study.name, name), "title": title, "caption": caption, "parts": parts}


def bars_drawer(study: Study, metric: str, unit: str) -> Callable[[Any, list], None]:
    """Draws bars from zero with the standard deviation and the number at the end."""
    palette = colours(study)

    def draw(axes: Any, bars: list) -> None:
        ends = []
        for place, (group, row) in enumerate(bars):
            value = convert(row["mean"], row["unit"], unit)
            spread = convert(row["std"] or 0.0, row["unit"], unit)
            colour = palette[bar_label(study, group)][0]
            axes.barh(place, value, height=0.56, color=colour)
            if spread:
                axes.errorbar(value, place, xerr=spread, color=INK, capsize=2.5, lw=0.9)
            ends.append(value + spread)
        for place, ((_, row), end) in enumerate(zip(bars, ends, strict=True)):
            text = study.reproduced(row, unit).rsplit(" (", 1)[0]
            axes.text(end + max(ends) * 0.03, place, text, va="center", fontsize=7.5)
        axes.set_xlim(0, max(ends) * 1.62)

    return draw


def time_figure(study: Study) -> dict | None:
    """Which strategy trains fastest?"""
    metric, panels = "train_seconds", measured(study, "train_seconds")
    if not panels:
        return None
    unit = study.unit(metric)
    answers = []
    for model, bars in panels.items():
        ordered = sorted(bars, key=lambda bar: bar[1]["mean"])
        best = ordered[0]
        text = f"{bar_label(study, best[0])} for {model} ({study.reproduced(best[1], unit)} "
        text += f"{unit_text(unit)}"
        if len(ordered) > 1:
            second = ordered[1]
            gap = second[1]["mean"] - best[1]["mean"]
            close = gap <= (best[1]["std"] or 0) + (second[1]["std"] or 0)
            text += (
                f"; {bar_label(study, second[0])} is within the spread"
                if close
                else f"; next {bar_label(study, second[0])}, "
                f"{ratio_text(second[1]['mean'] / best[1]['mean'])} times as long"
            )
        answers.append(text + ")")
    caption = f"Least training time: {listed(answers)}."
    draw = bars_drawer(study, metric, unit)
    parts = draw_panels(study, "time", caption, panels, draw, heading(metric, unit))
    return figure_json(study, "time", "Which strategy trains fastest?", caption, parts)


def speedup_figure(study: Study) -> dict | None:
    """Does it scale?"""
    panels = measured(study, "speedup")
    if not panels:
        return None
    palette = colours(study)
    bands = {}

    def draw(axes: Any, bars: list) -> None:
        top = 1.0
        for place, (group, row) in enumerate(bars):
            bound = group["hardware"]["devices"] * group["hardware"]["nodes"]
            band = bands[group["id"]]
            if band:
                axes.barh(place, band[1] - band[0], left=band[0], height=0.9, color=INK, alpha=0.13)
            axes.plot([bound] * 2, [place - 0.34, place + 0.34], color=INK, lw=1.6)
            spread = row["std"] or 0.0
            colour = palette[bar_label(study, group)][0]
            axes.errorbar(
                row["mean"],
                place,
                xerr=spread,
                fmt="o",
                ms=5,
                color=colour,
                ecolor=INK,
                capsize=2.5,
                lw=0.9,
            )
            top = max(top, bound, row["mean"] + spread, band[1] if band else 1.0)
        axes.axvline(1, color=INK, lw=0.7, ls=":")
        axes.set_xlim(0, top * 1.06)

    answers = []
    for model, bars in panels.items():
        for group, _ in bars:
            bands[group["id"]] = noise_band(study.rows.get((group["baseline"], "noise_floor")))
        best, row = max(bars, key=lambda bar: bar[1]["mean"])
        bound = best["hardware"]["devices"] * best["hardware"]["nodes"]
        against = study.by_id[best["baseline"]]["variant"]
        says = reading(row["mean"], bound, bands[best["id"]], against)
        speed = study.show("speedup", row["mean"], "x", "x")
        text = f"{bar_label(study, best)} for {model}, {speed}× against {against} and a bound of "
        answers.append(text + f"{bound}× ({says})")
    caption = (
        f"Highest speedup: {listed(answers)}. Dot: mean ± standard deviation; bar: the bound that "
        "the number of devices sets; grey band: the noise floor, the baseline against itself."
    )
    parts = draw_panels(study, "speedup", caption, panels, draw, "Speedup (×)")
    return figure_json(study, "speedup", "Does it scale?", caption, parts)


def _tied(study: Study, bars: list, chosen: tuple[dict, dict]) -> str:
    """The names of all bars that are exactly as long as the chosen one."""
    return listed([bar_label(study, g) for g, row in bars if row["mean"] == chosen[1]["mean"]])


def memory_figure(study: Study) -> dict | None:
    """What does it cost in memory? On the accelerator where there is one, else the process."""
    metric = "peak_memory_device_mib"
    panels = measured(study, metric)
    if not panels:
        metric = "peak_memory_process_mib"
        panels = measured(study, metric)
    if not panels:
        return None
    unit = study.unit(metric)
    answers = []
    for model, bars in panels.items():
        ordered = sorted(bars, key=lambda bar: bar[1]["mean"])
        least, most = ordered[0], ordered[-1]
        text = f"{model} from {study.reproduced(least[1], unit)} {unit_text(unit)} "
        text += f"({_tied(study, bars, least)})"
        if least[1]["mean"] < most[1]["mean"]:
            text += f" to {study.reproduced(most[1], unit)} ({_tied(study, bars, most)})"
        answers.append(text)
    where = "on a device" if "device" in metric else "of a process, libraries included"
    caption = f"Highest memory {where}: {listed(answers)}."
    draw = bars_drawer(study, metric, unit)
    parts = draw_panels(study, "memory", caption, panels, draw, heading(metric, unit))
    return figure_json(study, "memory", "What does it cost in memory?", caption, parts)


def learning_figure(study: Study) -> dict | None:
    """Does it learn the same? Accuracy over epochs and over seconds, a row a model."""
    curves: dict[str, list[tuple[str, list[dict]]]] = {}
    for group in study.groups:
        runs = [study.metrics[cell] for cell in ([] if group["not_run"] else group["cells"])]
        histories = [run["history"] for run in runs if run["status"] == "ok" and run["history"]]
        if histories:
            mean = [_mean_epoch(entries) for entries in zip(*histories, strict=False)]
            curves.setdefault(group["model"], []).append((bar_label(study, group), mean))
    if not curves:
        return None
    metric, unit = "test_accuracy", study.unit("test_accuracy")
    answers = []
    for model, bars in measured(study, metric).items():
        ordered = sorted(bars, key=lambda bar: bar[1]["mean"])
        low, high = ordered[0], ordered[-1]
        text = f"for {model} from {study.reproduced(low[1], unit)} ({_tied(study, bars, low)})"
        if low is not high:
            text += f" to {study.reproduced(high[1], unit)} ({_tied(study, bars, high)})"
            gap = high[1]["mean"] - low[1]["mean"]
            within = gap <= (low[1]["std"] or 0) + (high[1]["std"] or 0)
            text += ", within the spread over seeds" if within else ""
        answers.append(text)
    caption = f"Final accuracy ({unit_text(unit)}): {listed(answers)}. Lines: mean over seeds."
    parts = _draw_curves(study, curves, caption, unit)
    return figure_json(study, "learning", "Does it learn the same?", caption, parts)


def _mean_epoch(entries: Iterable[dict]) -> dict:
    entries = list(entries)
    keys = ("epoch", "elapsed_seconds", "test_accuracy")
    return {key: fmean(entry[key] for entry in entries) for key in keys}


def _draw_curves(study: Study, curves: dict, alt: str, unit: str) -> list[dict]:
    import matplotlib
    from matplotlib.figure import Figure

    palette, time_unit = colours(study), study.unit("train_seconds") or "s"
    models = list(curves)
    each = max(1, int(PART_HEIGHT / 1.9) - 1)
    drawn = []
    with matplotlib.rc_context(STYLE | {"ytick.major.width": 0.6}):
        for number, start in enumerate(range(0, len(models), each), 1):
            part = models[start : start + each]
            names = list(dict.fromkeys(name for model in part for name, _ in curves[model]))
            legend_height = 0.2 * math.ceil(len(names) / 3) + 0.15
            figure = Figure((FIGURE_WIDTH, 1.8 * len(part) + legend_height), layout="constrained")
            grid = figure.subplots(len(part), 2, squeeze=False, sharey="row")
            handles = {}
            for (left, right), model in zip(grid, part, strict=True):
                for name, points in curves[model]:
                    colour, dash = palette[name]
                    heights = [convert(p["test_accuracy"], "fraction", unit) for p in points]
                    epochs = [p["epoch"] for p in points]
                    times = [convert(p["elapsed_seconds"], "s", time_unit) for p in points]
                    look = {
                        "color": colour,
                        "ls": dash,
                        "lw": 1.4,
                        "ms": 2.6,
                        "marker": "o" if len(points) < 16 else "",
                    }
                    (handles[name],) = left.plot(epochs, heights, **look)
                    right.plot(times, heights, **look)
                left.set_title(_cut(model, 30))
                left.set_ylabel(heading("test_accuracy", unit))
                left.set_xlabel("Epoch")
                left.xaxis.get_major_locator().set_params(integer=True)
                right.set_xlabel(f"Training time ({unit_text(time_unit)})")
                for axes in (left, right):
                    axes.grid(visible=True)
            figure.legend(handles.values(), handles, loc="outside lower left", ncols=3)
            drawn.append(svg_part(figure, f"{study.name}-learning-{number}", alt))
    return drawn


def svg_part(figure: Any, name: str, alt: str) -> dict:
    """The figure as an SVG that may stand in a page with others, and as an image in a PDF."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": name}), warnings.catch_warnings():
        # Text stays text: the reader's fonts draw it, whatever DejaVu lacks.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    root = ElementTree.fromstring(buffer.getvalue())  # noqa: S314  (our own)
    prefix = anchor("svg", hashlib.sha256(name.encode()).hexdigest()[:8])
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith("}metadata") or child.tag == f"{{{SVG}}}style":
                parent.remove(child)
    used = set(re.findall(r"url\(#([^)]+)\)", buffer.getvalue().decode()))
    used |= {element.get(HREF, "")[1:] for element in root.iter()}
    for element in root.iter():
        _tidy(element, used, prefix)
    root.set("fill", INK)
    root.set("font-family", "Libertinus Serif, DejaVu Sans, sans-serif")
    root.set("stroke-linejoin", "round")
    root.set("stroke-linecap", "butt")
    for key, value in (("role", "img"), ("aria-labelledby", f"{prefix}-t {prefix}-d")):
        root.set(key, value)
    for tag, text in (("desc", alt), ("title", f"Figure: {name}")):
        element = ElementTree.Element(f"{{{SVG}}}{tag}", {"id": f"{prefix}-{tag[0]}"})
        element.text = text
        root.insert(0, element)
    ElementTree.register_namespace("", SVG)
    svg = ElementTree.tostring(root, encoding="unicode").replace(INK, "currentColor")
    return {"svg": re.sub(r">\s+<", "><", svg), "alt": alt}


def _tidy(element: ElementTree.Element, used: set[str], prefix: str) -> None:
    """Unique ids, short numbers, text without a font of its own, no group without a purpose."""
    name = element.attrib.pop("id", None)
    if name in used:
        element.set("id", f"{prefix}-{name}")
    link = element.attrib.pop(HREF, None)
    if link is not None:
        element.set("href", f"#{prefix}-{link[1:]}")
    for key in ("d", "transform", "x", "y", "points"):
        if key in element.attrib:
            text = re.sub(r"-?\d+\.\d+", _rounded, element.get(key))
            element.set(key, re.sub(r"\s+", " ", text).strip())
    if re.match(r"rotate\(-?0 ", element.get("transform", "")):
        del element.attrib["transform"]
    for key in ("style", "clip-path"):
        if key in element.attrib:
            text = re.sub(r"font-family: [^;]+(; )?", "", element.get(key)).replace(": ", ":")
            if element.tag == f"{{{SVG}}}text":
                text = text.replace(f"; fill:{INK}", "")  # as the whole figure has
            element.set(key, re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", text))
    for place, child in enumerate(list(element)):
        while child.tag == f"{{{SVG}}}g" and not child.attrib.keys() - {"id"} and len(child) == 1:
            if child.get("id") in used:
                break
            element[place] = child = child[0]


def _rounded(match: re.Match) -> str:
    return f"{float(match[0]):.1f}".removesuffix(".0")


# --------------------------------------------------------------------------- cells


def group_panels(studies: list[Study], environments: dict[str, str]) -> list[dict]:
    """What stands behind every number: the groups' settings and their cells, each cell once."""
    wanted = sum(len(study.metrics[c]["history"]) for study in studies for c in study.metrics)
    thin = max(1, math.ceil(wanted / HISTORY_BUDGET))
    logs = {
        cell: _log(study.cells_folder / cell / "log.txt")
        for study in studies
        for cell in study.metrics
    }
    size = sum(len(line) + 1 for log in logs.values() for line in log)
    lines = LOG_LINES if size <= LOG_BUDGET else max(5, LOG_LINES * LOG_BUDGET // size)
    panels, seen = [], set()
    for study in studies:
        for group in study.groups:
            if group["not_run"]:
                continue
            first = study.metrics[group["cells"][0]]["cell"]
            panel = {
                "id": study.panel(group),
                "study": study.name,
                "title": f"{group['model']}, {group['variant']}, "
                f"{hardware_text(group['hardware'])}",
                "status": study.status(group),
                "group": group["id"],
                "settings": _settings(first),
                "cells": [],
                "elsewhere": [],
            }
            for cell in group["cells"]:
                where = "elsewhere" if cell in seen else "cells"
                panel[where].append(
                    {"id": cell, "anchor": anchor("c", cell)}
                    if cell in seen
                    else cell_panel(study, cell, environments, thin) | {"log": logs[cell][-lines:]}
                )
                seen.add(cell)
            panels.append(panel)
    return panels


def _settings(cell: dict) -> list[list[str]]:
    pairs = [
        ["model", f"{cell['model']['name']}; options: {mapping_text(cell['model']['options'])}"],
        [
            "strategy",
            f"{cell['strategy']['name']}; options: {mapping_text(cell['strategy']['options'])}",
        ],
        ["hardware", f"{cell['hardware']['name']}: {hardware_text(cell['hardware'])}"],
    ]
    data = cell["dataset"]
    parts = [
        f"{part}: {'all' if data[f'{part}_samples'] is None else data[f'{part}_samples']}"
        for part in ("train", "test")
    ]
    pairs.append(["dataset", f"{data['name']} ({', '.join(parts)})"])
    pairs += _settings_pairs(cell["training"])
    return [*pairs, ["stack", cell["stack"]], ["deployment", cell["deployment"]]]


def environment_key(environment: dict) -> str:
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


def environment_json(number: int, environment: dict) -> dict:
    """One environment, in words."""
    machine = environment["machine"]
    image = environment["image"]
    packages = (f"{name} {version}" for name, version in sorted(environment["packages"].items()))
    drivers = dict.fromkeys(
        card["driver"] for card in machine.get("accelerators") or [] if card.get("driver")
    )
    pairs = [
        ["Machine", machine_text(machine)],
        ["System", ", ".join(filter(None, (machine.get("os"), machine.get("kernel"))))],
        ["Driver", ", ".join(drivers)],
        ["Stack", f"{environment['stack']} on {environment['deployment']}"],
        ["Image", f"{image} ({environment['image_digest']})" if image else ""],
        ["Python", environment["python"]],
        ["Packages", ", ".join(packages)],
        ["Differs from the lock", ", ".join(environment["lock_mismatch"]) or "no"],
    ]
    return {"id": f"e{number}", "name": f"E{number}", "pairs": [pair for pair in pairs if pair[1]]}


def _yes(value: bool | None) -> str:
    return {True: "yes", False: "no", None: "unknown"}[value]


CELL_NUMBERS = (  # key of metrics.json and its unit
    ("train_seconds", "s"),
    ("samples_per_second", "samples/s"),
    ("startup_seconds", "s"),
    ("test_accuracy", "fraction"),
    ("test_precision_macro", "fraction"),
    ("test_recall_macro", "fraction"),
    ("test_f1_macro", "fraction"),
    ("test_specificity_macro", "fraction"),
)


def cell_panel(study: Study, cell: str, environments: dict, thin: int) -> dict:
    """Everything about one cell but its log, formatted; every ``thin``-th epoch."""
    metrics = study.metrics[cell]
    environment = metrics["environment"]
    path = study.cells_folder / cell / "metrics.json"
    numbers = [
        [
            label(key),
            fixed(metrics[key], decimals([metrics[key]], unit))
            + ("" if unit == "fraction" else f" {unit}"),
        ]
        for key, unit in CELL_NUMBERS
        if metrics[key] is not None
    ]
    for place in ("processes", "devices"):
        peaks = [fixed(entry["mib"], 1) for entry in metrics["peak_memory_mib"][place]]
        if peaks:
            numbers.append([f"Peak memory, {place}", ", ".join(peaks) + " MiB"])
    if metrics["energy_joules"] is not None:
        numbers.append(["Energy", f"{fixed(metrics['energy_joules'], 1)} J"])
    if metrics["steps_per_epoch"] is not None:
        steps = f"{metrics['steps_per_epoch']} an epoch, {metrics['warmup_steps']} warm-up"
        numbers.append(["Steps", steps])
    facts = [
        ["processes", mapping_text(environment["world_size"])],
        ["backend", mapping_text(environment["backend"])],
        ["cores", ", ".join(map(str, environment["cores"])) or "not pinned"],
        ["started", f"{moment(metrics['started'])} UTC"],
        ["finished", f"{moment(metrics['finished'])} UTC"],
        ["resumed from epoch", mapping_text(metrics["resumed_from"])],
        ["git commit", environment["git_commit"] or "unknown"],
        ["uncommitted changes", _yes(environment["git_dirty"])],
        ["code digest", environment["code_digest"]],
        ["dataset digest", environment["dataset_digest"]],
    ]
    if environment.get("oversubscribed"):
        facts.insert(0, ["cores shared", "yes: its times mean nothing"])
    status = STATUS.get(metrics["status"], metrics["status"])
    return {
        "id": cell,
        "anchor": anchor("c", cell),
        "seed": str(metrics["cell"]["seed"]),
        "status": status + (f": {metrics['reason']}" if metrics["reason"] else ""),
        "tone": "good" if metrics["status"] == "ok" else "bad",
        "numbers": numbers,
        "facts": facts,
        "environment": environments[environment_key(environment)],
        "history": _history(metrics["history"], thin),
        "confusion": _confusion(metrics["confusion"]),
        "command": f"snakemake {shlex.quote(str(path))}",
        "force": f"snakemake {shlex.quote(str(path))} --force",
    }


def _history(history: list[dict], thin: int) -> dict | None:
    if not history:
        return None
    kept = [e for i, e in enumerate(history) if i % thin == 0 or i == len(history) - 1]
    note = "" if thin == 1 else f"Every {thin}th epoch; all of them are in metrics.json."

    def number(value: float | None, places: int) -> str:
        return ABSENT if value is None else fixed(value, places)

    rows = [
        [
            str(entry["epoch"]),
            number(entry["train_loss"], 4),
            number(entry["test_loss"], 4),
            number(entry["test_accuracy"], 4),
            f"{entry['learning_rate']:.3g}",
            number(entry["seconds"], 2),
            number(entry["elapsed_seconds"], 2),
            number(entry["samples_per_second"], 0),
        ]
        for entry in kept
    ]
    columns = [
        "epoch",
        "train loss",
        "test loss",
        "accuracy",
        "learning rate",
        "seconds",
        "total seconds",
        "samples/s",
    ]
    return {"columns": columns, "rows": rows, "note": note}


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


def _log(path: Path) -> list[str]:
    """The last lines of a log as a terminal would show them."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ParbenchError(f"{path}: cannot be read ({error})") from None
    shown = []
    for line in text.rstrip().split("\n")[-LOG_LINES:]:
        line = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rstrip("\r").rsplit("\r", 1)[-1]
        line = "".join(
            c if c.isprintable() or c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in line
        )
        shown.append(_cut(line, LOG_WIDTH))
    return shown


def cells_table(studies: list[Study], environments: dict[str, str]) -> dict:
    """Every cell in a row."""
    rows, seen = [], set()
    for study in studies:
        for group in study.groups:
            for cell in [] if group["not_run"] else group["cells"]:
                if cell in seen:
                    continue
                seen.add(cell)
                metrics = study.metrics[cell]
                environment = metrics["environment"]
                seconds, accuracy = metrics["train_seconds"], metrics["test_accuracy"]
                rows.append(
                    [
                        text_cell(cell, link=anchor("c", cell)),
                        text_cell(str(metrics["cell"]["seed"]), sort=metrics["cell"]["seed"]),
                        text_cell(
                            STATUS.get(metrics["status"], metrics["status"]),
                            tone="plain" if metrics["status"] == "ok" else "bad",
                        ),
                        _plain(seconds, 2),
                        _plain(accuracy, 4),
                        text_cell(moment(metrics["started"])),
                        text_cell(
                            environments[environment_key(environment)],
                            link=environments[environment_key(environment)].lower(),
                        ),
                        text_cell(environment["code_digest"][:8]),
                    ]
                )
    columns = [
        "Seed",
        "Status",
        "Training time (s)",
        "Test accuracy",
        "Started (UTC)",
        "Environment",
        "Code",
    ]
    return make_table(
        "t-cells", "All cells", [("", ["Cell"]), ("", columns)], rows, empty="No cell has run."
    )


def _plain(value: float | None, places: int) -> dict:
    return (
        absent_cell("no number") if value is None else text_cell(fixed(value, places), sort=value)
    )


# --------------------------------------------------------------------------- collect


def summary(studies: list[Study], verdicts: dict) -> dict:
    """The first page: counts of verdicts, machines, stacks, dates."""
    total = Counter(row[-1]["verdict"] for row in verdicts["rows"])
    order = [name for name in VERDICTS if name in total]
    order += sorted(name for name in total if name not in VERDICTS)
    runs = {cell: metrics for study in studies for cell, metrics in study.metrics.items()}
    started = sorted(run["started"] for run in runs.values())
    finished = sorted(run["finished"] for run in runs.values())
    environments = [run["environment"] for run in runs.values()]
    commits = Counter(
        (env["git_commit"] or "unknown")[:12]
        + (" with uncommitted changes" if env["git_dirty"] else "")
        for env in environments
    )
    differs = sorted({text for env in environments for text in env["lock_mismatch"]})
    states = Counter(study.status(group) for study in studies for group in study.groups)
    groups = sum(states.values())

    def several(texts: Iterable[str]) -> str:
        return "; ".join(dict.fromkeys(texts)) or "none"

    facts = [
        ["Studies", listed([study.name for study in studies])],
        ["Groups", f"{groups}: " + listed([f"{n} {state}" for state, n in states.items()])],
        ["Cells", str(len(runs))],
        ["Machine", several(machine_text(env["machine"]) for env in environments)],
        ["Stack", several(study.stack for study in studies)],
        ["Deployment", several(study.deployment for study in studies)],
        ["Runs", f"{moment(started[0])} to {moment(finished[-1])} UTC" if runs else "none"],
        ["Code", several(commits)],
    ]
    if differs:
        facts.append(["Differs from the lock", ", ".join(differs)])
    return {
        "sentence": _headline(groups, states, verdicts),
        "facts": facts,
        "counts": [
            {"verdict": name, "count": str(total[name]), "tone": TONES.get(name, "plain")}
            for name in order
        ],
        "table": _count_table(studies, order),
    }


def _headline(groups: int, states: Counter, verdicts: dict) -> str:
    published = len(verdicts["heads"][0]["columns"])
    with_published = [row for row in verdicts["rows"] if row[published]["text"] != ABSENT]
    said = Counter(row[-1]["verdict"] for row in with_published)
    ran = groups - states["not run"]
    text = f"{ran} of {count(groups, 'group')} ran here. "
    if not with_published:
        return text + "No number of this report has a published counterpart."
    parts = [f"{said[name]} {name}" for name in VERDICTS if name in said]
    return text + f"Of {count(len(with_published), 'published number')}: {listed(parts)}."


def _count_table(studies: list[Study], order: list[str]) -> dict:
    rows = []
    for study in studies:
        total = Counter(row[-1]["verdict"] for row in verdict_table([study])["rows"])
        cells = [text_cell(str(total[name]), sort=total[name]) for name in order]
        rows.append([text_cell(study.study["title"], link=anchor("study", study.name)), *cells])
    return make_table(
        "t-counts", "Verdicts by study", [("", ["Study"]), ("", order)], rows, empty="No study."
    )


def timestamp(studies: list[Study]) -> int:
    """Seconds since 1970 of the last run's end, the only date in a file; 0 without runs."""
    ends = [run["finished"] for study in studies for run in study.metrics.values()]
    return int(datetime.fromisoformat(max(ends)).timestamp()) if ends else 0


def collect(plans: list[Path], tables: list[Path], cells: Path) -> dict:
    """All that the report shows, formatted, as JSON. ParbenchError for what is missing."""
    by_name = {path.stem: path for path in tables}
    studies = []
    for plan in plans:
        if plan.stem not in by_name:
            raise ParbenchError(
                f"{plan}: no table for study {plan.stem}; "
                f"add --table results/tables/{plan.stem}.csv"
            )
        studies.append(Study(plan, by_name[plan.stem], cells))
    environments, described = {}, []
    for study in studies:
        for metrics in study.metrics.values():
            key = environment_key(metrics["environment"])
            if key not in environments:
                described.append(environment_json(len(described) + 1, metrics["environment"]))
                environments[key] = described[-1]["name"]
    verdicts = verdict_table(studies)
    return {
        "schema_version": 1,
        "title": "parbench: published and reproduced",
        "timestamp": timestamp(studies),
        "summary": summary(studies, verdicts),
        "studies": [study_json(study) for study in studies],
        "verdicts": verdicts,
        "cells": cells_table(studies, environments),
        "groups": group_panels(studies, environments),
        "environments": described,
    }


# --------------------------------------------------------------------------- HTML and PDF


def render_html(data: dict) -> str:
    """The report as one HTML file without any outside reference."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = (TEMPLATES / "table.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # ElementTree wrote these; inside HTML the namespace is understood.
    environment.filters["inline_svg"] = lambda svg: Markup(  # noqa: S704
        svg.replace(f' xmlns="{SVG}"', "")
    )
    return environment.get_template("template.html.j2").render(
        **data,
        style=Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),  # noqa: S704
        script=Markup(script),  # noqa: S704
        script_digest=digest,
    )


def render_pdf(data: dict) -> bytes:
    """The report as PDF: the same tables and figures, laid out by Typst, tagged (PDF/UA-1)."""
    import matplotlib
    import typst

    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"  # DejaVu: more scripts and signs
    try:
        compiler = typst.Compiler(
            input=(TEMPLATES / "template.typ").read_bytes(),
            font_paths=[str(fonts)],
            ignore_system_fonts=True,  # the same bytes on every machine
            sys_inputs={"data": json.dumps(data, ensure_ascii=False)},
        )
        return compiler.compile(format="pdf", pdf_standards=["ua-1"], timestamp=data["timestamp"])
    except typst.TypstError as error:
        raise ParbenchError(
            f"{TEMPLATES / 'template.typ'}: Typst cannot lay out the report ({error}); "
            "install typst>=0.15, or report this with results/report.json"
        ) from None


def _read_report(path: Path) -> dict:
    data = read_json(path)
    if not isinstance(data, dict) or data.get("schema_version") != 1 or "summary" not in data:
        raise ParbenchError(f"{path}: not a report.json of this version; delete it and run again")
    return data


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    gather = commands.add_parser("collect", help="plans, tables and metrics -> report.json")
    gather.add_argument("--plan", type=Path, nargs="+", required=True)
    gather.add_argument("--table", type=Path, nargs="+", required=True)
    gather.add_argument("--cells", type=Path, required=True, help="results/cells")
    gather.add_argument("--out", type=Path, required=True)
    for name in ("html", "pdf"):
        command = commands.add_parser(name, help=f"report.json -> {name.upper()}")
        command.add_argument("--data", type=Path, required=True, help="results/report.json")
        command.add_argument("--out", type=Path, required=True)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Run one of the three steps."""
    options = arguments(argv)
    if options.command == "collect":
        write_json(options.out, collect(options.plan, options.table, options.cells))
    elif options.command == "html":
        html = render_html(_read_report(options.data))
        size = len(html.encode())
        if size > HTML_LIMIT:
            text = f"warning: {options.out} has {size / 1e6:.1f} MB: fewer studies make it smaller"
            print(text, file=sys.stderr)
        write_atomically(options.out, html)
    else:
        write_atomically(options.out, render_pdf(_read_report(options.data)))


if __name__ == "__main__":
    run_main(main)
