"""Define every metric of tables and reports: name, label, unit, and how to read it from a run.

A new metric needs one entry in this file, and the code that measures it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter, methodcaller
from typing import TypedDict, Unpack

from parbench.runs.parts import Epoch, Inference, Memory, Operator, Profiled
from parbench.runs.records import CellRun, Trained

Read = Callable[[CellRun], float | None]


class _More(TypedDict, total=False):
    """Further fields of a metric."""

    optional: bool
    named: bool
    of: str
    gpus_only: bool


@dataclass(frozen=True)
class Metric:
    """One metric.

    ``kind`` determines when it is comparable with a published value: an ``accuracy`` needs the same
    data and work, an ``absolute`` number also the same hardware, a ``ratio`` the same number of
    devices.
    """

    name: str
    label: str
    unit: str
    kind: str
    higher_is_better: bool = False
    read: Read | None = None  # reads it from one run; None: one run is not enough
    clocked: bool = False
    optional: bool = False  # has no row if no run has a value
    named: bool = False  # has a row only in tables that name it
    # Reads it from a side of a pair, for groups without a run; None: sides do not have it.
    read_side: Callable[[Trained], float | None] | None = None
    gpus_only: bool = False
    of: str = "one"  # model, "several" trained together, or "any" number of models

    @property
    def depends_on_clock(self) -> bool:
        """Whether a busy machine changes the value."""
        return self.clocked or self.kind == "ratio"

    @property
    def is_score(self) -> bool:
        """Whether it is a share of the test samples; scores are compared by their difference."""
        return self.kind == "accuracy"

    def value(self, run: CellRun) -> float | None:
        """Return its value in one run; None if it was not measured, or one run is not enough."""
        return self.read(run) if self.read else None


# The part of each kind of operator profile that is compared with published operators.
PROFILED = {"operators": "inference", "training_operators": "training"}


def _profiled_part(run: CellRun) -> Profiled | None:
    part = PROFILED.get(run.cell.training.profile)
    return getattr(run.profile, part) if part and run.profile else None


def profiled_operators(run: CellRun) -> dict[str, Operator]:
    """Return the operators in a run's profile, of inference or of training steps, by name."""
    part = _profiled_part(run)
    return {operator.name: operator for operator in part.operators} if part else {}


def clock(device: str) -> str:
    """Return whose clock is used for operators: the accelerator's if there is one."""
    return "cpu" if device == "cpu" else "device"


def _clock(run: CellRun) -> str:
    return clock(run.cell.hardware.device)


def _profiled(run: CellRun) -> float | None:
    part = _profiled_part(run)
    return part and getattr(part, f"{_clock(run)}_self_seconds")


def self_seconds(run: CellRun, operator: str) -> float:
    """Return the seconds of an operator in the profile of ``run``, without operators it calls."""
    return getattr(profiled_operators(run)[operator], f"{_clock(run)}_self_seconds")


def _accuracy(name: str, label: str) -> Metric:
    return Metric(name, label, "fraction", "accuracy", True, attrgetter(name))


def _seconds(name: str, label: str, read: Read | None = None, **more: Unpack[_More]) -> Metric:
    read = read or attrgetter(name)
    return Metric(name, label, "s", "absolute", read=read, clocked=True, **more)


def _throughput(name: str, label: str, read: Read, **more: Unpack[_More]) -> Metric:
    return Metric(name, label, "samples/s", "absolute", True, read, clocked=True, **more)


def _memory(of_a: str, where: str, label: str, **more: Unpack[_More]) -> Metric:
    def read(run: CellRun | Trained) -> float | None:
        entries = getattr(run.peak_memory_mib, where, ())
        return max((entry.mib for entry in entries if entry.mib is not None), default=None)

    name = f"peak_memory_{of_a}_mib"
    return Metric(name, label, "MiB", "absolute", read=read, read_side=read, **more)


def _memory_of(kind: str, label: str, read: Callable[[Memory], float | None]) -> Metric:
    """Return the metric for a part of the peak memory.

    It is that of the device with the highest peak or, on CPUs, of the largest process.
    """

    def of_peak(run: CellRun | Trained) -> float | None:
        peak = run.peak_memory_mib
        entries = (peak.devices or peak.processes) if peak else ()
        known = [entry for entry in entries if None not in (entry.mib, entry.state_mib)]
        return read(max(known, key=attrgetter("mib"))) if known else None

    name = f"memory_{kind}_mib"
    return Metric(name, label, "MiB", "absolute", read=of_peak, read_side=of_peak, optional=True)


