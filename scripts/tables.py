"""metrics.json files -> one tidy CSV a study: statistics over seeds, published values, verdicts.

One row a (group, metric); a group is a cell without its seed. docs/verdicts.md says in words how a
number is averaged and how a verdict is reached. ``--show`` prints the closing table of a run.
"""

from __future__ import annotations

import argparse
import functools
import math
import shlex
import statistics
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats  # scikit-learn, which parbench depends on, brings it

import files
import measure
import shape
from certificate import Certificates
from errors import ParbenchError, run_main
from printable import printable
from seeds import DECIDE_FROM, NOT_REACHED, TRIM_FROM, too_few

# fmt: off
COLUMNS = [
    "study", "group", "model", "variant", "strategy", "options", "hardware", "device", "devices",
    "nodes", "dataset", "stack", "deployment", "machine", "status", "metric", "unit", "n_seeds",
    "mean", "std", "ci_low", "ci_high", "min", "max", "published", "published_unit",
    "published_table", "ratio", "verdict", "reason", "cells",
]
# fmt: on

CONFIDENCE = 0.95
SHOWN_OPERATORS = 5  # those with the largest self time, beside the published ones
SHOW_WIDTH = 100

NOT_RUN = "not run"
NOT_MEASURED = "not measured"
NO_PUBLISHED_VALUE = "no published value"
NOT_COMPARABLE = "not comparable"
UNDECIDED = "undecided"
REPRODUCED = "reproduced"
WITHIN_NOISE = "within noise"
SUSPICIOUS = "better than published (suspicious)"
NOT_REPRODUCED = "not reproduced"

# What a failed run is called in the status column and in sentences.
FAILURES = {"out_of_memory": "out of memory", "diverged": "diverged"}

# The metric that needs the published accuracy of its group.
TO_PUBLISHED = "seconds_to_published_accuracy"

# Spellings of published values.
UNIT_ALIASES = {"ratio": "x", "1/s": "samples/s"}
METRIC_ALIASES = {"peak_memory_mib": "peak_memory_device_mib"}

# Columns that only say where a value stands. Rows that differ in nothing else are one value.
PLACE_COLUMNS = {"document", "table", "published_value", "published_unit", "note"}


@dataclass(frozen=True)
class Metric:
    """One metric of the table.

    ``kind`` decides what makes it comparable with a published value: an ``accuracy`` needs the
    same data and work, an ``absolute`` number the same hardware too, a ``ratio`` as many devices.
    """

    name: str
    unit: str
    kind: str
    higher_is_better: bool
    read: Callable[[Mapping], float | None] | None = None  # of one run; None: needs more than it
    clocked: bool = False
    optional: bool = False  # no row where no run has a value
    named: bool = False  # no row where no table names it
    of: str = "one"  # model; "several" that are trained together, or "any" number

    @property
    def depends_on_clock(self) -> bool:
        """Whether a busy machine changes it."""
        return self.clocked or self.kind == "ratio"


def _key(name: str) -> Callable[[Mapping], float | None]:
    return lambda run: run[name]


def _epoch_seconds(run: Mapping) -> float | None:
    return statistics.fmean(run["epoch_seconds"]) if run["epoch_seconds"] else None


def _inference_seconds(run: Mapping) -> float | None:
    return run["inference"] and run["inference"]["seconds"]


def _inference_speed(run: Mapping) -> float | None:
    found = run["inference"]
    return found and found["samples"] / found["seconds"]


def _peak_memory(where: str) -> Callable[[Mapping], float | None]:
    return lambda run: max((entry["mib"] for entry in run["peak_memory_mib"][where]), default=None)


def _inferred(run: Mapping) -> Mapping | None:
    """What the operator profile of a run says of inference."""
    found = run.get("profile")
    return found["inference"] if found is not None and found["kind"] == "operators" else None


def _clock(run: Mapping) -> str:
    """Whose time an operator's is: the accelerator's where there is one."""
    return "cpu" if run["cell"]["hardware"]["device"] == "cpu" else "device"


def _profiled(run: Mapping) -> float | None:
    found = _inferred(run)
    return found and found[f"{_clock(run)}_self_seconds"]


def _of_operator(operator: str, kind: str) -> Callable[[Mapping], float | None]:
    """``kind`` is self or total."""

    def read(run: Mapping) -> float | None:
        found = _inferred(run) or {"operators": []}
        key = f"{_clock(run)}_{kind}_seconds"
        return next((each[key] for each in found["operators"] if each["name"] == operator), None)

    return read


def operator_metric(name: str) -> Metric:
    """``operator_self_seconds:<operator>`` or ``operator_total_seconds:<operator>``, of inference.

    Not clocked: only an instrumented run has it, and what that costs is spread over all operators.
    """
    what, _, operator = name.partition(":")
    return Metric(name, "s", "absolute", False, _of_operator(operator, what.split("_")[1]))


def is_operator(metric: str) -> bool:
    """Whether it is the time of one operator."""
    return metric.startswith("operator_")


def _accuracy(name: str) -> Metric:
    return Metric(name, "fraction", "accuracy", True, _key(name))


METRICS = {
    metric.name: metric
    for metric in (
        _accuracy("test_accuracy"),
        _accuracy("test_precision_macro"),
        _accuracy("test_recall_macro"),
        _accuracy("test_f1_macro"),
        _accuracy("test_specificity_macro"),
        Metric("train_seconds", "s", "absolute", False, _key("train_seconds"), clocked=True),
        Metric(
            "total_seconds",
            "s",
            "absolute",
            False,
            _key("total_seconds"),
            clocked=True,
            of="several",
        ),
        Metric("epoch_seconds", "s", "absolute", False, _epoch_seconds, clocked=True),
        Metric(TO_PUBLISHED, "s", "absolute", False, clocked=True),
        Metric("startup_seconds", "s", "absolute", False, _key("startup_seconds"), clocked=True),
        Metric(
            "samples_per_second",
            "samples/s",
            "absolute",
            True,
            _key("samples_per_second"),
            clocked=True,
        ),
        Metric(
            "inference_seconds",
            "s",
            "absolute",
            False,
            _inference_seconds,
            clocked=True,
            optional=True,
        ),
        Metric(
            "inference_samples_per_second",
            "samples/s",
            "absolute",
            True,
            _inference_speed,
            clocked=True,
            optional=True,
        ),
        Metric("peak_memory_process_mib", "MiB", "absolute", False, _peak_memory("processes")),
        Metric(
            "peak_memory_device_mib",
            "MiB",
            "absolute",
            False,
            _peak_memory("devices"),
            optional=True,
        ),
        Metric("profile_self_seconds", "s", "absolute", False, _profiled, optional=True),
        Metric("speedup", "x", "ratio", True, of="any"),
        Metric("throughput_ratio", "x", "ratio", True, named=True),
        Metric("parallel_efficiency", "fraction", "ratio", True, named=True, of="any"),
        Metric("accuracy_difference", "fraction", "accuracy", True),
        Metric("noise_floor", "x", "ratio", True, of="any"),
    )
}
DEFAULT_METRICS = ("test_accuracy", "train_seconds", "speedup")


