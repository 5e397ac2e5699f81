"""Declare every metric of tables and reports, once, in the order of rows in tables.

`Metric` in runs/metric.py says what a declaration holds. Tables, the report, the JSON schema of
studies and the table in docs/verdicts.md follow from it; docs/extending.md says how.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from operator import attrgetter, methodcaller

from parbench.runs import operator_metrics
from parbench.runs.metric import Metric, Read, ReadBoth, extra, memory, rate, ratio, score, seconds
from parbench.runs.parts import Epoch, Inference, Memory
from parbench.runs.records import CellRun, Trained
from parbench.runs.spark_metrics import SPARK

# ---------------------------------------------------------------- how they are read from a run


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


def _peak(where: str) -> ReadBoth:
    """Return a reader of the highest peak of all ``processes`` or ``devices``, in MiB."""

    def read(run: CellRun | Trained) -> float | None:
        entries = getattr(run.peak_memory_mib, where, ())
        return max((entry.mib for entry in entries if entry.mib is not None), default=None)

    return read


def _at_peak(
    read: Callable[[Memory], float | None],
) -> ReadBoth:
    """Return a reader of a part of the peak memory, in MiB: that of the device with the highest
    peak or, on CPUs, of the largest process."""

    def of_peak(run: CellRun | Trained) -> float | None:
        peak = run.peak_memory_mib
        entries = (peak.devices or peak.processes) if peak else ()
        known = [entry for entry in entries if None not in (entry.mib, entry.state_mib)]
        return read(max(known, key=attrgetter("mib"))) if known else None

    return of_peak


def _activations(entry: Memory) -> float | None:
    before, dataset, state = entry.baseline_mib, entry.dataset_mib, entry.state_mib
    if entry.mib is None or before is None or dataset is None or state is None:
        return None
    return max(0.0, entry.mib - (before + dataset + state))


# ---------------------------------------------------------------- the metrics

# Computed with the published accuracy of its group.
TO_PUBLISHED = seconds(
    "seconds_to_published_accuracy",
    "Time to the published accuracy",
    description="training time, without evaluation, to the end of the first epoch whose test "
    "accuracy was at least the published one. If a seed never reached it, there is no mean: "
    '`reason` says "not reached by 1 of 3 seeds", and `n_seeds`, `min` and `max` describe the '
    "others",
)
# In the order of rows in tables.
_ALL = (
    score(
        "test_accuracy",
        "Test accuracy",
        read=attrgetter("test_accuracy"),
        description="the share of all test samples predicted correctly, after the last epoch",
    ),
    score(
        "test_precision_macro",
        "Precision (macro)",
        read=attrgetter("test_precision_macro"),
        description="the mean over the classes: of what was predicted as a class, the share that "
        "belongs to it",
    ),
    score(
        "test_recall_macro",
        "Recall (macro)",
        read=attrgetter("test_recall_macro"),
        description="the mean over the classes: of what belongs to a class, the share predicted "
        "as it",
    ),
    score(
        "test_f1_macro",
        "F1 (macro)",
        read=attrgetter("test_f1_macro"),
        description="the mean over the classes: the harmonic mean of a class's precision and "
        "recall",
    ),
    score(
        "test_specificity_macro",
        "Specificity (macro)",
        read=attrgetter("test_specificity_macro"),
        description="the mean over the classes: of what does not belong to a class, the share not "
        "predicted as it",
    ),
    seconds(
        "train_seconds",
        "Training time",
        read=attrgetter("train_seconds"),
        from_training_steps=True,
        bounded_by_devices=True,
        description="all epochs on the slowest rank, without warm-up and evaluation",
    ),
    seconds(
        "total_seconds",
        "Time until all are trained",
        read=methodcaller("number", "total_seconds"),
        bounded_by_devices=True,
        of="several",
        description="of several models that a study's `together` lists as one row: the time until "
        "all of them are trained, seed by seed. If they train one after the other, it is the sum. "
        "If they train at the same time (`concurrent`), it is the slowest's time, as the mean of "
        "what each of their cells measured",
    ),
    seconds(
        "epoch_seconds",
        "Time per epoch",
        read=_mean_of_epochs(attrgetter("seconds")),
        from_training_steps=True,
        bounded_by_devices=True,
        description="the mean time of an epoch, measured as `train_seconds` is",
    ),
    seconds(
        "batch_seconds",
        "Time per batch",
        read=_batch_seconds,
        from_training_steps=True,
        only_where_named=True,
        description="the mean time of an optimizer step, measured as `train_seconds` is",
    ),
    TO_PUBLISHED,
    seconds(
        "startup_seconds",
        "Start-up",
        read=attrgetter("startup_seconds"),
        description="from the launcher's start to the first timed step, warm-up included",
    ),
    extra(
        "compile_seconds",
        "Compilation",
        unit="s",
        depends_on_clock=True,
        description="how much longer the first pass of each shape took than a later one, in "
        "training and evaluation. It is part of `startup_seconds` and of no other time",
    ),
    extra(
        "disk_wait_seconds",
        "Waiting for images from disk",
        unit="s",
        depends_on_clock=True,
        description="with `input: disk`: how long training steps waited for images, on the rank "
        "that waited longest. It is part of `train_seconds`. A run that was interrupted has none",
    ),
    extra(
        "throttled_seconds",
        "Clocks held down by power or heat",
        unit="s",
        depends_on_clock=True,
        gpus_only=True,
        description="by NVML: the seconds of the timed steps in which power or heat held the "
        "clocks down, added up over the cards",
    ),
    rate(
        "samples_per_second",
        "Throughput",
        unit="samples/s",
        read=attrgetter("samples_per_second"),
        from_training_steps=True,
        bounded_by_devices=True,
        description="the rate of training: the samples of all ranks over `train_seconds`",
    ),
    rate(
        "tokens_per_second",
        "Throughput in tokens",
        unit="tokens/s",
        read=_tokens("per_second"),
        from_training_steps=True,
        only_where_measured=True,
        description="of texts, the rate of training. Tokens are counted without padding",
    ),
    Metric(
        "padding_share",
        "Share of padding",
        unit="fraction",
        kind="absolute",
        read=_tokens("padding"),
        only_where_measured=True,
        description="of texts, the share of padding in what was computed",
    ),
    seconds(
        "inference_seconds",
        "Inference time",
        read=_inference(attrgetter("seconds")),
        bounded_by_devices=True,
        only_where_measured=True,
        description="the last evaluation, input included, on the slowest rank, after an untimed "
        "pass; not part of `train_seconds`",
    ),
    seconds(
        "inference_batch_seconds",
        "Inference time per batch",
        read=_inference_batch_seconds,
        only_where_measured=True,
        only_where_named=True,
        description="`inference_seconds` per `evaluation_batch` test images, on however many ranks",
    ),
    rate(
        "inference_samples_per_second",
        "Inference throughput",
        unit="samples/s",
        read=_inference(lambda inference: inference.samples / inference.seconds),
        bounded_by_devices=True,
        only_where_measured=True,
        description="the test samples over `inference_seconds`; with Spark, over three jobs after "
        "two untimed ones; for a stream, its results divided by the time from the first image to "
        "the last commit",
    ),
    *SPARK,
    memory(
        "peak_memory_process_mib",
        "Peak memory, process",
        _peak("processes"),
        description="the peak in the timed steps, without start-up, warm-up, evaluation and "
        "checkpoints: resident memory of the largest process",
    ),
    memory(
        "peak_memory_device_mib",
        "Peak memory, device",
        _peak("devices"),
        only_where_measured=True,
        gpus_only=True,
        description="the peak in the same steps: allocations on the fullest accelerator",
    ),
    memory(
        "memory_baseline_mib",
        "Memory before data and model",
        _at_peak(attrgetter("baseline_mib")),
        only_where_measured=True,
        description="part of the peak, on the accelerator if there is one, otherwise in the "
        "process: what was in use before data and model",
    ),
    memory(
        "memory_dataset_mib",
        "Memory of the dataset",
        _at_peak(attrgetter("dataset_mib")),
        only_where_measured=True,
        description="part of the same peak: the dataset",
    ),
    memory(
        "memory_state_mib",
        "Memory of weights, gradients and optimizer",
        _at_peak(attrgetter("state_mib")),
        only_where_measured=True,
        description="part of the same peak: what a rank holds between two steps (weights, buffers, "
        "gradients and the optimizer's state)",
    ),
    memory(
        "memory_activations_mib",
        "Memory of activations and the rest",
        _at_peak(_activations),
        only_where_measured=True,
        description="the rest of the same peak: activations, buckets, gathered weights, libraries' "
        "memory",
    ),
    Metric(
        "joules_per_sample",
        "Energy per sample",
        unit="J",
        kind="absolute",
        read=attrgetter("joules_per_sample"),
        read_side=attrgetter("joules_per_sample"),
        depends_on_clock=True,
        only_where_measured=True,
        gpus_only=True,
        description="the accelerators' energy in the timed steps, by NVML, divided by the samples. "
        "In pairs it is that of the slices, and is compared as times are. A CPU's counter covers "
        "the whole package",
    ),
    rate(
        "mfu",
        "Share of the peak measured (MFU)",
        unit="fraction",
        read=_mfu,
        from_training_steps=True,
        only_where_measured=True,
        only_where_named=True,
        description="model FLOPs utilization: the operations per second of the trained images, "
        "divided by the best rate of as many devices. Rank 0 measures that rate after training "
        "with the cell's settings, as the faster of a large matrix product and a large "
        "convolution; it is a measured peak, not a datasheet's. Operations are three times those "
        "of a forward pass, counting matrix products, convolutions and attention; a convolution "
        "counts in full even where a library computes it with fewer operations (Winograd). Not "
        "for texts, nor for a model trained beside others",
    ),
    Metric(
        "profile_self_seconds",
        "Self time of all operators",
        unit="s",
        kind="absolute",
        read=operator_metrics.all_self_seconds,
        only_where_measured=True,
        description="with `profile: operators` or `training_operators`: the self time of all "
        "operators together",
    ),
    ratio(
        "speedup",
        "Speedup",
        unit="x",
        of="any",
        description="the baseline's training time over the group's, from "
        "[pairs](#times-compared-in-turns)",
    ),
    ratio(
        "throughput_ratio",
        "Throughput over the baseline's",
        unit="x",
        only_where_named=True,
        description="the samples per second over the baseline's, from pairs",
    ),
    ratio(
        "parallel_efficiency",
        "Parallel efficiency",
        unit="fraction",
        only_where_named=True,
        of="any",
        description="the speedup divided by how many times the baseline's devices the group uses",
    ),
    score(
        "accuracy_difference",
        "Accuracy less the baseline's",
        description="test accuracy minus the baseline's, seed by seed, where both did the same "
        "work (dataset, samples, epochs, steps, global batch, image size, mode, profile), on any "
        'machine. `reading`: "equal within 0.01", higher, lower, or what a decision would take',
    ),
)
METRICS = {metric.name: metric for metric in _ALL}
DEFAULT_METRICS = ("test_accuracy", "train_seconds", "speedup")


def label(metric: str) -> str:
    """Return a metric's name for readers: ``Training time``, ``Self time of aten::addmm``."""
    known = METRICS.get(metric)
    return known.label if known else operator_metrics.label(metric)