def _activations(entry: Memory) -> float | None:
    before, dataset, state = entry.baseline_mib, entry.dataset_mib, entry.state_mib
    if entry.mib is None or before is None or dataset is None or state is None:
        return None
    return max(0.0, entry.mib - (before + dataset + state))


def _batch_seconds(run: CellRun) -> float | None:
    if run.train_seconds is None or run.steps_per_epoch is None:
        return None
    return run.train_seconds / (run.steps_per_epoch * len(run.epoch_seconds))


def _inference_batch_seconds(run: CellRun) -> float | None:
    inference, batch = run.inference, run.cell.training.evaluation_batch
    return inference and inference.seconds / inference.samples * batch


def _mfu(run: CellRun) -> float | None:
    flops, best = map(run.number, ("flops_per_sample", "best_flops_per_second"))
    speed = run.samples_per_second
    if flops is None or best is None or speed is None:
        return None
    devices = run.cell.hardware.devices * run.cell.hardware.nodes
    return flops * speed / (best * devices)


def _optional(name: str, label: str, unit: str = "", gpus_only: bool = False) -> Metric:
    """Return a metric that only some cells have; its unit, if other than MiB, depends on times."""
    return Metric(
        name,
        label,
        unit,
        "absolute",
        read=methodcaller("number", name),
        clocked=unit not in ("", "MiB"),
        optional=True,
        gpus_only=gpus_only,
    )


def _mean_of_epochs(read: Callable[[Epoch], float | None]) -> Read:
    """Return a reader of the mean over a run's epochs, except those where ``read`` gives None."""

    def mean(run: CellRun) -> float | None:
        known = [value for epoch in run.history if (value := read(epoch)) is not None]
        return statistics.fmean(known) if known else None

    return mean


def _inference(read: Callable[[Inference], float]) -> Read:
    return lambda run: run.inference and read(run.inference)


def _tokens(key: str) -> Read:
    return lambda run: run.tokens and getattr(run.tokens, key)