# --------------------------------------------------------------------------------------------------
# Statistics


@dataclass(frozen=True)
class Summary:
    """Numbers over the seeds of a group; NaN where there are too few."""

    n: int
    mean: float = math.nan
    std: float = math.nan
    ci_low: float = math.nan
    ci_high: float = math.nan
    min: float = math.nan
    max: float = math.nan

    @property
    def half_width(self) -> float:
        """Half the width of the confidence interval."""
        return (self.ci_high - self.ci_low) / 2


def summarise(values: Iterable[float], *, trim: bool = False) -> Summary:
    """Mean, sample standard deviation, 95 % t-interval of the mean, minimum and maximum.

    With ``trim`` and at least five values, the mean leaves out the smallest and the largest one and
    the interval is Tukey and McLaughlin's for a trimmed mean; the standard deviation, minimum and
    maximum are always those of all values.
    """
    ordered = np.sort(np.asarray(list(values), dtype=float))
    n = len(ordered)
    if n == 0:
        return Summary(0)
    mean, low, high = float(ordered.mean()), float(ordered[0]), float(ordered[-1])
    if n == 1:
        return Summary(1, mean, min=low, max=high)
    standard_error, freedom = ordered.std(ddof=1) / math.sqrt(n), n - 1
    if trim and n >= TRIM_FROM:
        winsorised = np.clip(ordered, ordered[1], ordered[-2])
        mean = float(ordered[1:-1].mean())
        standard_error = winsorised.std(ddof=1) / ((1 - 2 / n) * math.sqrt(n))
        freedom = n - 3
    half = float(_t_quantile(freedom) * standard_error)
    return Summary(n, mean, float(ordered.std(ddof=1)), mean - half, mean + half, low, high)


def noise_floor(seconds: Iterable[float]) -> Summary:
    """Ratios of the training times of runs that differ in nothing but the seed: what 1 looks like.

    Over all ordered pairs (i, j), i != j, of the n runs, so that every ratio stands beside its
    inverse: mean, standard deviation, minimum and maximum of the ratios. The interval is the one
    in which a single such ratio lies with 95 %: exp(-k) to exp(k), k = t(n - 1) * sqrt(2) * s,
    s being the sample standard deviation of the logarithms of the times.
    """
    times = np.asarray(list(seconds), dtype=float)
    n = len(times)
    if n < 2:
        return Summary(n)
    pairs = ~np.eye(n, dtype=bool)
    ratios = (times[:, None] / times[None, :])[pairs]
    # Taking every pair in both directions makes this mean square of the log ratios exactly
    # 2 s^2, s^2 being the unbiased variance: the n(n-1) pairs need no further correction.
    half = float(_t_quantile(n - 1) * math.sqrt(np.mean(np.log(ratios) ** 2)))
    return Summary(
        n,
        float(ratios.mean()),
        float(ratios.std()),
        math.exp(-half),
        math.exp(half),
        float(ratios.min()),
        float(ratios.max()),
    )


def _t_quantile(freedom: int) -> float:
    return stats.t.ppf((1 + CONFIDENCE) / 2, freedom)


# --------------------------------------------------------------------------------------------------
# Published values


@dataclass(frozen=True)
class Reference:
    """A published value in the metric's unit, with the hardware that it was measured on."""

    value: float
    unit: str
    table: str
    hardware: str
    nodes: int
    devices: int  # per node
    work: tuple = ()  # batch and precision, as printed

    def describe_hardware(self) -> str:
        """For example ``2x A100``."""
        return _on_nodes(self.nodes, f"{self.devices}x {self.hardware}")


def read_published(path: str | Path) -> pd.DataFrame:
    """Read a file of published values; ParbenchError when it is missing or lacks a column."""
    try:
        frame = pd.read_csv(path)
    except FileNotFoundError:
        raise ParbenchError(f"{path}: no such file") from None
    except (ValueError, OSError) as error:  # pandas' parser errors are ValueErrors
        raise ParbenchError(f"{path}: cannot be read as CSV ({error})") from None
    needed = {"study", "table", "hardware", "nodes", "devices_per_node", "metric", "value", "unit"}
    if missing := sorted(needed - set(frame.columns)):
        raise ParbenchError(f"{path}: lacks the column(s) {', '.join(missing)}")
    for column in ("value", "nodes", "devices_per_node"):
        numbers = pd.to_numeric(frame[column], errors="coerce")
        if numbers.isna().any():
            line = int(numbers.isna().to_numpy().argmax())
            value = frame[column].iloc[line]
            raise ParbenchError(f"{path}: line {line + 2}: {column} is {value!r}, not a number")
    return frame


def read_source(source: str | None, paths: Iterable[str | Path]) -> pd.DataFrame:
    """The file of ``paths`` that holds the published values of ``source``; empty for None.

    Raises ParbenchError where none of them holds it, or more than one.
    """
    if source is None:
        return pd.DataFrame(columns=["study"])
    frames = {str(path): read_published(path) for path in paths}
    holding = [path for path, frame in frames.items() if (frame["study"] == source).any()]
    if not holding:
        raise ParbenchError(
            f"published: {source!r}: no row of {', '.join(frames) or 'no file'} has it in column "
            "`study`; add the source's rows, or correct the study's key `published`"
        )
    if len(holding) > 1:
        raise ParbenchError(
            f"published: {source!r} has rows in {' and in '.join(holding)}; keep them in one file"
        )
    return frames[holding[0]]


