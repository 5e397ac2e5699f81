"""Declare the metrics of Spark's sessions and streams; runs/metrics.py declares all others."""

from __future__ import annotations

from parbench.runs.metric import extra

SPARK = (
    extra(
        "session_seconds",
        "Start of the Spark session",
        unit="s",
        depends_on_clock=True,
        description="the time until the session of [Spark](spark.md) exists",
    ),
    extra(
        "first_batch_seconds",
        "First job",
        unit="s",
        depends_on_clock=True,
        description="the time of Spark's first job, in which workers start and load the model",
    ),
    extra(
        "task_skew",
        "Longest task over the median",
        unit="x",
        depends_on_clock=True,
        description="the time of the longest task of a Spark job over that of the median one",
    ),
    extra(
        "idle_cores",
        "Cores used by an idle session",
        unit="cores",
        depends_on_clock=True,
        description="how many cores an idle Spark session keeps busy on average",
    ),
    extra(
        "latency_median_seconds",
        "Latency, median",
        unit="s",
        depends_on_clock=True,
        description="of a [stream](spark.md#a-stream): from the moment an image is renamed into "
        "the folder to the commit of its result",
    ),
    extra(
        "latency_p95_seconds",
        "Latency, 95 %",
        unit="s",
        depends_on_clock=True,
        description="the latency that 95 % of the images do not exceed",
    ),
    extra(
        "latency_p99_seconds",
        "Latency, 99 %",
        unit="s",
        depends_on_clock=True,
        description="the latency that 99 % of the images do not exceed",
    ),
    extra(
        "instrument_cores",
        "Cores that producer and reader keep busy",
        unit="cores",
        depends_on_clock=True,
        description="how many of the stream's cores the producer of images and the reader of "
        "results keep busy on average",
    ),
    extra(
        "backlog",
        "Images waiting when the last one arrived",
        unit="images",
        depends_on_clock=True,
        description="images of a stream without a result when the last image arrived",
    ),
    extra(
        "delivered_share",
        "Images with exactly one result",
        unit="fraction",
        kind="accuracy",
        higher_is_better=True,
        description="the share of a stream's images with exactly one result",
    ),
    extra("lost", "Images lost", description="images of a stream without a result"),
    extra(
        "doubled",
        "Images with several results",
        description="images of a stream with more than one result",
    ),
    extra(
        "dead_letters",
        "Files put aside",
        description="files of a stream that are not images: they are moved aside, each with its "
        "reason, and do not stop the stream",
    ),
    extra(
        "kills",
        "Processes killed",
        description="how many of a stream's processes its option `kills` killed",
    ),
    extra(
        "driver_memory_mib",
        "Peak memory, Spark's driver",
        unit="MiB",
        description="peak resident memory of the driver's Java process, by Spark's own metrics",
    ),
    extra(
        "executor_memory_mib",
        "Peak memory, executor",
        unit="MiB",
        description="the same of the largest executor (with `local[n]`, the driver's process)",
    ),
    extra(
        "worker_memory_mib",
        "Peak memory, Python workers",
        unit="MiB",
        description="the same of an executor's Python workers together",
    ),
)