# Computed with the published accuracy of its group.
TO_PUBLISHED = Metric(
    "seconds_to_published_accuracy",
    "Time to the published accuracy",
    "s",
    "absolute",
    clocked=True,
)
_ALL = (
    _accuracy("test_accuracy", "Test accuracy"),
    _accuracy("test_precision_macro", "Precision (macro)"),
    _accuracy("test_recall_macro", "Recall (macro)"),
    _accuracy("test_f1_macro", "F1 (macro)"),
    _accuracy("test_specificity_macro", "Specificity (macro)"),
    _seconds("train_seconds", "Training time"),
    _seconds(
        "total_seconds",
        "Time until all are trained",
        methodcaller("number", "total_seconds"),
        of="several",
    ),
    _seconds("epoch_seconds", "Time per epoch", _mean_of_epochs(attrgetter("seconds"))),
    _seconds("batch_seconds", "Time per batch", _batch_seconds, named=True),
    TO_PUBLISHED,
    _seconds("startup_seconds", "Start-up"),
    _optional("compile_seconds", "Compilation", "s"),
    _optional("disk_wait_seconds", "Waiting for images from disk", "s"),
    _optional("throttled_seconds", "Clocks held down by power or heat", "s", gpus_only=True),
    _throughput("samples_per_second", "Throughput", attrgetter("samples_per_second")),
    Metric(
        "tokens_per_second",
        "Throughput in tokens",
        "tokens/s",
        "absolute",
        True,
        _tokens("per_second"),
        clocked=True,
        optional=True,
    ),
    Metric(
        "padding_share",
        "Share of padding",
        "fraction",
        "absolute",
        read=_tokens("padding"),
        optional=True,
    ),
    _seconds(
        "inference_seconds", "Inference time", _inference(attrgetter("seconds")), optional=True
    ),
    _seconds(
        "inference_batch_seconds",
        "Inference time per batch",
        _inference_batch_seconds,
        optional=True,
        named=True,
    ),
    _throughput(
        "inference_samples_per_second",
        "Inference throughput",
        _inference(lambda inference: inference.samples / inference.seconds),
        optional=True,
    ),
    _optional("session_seconds", "Start of the Spark session", "s"),
    _optional("first_batch_seconds", "First job", "s"),
    _optional("task_skew", "Longest task over the median", "x"),
    _optional("idle_cores", "Cores used by an idle session", "cores"),
    _optional("latency_median_seconds", "Latency, median", "s"),
    _optional("latency_p95_seconds", "Latency, 95 %", "s"),
    _optional("latency_p99_seconds", "Latency, 99 %", "s"),
    _optional("instrument_cores", "Cores that producer and counter keep busy", "cores"),
    _optional("backlog", "Images waiting when the last one came", "images"),
    Metric(
        "delivered_share",
        "Images that came out once",
        "fraction",
        "accuracy",
        True,
        methodcaller("number", "delivered_share"),
        optional=True,
    ),
    _optional("lost", "Images lost"),
    _optional("doubled", "Images that came out twice"),
    _optional("dead_letters", "Files put aside"),
    _optional("kills", "Processes killed"),
    _optional("driver_memory_mib", "Peak memory, Spark's driver", "MiB"),
    _optional("executor_memory_mib", "Peak memory, executor", "MiB"),
    _optional("worker_memory_mib", "Peak memory, Python workers", "MiB"),
    _memory("process", "processes", "Peak memory, process"),
    _memory("device", "devices", "Peak memory, device", optional=True, gpus_only=True),
    _memory_of("baseline", "Memory before data and model", attrgetter("baseline_mib")),
    _memory_of("dataset", "Memory of the dataset", attrgetter("dataset_mib")),
    _memory_of("state", "Memory of weights, gradients and optimizer", attrgetter("state_mib")),
    _memory_of("activations", "Memory of activations and the rest", _activations),
    Metric(
        "joules_per_sample",
        "Energy per sample",
        "J",
        "absolute",
        read=attrgetter("joules_per_sample"),
        read_side=attrgetter("joules_per_sample"),
        clocked=True,
        optional=True,
        gpus_only=True,
    ),
    Metric(
        "mfu",
        "Share of the peak measured (MFU)",
        "fraction",
        "absolute",
        True,
        _mfu,
        clocked=True,
        optional=True,
        named=True,
    ),
    Metric(
        "profile_self_seconds",
        "Self time of all operators",
        "s",
        "absolute",
        read=_profiled,
        optional=True,
    ),
    Metric("speedup", "Speedup", "x", "ratio", True, of="any"),
    Metric("throughput_ratio", "Throughput over the baseline's", "x", "ratio", True, named=True),
    Metric(
        "parallel_efficiency",
        "Parallel efficiency",
        "fraction",
        "ratio",
        True,
        named=True,
        of="any",
    ),
    Metric("accuracy_difference", "Accuracy less the baseline's", "fraction", "accuracy", True),
)
METRICS = {metric.name: metric for metric in _ALL}
DEFAULT_METRICS = ("test_accuracy", "train_seconds", "speedup")

# Metrics of single operators, without the operator's name.
OPERATOR_METRICS = {"operator_self_seconds": "Self time", "operator_total_seconds": "Total time"}


def is_operator(metric: str) -> bool:
    """Return whether ``metric`` is the time of one operator."""
    return metric.startswith("operator_")


def operator_metric(name: str) -> Metric:
    """Return ``operator_self_seconds:<operator>`` or ``operator_total_seconds:<operator>``.

    It does not count as a time: only profiled runs have it, and profiling slows all operators.
    """
    quantity, _, operator = name.partition(":")

    def read(run: CellRun) -> float | None:
        entry = profiled_operators(run).get(operator)
        return entry and getattr(entry, f"{_clock(run)}_{quantity.split('_')[1]}_seconds")

    return Metric(name, label(name), "s", "absolute", read=read)


def label(metric: str) -> str:
    """Return a metric's name for readers: ``Training time``, ``Self time of aten::addmm``."""
    if metric in METRICS:
        return METRICS[metric].label
    quantity, _, operator = metric.partition(":")
    phrase = OPERATOR_METRICS.get(quantity, quantity.replace("_", " "))
    return f"{phrase} of {operator}" if operator else phrase