class Published:
    """The published values of one study."""

    def __init__(self, frame: pd.DataFrame, study: str | None) -> None:
        self._frame = frame
        self._study = study

    def find(self, group: Mapping, metric: Metric) -> Reference | None:
        """The value that the group's ``published`` selection names, or None.

        Raises ParbenchError when the selection is ambiguous, names no column, or has another unit.
        """
        rows = self._selected(group, metric=metric.name)
        if rows.empty:
            return None
        self._refuse_ambiguity(group, metric, rows)
        row = rows.iloc[0]
        unit = UNIT_ALIASES.get(row["unit"], row["unit"])
        if unit != metric.unit:
            raise ParbenchError(
                f"published values: {_row_name(row)}: {metric.name} is in {row['unit']!r}; "
                f"write it in {metric.unit!r}"
            )
        return Reference(
            value=float(row["value"]),
            unit=unit,
            table=", ".join(dict.fromkeys(rows["table"].dropna().astype(str))),
            hardware=str(row["hardware"]),
            nodes=int(row["nodes"]),
            devices=int(row["devices_per_node"]),
            work=tuple(_spelling(row.get(column)) for column in ("batch_size", "precision")),
        )

    def operators(self, group: Mapping) -> list[str]:
        """The operators that the source tells times of, for the rows that the group names."""
        rows = self._selected(group)
        if rows.empty:
            return []
        told = (name.partition(":") for name in rows["metric"])
        return list(dict.fromkeys(name for what, _, name in told if is_operator(what)))

    def _selected(self, group: Mapping, **also: str) -> pd.DataFrame:
        """The rows that the group's ``published`` names, and ``also`` these columns."""
        selection, rows = group["published"], self._frame
        if selection is None or self._study is None:
            return rows[:0]
        for column, wanted in {"study": self._study, **selection, **also}.items():
            if column not in rows.columns:
                raise ParbenchError(
                    f"group {group['id']}: published: {column!r} is no column of the published "
                    f"values; columns: {', '.join(rows.columns)}"
                )
            values = rows[column].map(_spelling)
            if column == "metric":
                values = values.replace(METRIC_ALIASES)
            several = wanted if isinstance(wanted, list) else [wanted]
            rows = rows[values.isin([_spelling(each) for each in several])]
        return rows

    def speedup(self, group: Mapping, baseline: Mapping) -> tuple[Reference | None, str]:
        """The published speedup, from both training times if they are there, else as printed.

        Returns it, or None and the reason why the two times give none.
        """
        own, base = (self.find(each, METRICS["train_seconds"]) for each in (group, baseline))
        if own is None or base is None:
            return self.find(group, METRICS["speedup"]), ""
        if own.hardware != base.hardware:
            return (
                None,
                f"published times are of different hardware: {base.hardware}, {own.hardware}",
            )
        if own.work != base.work:
            return None, "published times are of a different batch or precision"
        return Reference(
            value=base.value / own.value,
            unit="x",
            table=", ".join(dict.fromkeys((base.table, own.table))),
            hardware=own.hardware,
            nodes=own.nodes,
            devices=own.devices,
        ), ""

    @staticmethod
    def _refuse_ambiguity(group: Mapping, metric: Metric, rows: pd.DataFrame) -> None:
        first = rows.iloc[0]
        for _, other in rows.iloc[1:].iterrows():
            differ = [
                column
                for column in rows.columns
                if column not in PLACE_COLUMNS
                and _spelling(first[column]) != _spelling(other[column])
            ]
            if not differ:
                continue
            narrow = [column for column in differ if column not in ("value", "unit")] or ["table"]
            raise ParbenchError(
                f"group {group['id']}: published: {dict(group['published'])} selects two values of "
                f"{metric.name}: {_row_name(first)} and {_row_name(other)}; narrow the selection "
                f"by {' or '.join(narrow)}"
            )


def _row_name(row: pd.Series) -> str:
    place = ", ".join(str(row[key]) for key in ("document", "table") if key in row.index)
    return f"line {row.name + 2} ({place}: {row['value']} {row['unit']})"


def _spelling(value: Any) -> str | float:
    """One spelling of a table's cell, so that 16, 16.0 and "16" agree, and empty with None."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value).strip()
    return "" if math.isnan(number) else number


# --------------------------------------------------------------------------------------------------
# Groups and their runs


@dataclass(frozen=True)
class Group:
    """A group of the plan with the runs that it has."""

    plan: Mapping
    runs: tuple[Mapping, ...]

    @property
    def ok(self) -> list[Mapping]:
        """The runs that ended well: only these are averaged."""
        return [run for run in self.runs if run["status"] == "ok"]

    @property
    def status(self) -> str:
        """``ok``, ``not run`` or, for example, ``diverged 1 of 3``."""
        if self.plan["not_run"]:
            return NOT_RUN
        counts = {name: sum(run["status"] == name for run in self.runs) for name in FAILURES}
        failed = [
            f"{FAILURES[name]} {count} of {len(self.runs)}"
            for name, count in counts.items()
            if count
        ]
        return ", ".join(failed) or "ok"

    def failures(self) -> list[str]:
        """One sentence a run that did not end well."""
        return [
            f"seed {run['cell']['seed']} {FAILURES[run['status']]}"
            + (f" ({run['reason']})" if run["reason"] else "")
            for run in self.runs
            if run["status"] != "ok"
        ]

    def cautions(self, metric: Metric) -> list[str]:
        """Why the metric means less than it seems, whatever it is set beside."""
        # A strategy may know of more than the settings show: its module says so, the plan tells.
        stated = (self.plan.get("comparable") or {}).get(metric.name)
        cautions = [stated] if stated else []
        if metric.depends_on_clock and self.plan["training"]["mode"] == "deterministic":
            cautions.append("deterministic mode is not for timing")
        if metric.depends_on_clock and self.plan["training"]["profile"] != "none":
            cautions.append("an instrumented run is not for timing")
        if metric.depends_on_clock and any(
            run["environment"]["oversubscribed"] for run in self.runs
        ):
            cautions.append("its devices shared cores")
        return cautions

    def machines(self) -> list[str]:
        """Fingerprints of the machines that ran it."""
        return list(dict.fromkeys(name for run in self.runs for name in _fingerprints(run)))

    def accelerators(self) -> list[str]:
        """Names of the accelerators: as measured, or as planned where nothing was recorded."""
        seen = {gpu["name"] for run in self.runs for gpu in _machine(run)["accelerators"]}
        planned = self.plan["hardware"]["gpu_model"]
        return sorted(seen) or ([planned] if planned else [])

    def describe_hardware(self) -> str:
        """For example ``2 CPU cores`` or ``2x NVIDIA H200``."""
        hardware = self.plan["hardware"]
        count = hardware["devices"]
        if hardware["device"] == "cpu":
            cores = f"{count} CPU core{'s' if count > 1 else ''}"
            if hardware["threads"] > 1:
                cores = f"{count}x {hardware['threads']} CPU cores"
            return _on_nodes(hardware["nodes"], cores)
        names = " or ".join(self.accelerators()) or "unknown GPU"
        return _on_nodes(hardware["nodes"], f"{count}x {names}")

    def measures(self, metric: Metric) -> bool:
        """Whether the metric is one of a single model, or of several, as the group is."""
        return metric.of in ("any", "several" if "members" in self.plan else "one")

    @property
    def devices(self) -> int:
        """All that it uses."""
        return self.plan["hardware"]["devices"] * self.plan["hardware"]["nodes"]

    def has_layout_of(self, reference: Reference) -> bool:
        """Whether it used as many nodes and devices as the published run."""
        hardware = self.plan["hardware"]
        return (hardware["nodes"], hardware["devices"]) == (reference.nodes, reference.devices)

    def has_hardware_of(self, reference: Reference) -> bool:
        """Whether it used as many devices of the same kind and model as the published run."""
        if self.plan["hardware"]["device"] == "cpu":
            same_model = reference.hardware.lower() == "cpu"
        else:
            names = self.accelerators()
            same_model = bool(names) and all(_names_model(n, reference.hardware) for n in names)
        return same_model and self.has_layout_of(reference)


def _on_nodes(nodes: int, devices: str) -> str:
    return devices if nodes == 1 else f"{nodes} nodes of {devices}"


def _machine(run: Mapping) -> Mapping:
    return run["environment"]["machine"]


def _fingerprints(run: Mapping) -> list[str]:
    """Of its machine, after those on which it was interrupted."""
    before = [place["machine"] for place in run["resumed_from"] or []]
    return list(dict.fromkeys([*before, _machine(run)["fingerprint"]]))


def _names_model(name: str, model: str) -> bool:
    """Whether ``NVIDIA A100-SXM4-80GB`` is an ``A100``: whole words, for an A1000 is none."""
    words = [
        f" {''.join(c if c.isalnum() else ' ' for c in text.lower())} " for text in (name, model)
    ]
    return words[1] in words[0]


def paired_speedup(group: Group, baseline: Group) -> tuple[Summary, list[str]]:
    """Baseline's training time over the group's, seed by seed, and why seeds are missing."""
    pairs, reasons = _pairs(group, baseline, _why_no_speedup)
    return summarise(base["train_seconds"] / run["train_seconds"] for run, base in pairs), reasons


def paired_throughput(group: Group, baseline: Group) -> tuple[Summary, list[str]]:
    """Throughput over the baseline's, seed by seed, and why seeds are missing.

    It may be of batches of another size, or of fewer: then that is said.
    """
    pairs, reasons = _pairs(group, baseline, functools.partial(_why_no_speedup, but=_AMOUNT))
    for run, base in pairs:
        if differ := _differing(_work(run["cell"]), _work(base["cell"])):
            reasons.append(f"of unequal work: {differ}")
    key = "samples_per_second"
    return summarise(run[key] / base[key] for run, base in pairs), reasons


def paired_efficiency(group: Group, baseline: Group) -> tuple[Summary, list[str]]:
    """Speedup over how many times the baseline's devices the group uses, seed by seed."""
    pairs, reasons = _pairs(group, baseline, _why_no_speedup)
    share = baseline.devices / group.devices
    ratios = (share * base["train_seconds"] / run["train_seconds"] for run, base in pairs)
    return summarise(ratios), reasons


def paired_difference(group: Group, baseline: Group) -> tuple[Summary, list[str]]:
    """Test accuracy less the baseline's, seed by seed, and why seeds are missing."""
    pairs, reasons = _pairs(group, baseline, _why_no_difference)
    return summarise(run["test_accuracy"] - base["test_accuracy"] for run, base in pairs), reasons


def paired_ratio(
    metric: Metric, group: Group, baseline: Group, but: Collection[str] = ()
) -> tuple[dict[int, float], list[str]]:
    """A metric of the group's runs over the baseline's, by seed, and why seeds are missing.

    ``but``: in which keys of their work they may differ.
    """
    why_none = _why_no_speedup if metric.depends_on_clock else _why_no_difference
    pairs, reasons = _pairs(group, baseline, lambda run, base: why_none(run, base, but))
    ratios = {}
    for run, base in pairs:
        value, unit = metric.read(run), metric.read(base)
        if value is None or not unit:
            reasons.append(f"seed {run['cell']['seed']} has no {metric.name}")
        else:
            ratios[run["cell"]["seed"]] = value / unit
    return ratios, reasons


# Metrics of a group and its baseline.
PAIRED = {
    "speedup": paired_speedup,
    "throughput_ratio": paired_throughput,
    "parallel_efficiency": paired_efficiency,
    "accuracy_difference": paired_difference,
}


def _pairs(
    group: Group, baseline: Group, why_none: Callable[[Mapping, Mapping], str]
) -> tuple[list[tuple[Mapping, Mapping]], list[str]]:
    """The good runs of each seed that both have, and why seeds are missing."""
    if baseline.plan["not_run"]:
        return [], [f"the baseline {baseline.plan['id']} was not run"]
    of_seed = {run["cell"]["seed"]: run for run in baseline.runs}
    pairs, reasons = [], []
    for run in group.ok:
        seed = run["cell"]["seed"]
        base = of_seed.get(seed)
        if base is None:
            reasons.append(f"the baseline has no seed {seed}")
        elif base["status"] != "ok":
            reasons.append(f"the baseline's seed {seed}: {FAILURES[base['status']]}")
        elif why := why_none(run, base):
            reasons.append(why)
        else:
            pairs.append((run, base))
    return pairs, reasons


# Of `_work`: how much of it there is, and in what portions.
_AMOUNT = ("train_samples", "epochs", "steps", "global_batch")


def _why_no_speedup(run: Mapping, base: Mapping, but: Collection[str] = ()) -> str:
    """Why two runs of a seed give no speedup; empty when they do.

    ``but``: in which keys of their work they may differ.
    """
    ours, theirs = _fingerprints(run), _fingerprints(base)
    if len({*ours, *theirs}) > 1:
        ours, theirs = " and ".join(ours), " and ".join(theirs)
        return f"no speedup between machines: {ours} here, {theirs} for the baseline"
    for key in ("stack", "deployment"):
        ours, theirs = run["environment"][key], base["environment"][key]
        if ours != theirs:
            return f"no speedup between {key}s: {ours} here, {theirs} for the baseline"
    ours, theirs = _work(run["cell"]), _work(base["cell"])
    differ = _differing({key: ours[key] for key in ours if key not in but}, theirs)
    return f"no speedup between unequal work: {differ}" if differ else ""


def _why_no_difference(run: Mapping, base: Mapping, but: Collection[str] = ()) -> str:
    """Why the accuracies of two runs of a seed are not to be compared; empty when they are.

    ``but``: in which keys of their work they may differ.
    """
    for each in (run, base):
        if not_measured := _few_steps(each["cell"]["training"]):
            return not_measured
    ours, theirs = (
        {**_work(each["cell"]), "test_samples": _samples(each["cell"], "test")}
        for each in (run, base)
    )
    differ = _differing({key: ours[key] for key in ours if key not in but}, theirs)
    return f"no difference between unequal work: {differ}" if differ else ""


def _differing(ours: Mapping, theirs: Mapping) -> str:
    return ", ".join(
        f"{key} {ours[key]} here, {theirs[key]} for the baseline"
        for key in ours
        if ours[key] != theirs[key]
    )


def _samples(cell: Mapping, part: str) -> Any:
    samples = cell["dataset"][f"{part}_samples"]
    return "all" if samples is None else samples


def _work(cell: Mapping) -> dict[str, Any]:
    return {
        "dataset": cell["dataset"]["name"],
        "train_samples": _samples(cell, "train"),
        "epochs": cell["training"]["epochs"],
        "steps": "all" if cell["training"]["steps"] is None else cell["training"]["steps"],
        "global_batch": cell["training"]["global_batch"],
        "image_size": cell["training"]["image_size"],
        "mode": cell["training"]["mode"],
        "profile": cell["training"]["profile"],
    }


def time_to(accuracy: float, group: Group) -> tuple[Summary, list[str]]:
    """Seconds of training until the test accuracy was first ``accuracy`` after an epoch.

    Over the good runs that measured it. Where one never got there, there is no mean, which would
    leave out the slowest: only minimum and maximum of those that did, and a sentence that counts
    the others.
    """
    times = [_seconds_to(accuracy, run) for run in group.ok if _scored(run)]
    reached = [seconds for seconds in times if seconds is not None]
    if len(reached) == len(times):
        return summarise(reached, trim=METRICS[TO_PUBLISHED].clocked), []
    said = f"{NOT_REACHED} by {len(times) - len(reached)} of {len(times)} seeds"
    if not reached:
        return Summary(0), [said]
    least, most = min(reached), max(reached)
    said += f" (the others: {' to '.join(dict.fromkeys((f'{least:.4g}', f'{most:.4g}')))} s)"
    return Summary(len(reached), min=least, max=most), [said]


def _seconds_to(accuracy: float, run: Mapping) -> float | None:
    """``elapsed_seconds`` of the first epoch that ended with ``accuracy``; None without one."""
    there = (each for each in _scored(run) if _at_most(accuracy, each["test_accuracy"]))
    return next((epoch["elapsed_seconds"] for epoch in there), None)


def _scored(run: Mapping) -> list[Mapping]:
    """The epochs after which the test accuracy was measured."""
    return [epoch for epoch in run["history"] if epoch["test_accuracy"] is not None]


def group_noise_floor(group: Group) -> tuple[Summary, list[str]]:
    """The noise floor of a group's good runs, and why there is none."""
    places = {
        (
            fingerprint,
            run["environment"]["stack"],
            run["environment"]["deployment"],
        )
        for run in group.ok
        for fingerprint in _fingerprints(run)
    }
    if len(places) > 1:
        return Summary(0), ["no noise floor: its seeds ran on different machines or software"]
    summary = noise_floor(run["train_seconds"] for run in group.ok)
    return summary, [] if summary.n >= 2 else ["no noise floor from fewer than 2 seeds"]


# --------------------------------------------------------------------------------------------------
# Verdicts (docs/verdicts.md)


def judge(summary: Summary, published: float, tolerance: float, higher_is_better: bool) -> str:
    """The verdict on a comparable mean of at least three seeds; ``tolerance`` is absolute."""
    gap = abs(summary.mean - published)
    if _at_most(summary.half_width, tolerance) and _at_most(gap, tolerance):
        return REPRODUCED
    if _at_most(gap, summary.half_width):
        return WITHIN_NOISE
    if (summary.mean > published) == higher_is_better:
        return SUSPICIOUS
    return NOT_REPRODUCED


def _at_most(value: float, bound: float) -> bool:
    # 0.84 - 0.83 is above 0.01 in binary: the last digits of a float decide no verdict.
    return value <= bound or math.isclose(value, bound, rel_tol=1e-9)


def why_not_comparable(
    metric: Metric, group: Group, study: Mapping, reference: Reference
) -> list[str]:
    """Reasons that forbid setting the metric beside its published value; empty when none does."""
    reasons = group.cautions(metric)
    if differs := group.plan.get("differs"):
        reasons.append(f"differs from the source: {differs}")
    if metric.kind == "ratio":
        if not group.has_layout_of(reference):
            reasons += _hardware_difference(group, reference)
        return reasons
    reasons += _scale_difference(group, study)
    if metric.kind == "absolute":
        reasons += _assumptions(study) + _hardware_difference(group, reference)
    return reasons


def _caveats(metric: Metric, group: Group, study: Mapping, reference: Reference) -> list[str]:
    """What differs from the source without forbidding the comparison."""
    caveats = _assumptions(study)
    if metric.kind == "ratio":
        caveats = _hardware_difference(group, reference) + _scale_difference(group, study) + caveats
    return caveats


def _scale_difference(group: Group, study: Mapping) -> list[str]:
    changed = group.plan["scaled"] or [
        f"{key} {value} by config.yaml"
        for key, value in (study.get("override") or {}).get("settings", {}).items()
    ]
    reasons = [f"scaled: {', '.join(changed)}"] if changed else []
    source = study.get("source_dataset") or study["dataset"]
    ours = group.plan["dataset"]["name"]
    if ours != source:
        reasons.append(f"published on the dataset {source}, here on {ours}")
    return reasons


def _assumptions(study: Mapping) -> list[str]:
    assumed = study["assumed"]
    return [f"not stated by the source, assumed: {', '.join(assumed)}"] if assumed else []


def _hardware_difference(group: Group, reference: Reference) -> list[str]:
    if group.has_hardware_of(reference):
        return []
    return [f"published on {reference.describe_hardware()}, here on {group.describe_hardware()}"]


def _few_steps(training: Mapping) -> str:
    """Why no accuracy was measured; empty where it was."""
    if training["steps"] is None:
        return ""
    return f"only {training['steps']} steps of an epoch were trained: no accuracy is measured"


def _why_not_measured(metric: Metric, group: Group, summary: Summary) -> str:
    """Why a run that ended well has no value that it might have had; empty where that is not so."""
    if metric.kind == "accuracy":
        return _few_steps(group.plan["training"])
    if is_operator(metric.name) and group.ok and summary.n == 0:
        return "not among the operators that took the time here"
    return ""


def verdict(
    metric: Metric, group: Group, study: Mapping, summary: Summary, reference: Reference | None
) -> tuple[str, list[str]]:
    """The verdict on one row, and its reasons."""
    if group.plan["not_run"]:
        return NOT_RUN, []
    if why := _why_not_measured(metric, group, summary):
        return NOT_MEASURED, [why]
    if reference is None:
        return NO_PUBLISHED_VALUE, []
    if reasons := why_not_comparable(metric, group, study, reference):
        return NOT_COMPARABLE, reasons
    caveats = _caveats(metric, group, study, reference)
    if seeds := too_few(summary.n):
        if summary.n:
            seeds += f", range {summary.min:.4g} to {summary.max:.4g}"
        return UNDECIDED, [seeds, *caveats]
    allowed = study["tolerance"]
    tolerance = (
        allowed["accuracy"]
        if metric.kind == "accuracy"
        else allowed["relative"] * abs(reference.value)
    )
    found = (
        f"differs by {summary.mean - reference.value:+.2g} "
        f"(tolerance {tolerance:.2g}, interval ±{summary.half_width:.2g})"
    )
    decision = judge(summary, reference.value, tolerance, metric.higher_is_better)
    return decision, [found, *caveats]


# --------------------------------------------------------------------------------------------------
# The table


def table(
    plan: Mapping,
    metrics_by_cell: Mapping[str, Mapping],
    published: pd.DataFrame,
    certificates: Certificates | None = None,
) -> pd.DataFrame:
    """The tidy table of a study: one row a (group, metric), columns ``COLUMNS``.

    ``metrics_by_cell`` maps cell ids to metrics.json contents, for every cell of a group that runs.
    With ``certificates``, `reason` marks what they do not cover (docs/equivalence.md).
    Raises ParbenchError for a cell without metrics, metrics of another cell, an unknown metric in
    the study's tables, and an ambiguous published value.
    """
    _check_table_metrics(plan["study"])
    groups = groups_of(plan, metrics_by_cell)
    source = Published(published, plan["study"]["published"])
    rows = [
        row
        for group in groups.values()
        for row in _rows(
            plan,
            group,
            groups,
            source,
            certificates.problems(_behind(group, groups)) if certificates is not None else [],
        )
    ]
    frame = pd.DataFrame(rows, columns=COLUMNS)
    return frame.astype({"n_seeds": "Int64"})


def groups_of(plan: Mapping, metrics_by_cell: Mapping[str, Mapping]) -> dict[str, Group]:
    """The plan's groups with their runs, by id; after them those of several models together."""
    groups = {
        each["id"]: Group(each, () if each["not_run"] else _runs(plan, each, metrics_by_cell))
        for each in plan["groups"]
    }
    for each in plan["together"]:
        members = [groups[name] for name in each["members"]]
        groups[each["id"]] = Group(each, () if each["not_run"] else _together(members))
    return groups


def _behind(group: Group, groups: Mapping[str, Group]) -> Iterable[Mapping]:
    """The runs of cells that a group rests on."""
    members = group.plan.get("members", [group.plan["id"]])
    return [run for member in members for run in groups[member].runs]


def _together(members: list[Group]) -> tuple[Mapping, ...]:
    """A run for each seed that all ``members`` have, as if one had trained all their models."""
    of_seed: dict[int, list[Mapping]] = {}
    for member in members:
        for run in member.runs:
            of_seed.setdefault(run["cell"]["seed"], []).append(run)
    return tuple(_all_trained(runs) for runs in of_seed.values() if len(runs) == len(members))


def _all_trained(runs: list[Mapping]) -> Mapping:
    """What is said of the runs of several models together; in place of training time, the total."""
    failed = [run for run in runs if run["status"] != "ok"]
    # Whichever is first: where they train at the same time, each of them has measured it.
    orders = [] if failed else [[*runs[n:], *runs[:n]] for n in range(len(runs))]
    total = None if failed else statistics.fmean(map(_seconds_in_turn, orders))
    busy = any(run["environment"]["oversubscribed"] for run in runs)
    return {
        "cell": runs[0]["cell"],
        "status": failed[0]["status"] if failed else "ok",
        "reason": failed[0]["reason"] if failed else None,
        "train_seconds": total,
        "total_seconds": total,
        "environment": {**runs[0]["environment"], "oversubscribed": busy},
        # Every machine that had a part in it.
        "resumed_from": [{"machine": name} for run in runs for name in _fingerprints(run)],
    }


def _seconds_in_turn(runs: list[Mapping]) -> float:
    """Until the models of all ``runs`` are trained, one run after the other; but one whose model
    has trained beside an earlier one is not needed any more."""
    total, trained = 0.0, set()
    for run in runs:
        if run["cell"]["model"]["name"] not in trained:
            at_once = [run["train_seconds"]]
            for other in run.get("beside", []):
                at_once.append(other["train_seconds"])
                trained.add(other["model"])
            total += max(at_once)
    return total


def read_metrics(plan: Mapping, folder: str | Path) -> dict[str, Mapping]:
    """Read the metrics of every cell of the plan that runs, from ``folder``/<cell>/metrics.json."""
    metrics = {}
    for group in plan["groups"]:
        for cell in [] if group["not_run"] else group["cells"]:
            path = Path(folder) / cell / "metrics.json"
            if not path.exists():
                raise _no_metrics(path, plan)
            metrics[cell] = measure.read_metrics(path)
    return metrics


def _no_metrics(path: Path, plan: Mapping) -> ParbenchError:
    command = shlex.join(["snakemake", str(path), *plan["arguments"]])
    return ParbenchError(f"{path}: no such file; make it with: {command}")


def _runs(
    plan: Mapping, group: Mapping, metrics_by_cell: Mapping[str, Mapping]
) -> tuple[Mapping, ...]:
    runs = []
    for cell in group["cells"]:
        if cell not in metrics_by_cell:
            raise _no_metrics(Path("results/cells") / cell / "metrics.json", plan)
        run = metrics_by_cell[cell]
        if run["cell"]["id"] != cell:
            raise ParbenchError(
                f"metrics.json of cell {cell} holds a run of {run['cell']['id']}; delete it and "
                "run again"
            )
        runs.append(run)
    return tuple(runs)


def _check_table_metrics(study: Mapping) -> None:
    for table in study["tables"]:
        for name in table["metrics"]:
            if name not in METRICS:
                raise ParbenchError(
                    f"study {study['name']}: table {table['title']!r} names the metric {name!r}; "
                    f"known: {', '.join(METRICS)}"
                )


def operators_of(group: Group, source: Published) -> list[Metric]:
    """Times of single operators: those that the source tells, and the largest here."""
    if group.plan["training"]["profile"] != "operators":
        return []
    names = source.operators(group.plan)
    spent: dict[str, float] = {}
    for run in group.ok:
        for each in (_inferred(run) or {"operators": []})["operators"]:
            seconds = each[f"{_clock(run)}_self_seconds"]
            spent[each["name"]] = spent.get(each["name"], 0.0) + seconds
    names += sorted(spent, key=lambda name: -spent[name])[:SHOWN_OPERATORS]
    return [
        operator_metric(f"operator_{kind}_seconds:{name}")
        for name in dict.fromkeys(names)
        for kind in ("self", "total")
    ]


def _metrics_of(plan: Mapping, group: Group, is_baseline: bool, source: Published) -> list[Metric]:
    """The metrics that a group has rows for."""
    has_partner = {"noise_floor": is_baseline}
    has_partner[TO_PUBLISHED] = source.find(group.plan, METRICS["test_accuracy"]) is not None
    has_partner |= dict.fromkeys(PAIRED, group.plan["baseline"] is not None)
    named = {
        name
        for table in plan["study"]["tables"]
        if shape.holds(table, group.plan)
        for name in table["metrics"]
    }
    kept = [
        metric
        for metric in METRICS.values()
        if group.measures(metric) and has_partner.get(metric.name, True)
    ]
    if group.plan["not_run"]:
        usual = [metric for metric in kept if metric.name in (named or DEFAULT_METRICS)]
        return usual + operators_of(group, source)
    usual = [metric for metric in kept if metric.name in named or not metric.named]
    return usual + operators_of(group, source)


def _rows(
    plan: Mapping,
    group: Group,
    groups: Mapping[str, Group],
    source: Published,
    uncertified: list[str],
) -> Iterable[dict[str, Any]]:
    baseline = _baseline(group, groups)
    is_baseline = any(each.plan["baseline"] == group.plan["id"] for each in groups.values())
    for metric in _metrics_of(plan, group, is_baseline, source):
        summary, reasons = _summary(metric, group, baseline, source)
        if metric.name == TO_PUBLISHED:  # what its goal was published for may be other work
            reasons += _scale_difference(group, plan["study"])
        if metric.optional and summary.n == 0 and not group.plan["not_run"]:
            continue
        if metric.name == "speedup":
            reference, why = source.speedup(group.plan, baseline.plan)
        else:
            reference, why = source.find(group.plan, metric), ""
        decision, why_decision = verdict(metric, group, plan["study"], summary, reference)
        reasons = [
            group.plan["not_run"],
            *group.failures(),
            *uncertified,
            *group.cautions(metric),
            *reasons,
            *why_decision,
            why,
            group.plan.get("note"),
        ]
        yield {
            **_identity(plan, group),
            "metric": metric.name,
            "unit": metric.unit,
            "n_seeds": None if group.plan["not_run"] else summary.n,
            **{key: getattr(summary, key) for key in ("mean", "std", "ci_low", "ci_high")},
            "min": summary.min,
            "max": summary.max,
            "published": reference.value if reference else math.nan,
            "published_unit": reference.unit if reference else None,
            "published_table": reference.table if reference else None,
            "ratio": summary.mean / reference.value if reference and reference.value else math.nan,
            "verdict": decision,
            # A note may also be the stated reason; seeds may fail alike: say each sentence once.
            "reason": "; ".join(dict.fromkeys(filter(None, reasons))),
            "cells": " ".join(group.plan["cells"]),
        }


def _baseline(group: Group, groups: Mapping[str, Group]) -> Group | None:
    name = group.plan["baseline"]
    if name is not None and name not in groups:
        raise ParbenchError(f"plan: group {group.plan['id']}: baseline {name!r} is no group")
    return None if name is None else groups[name]


def _summary(
    metric: Metric, group: Group, baseline: Group | None, source: Published
) -> tuple[Summary, list[str]]:
    if group.plan["not_run"]:
        return Summary(0), []
    if metric.name == TO_PUBLISHED:
        return time_to(source.find(group.plan, METRICS["test_accuracy"]).value, group)
    if metric.name in PAIRED:
        return PAIRED[metric.name](group, baseline)
    if metric.name == "noise_floor":
        return group_noise_floor(group)
    values = [metric.read(run) for run in group.ok]
    return summarise((value for value in values if value is not None), trim=metric.clocked), []


def _identity(plan: Mapping, group: Group) -> dict[str, Any]:
    hardware = group.plan["hardware"]
    return {
        "study": plan["study"]["name"],
        "group": group.plan["id"],
        "model": group.plan["model"],
        "variant": group.plan["variant"],
        "strategy": group.plan["strategy"],
        "options": files.canonical_json(group.plan["options"]),
        "hardware": hardware["name"],
        "device": hardware["device"],
        "devices": hardware["devices"],
        "nodes": hardware["nodes"],
        "dataset": group.plan["dataset"]["name"],
        "stack": plan["stack"],
        "deployment": plan["deployment"],
        "machine": " ".join(group.machines()),
        "status": group.status,
    }


# --------------------------------------------------------------------------------------------------
# The closing table on the terminal


# From what a reader must see first to what says nothing.
GRAVITY = (
    SUSPICIOUS,
    NOT_REPRODUCED,
    UNDECIDED,
    WITHIN_NOISE,
    REPRODUCED,
    NOT_COMPARABLE,
    NOT_MEASURED,
    NO_PUBLISHED_VALUE,
)
SHOWN_METRICS = {
    "test_accuracy": "accuracy",
    "train_seconds": "time",
    "total_seconds": "time",
    "speedup": "speedup",
}
SHOW_HEAD = ["model", "strategy", "hardware", "accuracy", "train time", "speedup", "verdict"]
TIME_UNITS = (("h", 3600.0, 7200.0), ("min", 60.0, 120.0), ("s", 1.0, 0.0))  # unit, seconds, from


def show(frame: pd.DataFrame) -> str:
    """The short table of one study as plain text, no line longer than ``SHOW_WIDTH``."""
    first = frame.iloc[0]
    lines = [_show_line(group) for _, group in frame.groupby("group", sort=False)]
    text = _align([SHOW_HEAD, *lines])
    title = f"{first['study']} (stack {first['stack']}, deployment {first['deployment']})"
    notes = (
        ["1 (a-b): the ratio of two equal runs lies in a-b here (95 %)"] if "1 (" in text else []
    )
    speedups = [row for _, row in frame.iterrows() if _is_warned_of(row)]
    notes += [f"* {reason}" for reason in dict.fromkeys(row["reason"] for row in speedups)]
    wrapped = [line for note in notes for line in textwrap.wrap(note, SHOW_WIDTH)]
    return printable("\n".join([_fit(title, SHOW_WIDTH), text, *wrapped]) + "\n")


def _is_warned_of(row: pd.Series) -> bool:
    """Whether a speedup is shown that must not be read as one without its reason."""
    unjudged = row["verdict"] in (NOT_COMPARABLE, NO_PUBLISHED_VALUE)
    shown = row["metric"] == "speedup" and not math.isnan(row["mean"])
    return bool(shown and unjudged and row["reason"])


def _show_line(group: pd.DataFrame) -> list[str]:
    rows = {row["metric"]: row for _, row in group.iterrows()}
    first = group.iloc[0]
    strategy, variant = first["strategy"], first["variant"]
    strategy = variant if variant.startswith(strategy) else f"{strategy} ({variant})"
    line = [first["model"], strategy, first["hardware"]]
    if first["status"] == NOT_RUN:
        needs = str(first["reason"]).split("; ")[0]
        return [*line, f"not run: {needs}"]
    accuracy = _show_accuracy(rows.get("test_accuracy"))
    status = "" if first["status"] == "ok" else first["status"]
    if status and not accuracy:
        accuracy, status = status, ""
    decision = _gravest(rows)
    return [
        *line,
        accuracy,
        _show_seconds(rows.get("train_seconds", rows.get("total_seconds"))),
        _show_speedup(rows),
        f"{status}; {decision}" if status else decision,
    ]


def _gravest(rows: Mapping[str, pd.Series]) -> str:
    verdicts = {
        SHOWN_METRICS[name]: rows[name]["verdict"] for name in SHOWN_METRICS if name in rows
    }
    gravest = min(verdicts.values(), key=GRAVITY.index, default=NO_PUBLISHED_VALUE)
    if GRAVITY.index(gravest) >= GRAVITY.index(NOT_COMPARABLE):
        return gravest
    named = ", ".join(name for name, each in verdicts.items() if each == gravest)
    return f"{gravest.split(' (')[0].replace('better than published', 'suspicious')}: {named}"


def _show_accuracy(row: pd.Series | None) -> str:
    if row is None or math.isnan(row["mean"]):
        return ""
    return f"{_show_number(row, 100, '.1f')} %"


def _show_seconds(row: pd.Series | None) -> str:
    if row is None or math.isnan(row["mean"]):
        return ""
    unit, seconds = next((u, s) for u, s, start in TIME_UNITS if row["mean"] >= start)
    return f"{_show_number(row, 1 / seconds, '.1f')} {unit}"


def _show_speedup(rows: Mapping[str, pd.Series]) -> str:
    if "speedup" in rows and not math.isnan(rows["speedup"]["mean"]):
        mark = "*" if _is_warned_of(rows["speedup"]) else ""
        return f"{_show_number(rows['speedup'], 1, '.2f')}{mark}"
    if "noise_floor" in rows and not math.isnan(rows["noise_floor"]["ci_low"]):
        return f"1 ({rows['noise_floor']['ci_low']:.2f}-{rows['noise_floor']['ci_high']:.2f})"
    return ""


def _show_number(row: pd.Series, factor: float, form: str) -> str:
    """Mean and standard deviation; the range of seeds that are too few for them."""
    if row["n_seeds"] >= DECIDE_FROM:
        return f"{factor * row['mean']:{form}} ± {factor * row['std']:{form}}"
    ends = (f"{factor * row[end]:{form}}" for end in ("min", "max"))
    return "-".join(dict.fromkeys(ends))


def _align(lines: list[list[str]]) -> str:
    """Columns two blanks apart; a line's last field, if it comes early, runs into the next ones."""
    last = len(SHOW_HEAD) - 1
    widths = [
        max(len(line[i]) for line in lines if i < len(line) - 1 or len(line) == len(SHOW_HEAD))
        for i in range(last)
    ]
    names = 3  # model, strategy and hardware may be cut; numbers may not
    needed = min(28, max(len(line[-1]) for line in lines if len(line) == len(SHOW_HEAD)))
    while sum(widths) + 2 * last + needed > SHOW_WIDTH and max(widths[:names]) > 8:
        widths[widths.index(max(widths[:names]))] -= 1
    text = []
    for line in lines:
        fields = [
            _fit(field, width).ljust(width) for field, width in zip(line[:-1], widths, strict=False)
        ]
        text.append(_fit("  ".join([*fields, line[-1]]), SHOW_WIDTH).rstrip())
    return "\n".join([text[0], "-" * max(map(len, text)), *text[1:]])


def _fit(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def read_table(path: str | Path) -> pd.DataFrame:
    """Read a table that this program wrote; ParbenchError when it is missing or another file."""
    try:
        frame = pd.read_csv(path, keep_default_na=False, na_values={"n_seeds": [""]})
    except (FileNotFoundError, ValueError) as error:
        raise ParbenchError(f"{path}: cannot be read ({error})") from None
    if list(frame.columns) != COLUMNS or frame.empty:
        raise ParbenchError(f"{path}: not a table of parbench; delete it and run again")
    numbers = ["mean", "std", "ci_low", "ci_high", "min", "max", "published", "ratio"]
    frame[numbers] = frame[numbers].apply(pd.to_numeric, errors="coerce")
    return frame


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plan", type=Path, help="results/plan/<study>.json")
    parser.add_argument("--cells", type=Path, help="folder of the cells' folders")
    parser.add_argument("--published", type=Path, nargs="+", help="CSV files of published values")
    parser.add_argument(
        "--certificate", type=Path, nargs="*", help="of equivalence; default: nothing is said of it"
    )
    parser.add_argument("--out", type=Path, help="CSV to write")
    parser.add_argument(
        "--show", nargs="+", type=Path, metavar="TABLE", help="only print finished tables"
    )
    options = parser.parse_args(arguments)
    needed = ("plan", "cells", "published", "out")
    if not options.show and (missing := [f"--{n}" for n in needed if getattr(options, n) is None]):
        parser.error(f"missing {', '.join(missing)} (or give --show)")
    return options


def main(arguments: list[str] | None = None) -> None:
    """Write a study's table, or print finished ones."""
    options = _arguments(arguments)
    if options.show:
        if hasattr(sys.stdout, "reconfigure"):  # a terminal that cannot say ± still gets its table
            sys.stdout.reconfigure(errors="replace")
        print("\n".join(show(read_table(path)) for path in options.show), end="")
        return
    plan = files.read_json(options.plan)
    certificates = Certificates(options.certificate) if options.certificate is not None else None
    metrics = read_metrics(plan, options.cells)
    published = read_source(plan["study"]["published"], options.published)
    frame = table(plan, metrics, published, certificates)
    files.write_atomically(options.out, frame.to_csv(index=False, lineterminator="\n"))


if __name__ == "__main__":
    run_main(main)
