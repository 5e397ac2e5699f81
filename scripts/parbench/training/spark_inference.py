"""Predict the test set with Spark: executors predict the records of a DataFrame.

This process is the driver. Spark itself sends the weights and parbench's code to the executors,
which need Python with the packages of the stack, but no shared disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import pyarrow
import torch
from pyspark.ml.functions import predict_batch_udf
from pyspark.sql import SparkSession, types
from safetensors.torch import save_file

from parbench import variables
from parbench.cell import Cell
from parbench.errors import ParbenchError
from parbench.measure import load
from parbench.measure.clocks import Stopwatch
from parbench.training import spark_worker
from parbench.training.run import Run

SCRIPTS = Path(__file__).resolve().parents[2]
JOBS = 3  # timed jobs in steady state, after two untimed ones
HOST = "127.0.0.1"
IDLE_SECONDS = 3.0
CLUSTER_SECONDS = 60.0  # within which a cluster must provide the cores
FAILURES = 4  # failures of a task until its job fails, as on a cluster
MIB = 2**20


def evaluate(run: Run) -> tuple[torch.Tensor, None]:
    """Return the predicted classes [N] (int64, CPU) of the test set.

    Sets ``run.inference`` to the time of JOBS jobs in steady state, and adds start-up times,
    memory, idle load and task skew to ``run.extra``.
    """
    session = Session(run)
    try:
        with Stopwatch([]) as first:
            session.predict()
        session.predict()
        with Stopwatch([]) as watch:
            for _ in range(JOBS):
                predicted = session.predict()
        run.inference = {
            "samples": JOBS * len(predicted),
            "seconds": watch.seconds,
        }
        run.extra |= {
            "session_seconds": session.seconds,
            "first_batch_seconds": first.seconds,
            "task_skew": session.skew(),
            "idle_cores": session.idle_cores(),
            **session.memory(),
        }
    finally:
        session.spark.stop()
    return predicted, None


def turns(run: Run) -> tuple[Callable[[], int], list[int]]:
    """Return a function that predicts the test set in one job and returns its number of samples;
    and the PIDs of JVM, executors and Python workers on this machine."""
    session = Session(run)

    def step() -> int:
        run.beat("turn")
        return len(session.predict())

    step()
    return step, session.helpers()


def start_session(cell: Cell) -> SparkSession:
    """Start a session with the cores of ``cell``, on this machine or on the site's cluster."""
    cores, executors = cell.hardware.threads, cell.strategy.options.get("executors", 1)
    master, site_conf = f"local[{cores},{FAILURES}]", {}
    if cluster := cell.strategy.options.get("cluster", False):
        assert cell.run.spark_master is not None  # cells are planned only if it is set
        master, site_conf = cell.run.spark_master, cell.run.spark_conf
    if not cluster or f"//{HOST}:" in master:  # not the site's Spark, so its settings do not apply
        for name in variables.OF_SITES_SPARK:
            os.environ.pop(name, None)
    # Without spark-submit, only this variable selects the workers' Python.
    os.environ["PYSPARK_PYTHON"] = site_conf.get("spark.pyspark.python", sys.executable)
    if not cluster or f"//{HOST}:" in master:
        os.environ["SPARK_LOCAL_IP"] = HOST  # hides this session's pages from others
    conf = {
        "spark.app.name": cell.id or "parbench",
        "spark.ui.port": "0",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(cell.training.evaluation_batch),
        "spark.executor.processTreeMetrics.enabled": "true",
        "spark.executor.metrics.pollingInterval": "200ms",
        "spark.executor.cores": str(cores // executors),
        "spark.executor.instances": str(executors),  # for YARN and Kubernetes
        "spark.cores.max": str(cores),  # for a standalone cluster
    }
    if not cluster:
        conf |= dict.fromkeys(("spark.driver.host", "spark.driver.bindAddress"), HOST)
    builder = SparkSession.builder.master(master)
    for key, value in {**conf, **site_conf}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def send_to_executors(spark: SparkSession, weights: Path) -> None:
    """Send parbench's code and the file ``weights`` to the executors."""
    package = shutil.make_archive(str(weights.with_name("parbench")), "zip", SCRIPTS, "parbench")
    spark.sparkContext.addPyFile(package)
    spark.sparkContext.addFile(str(weights))


def keep_weights(run: Run, folder: Path) -> Path:
    """Write the model's weights for `send_to_executors`; return the file."""
    path = folder / spark_worker.WEIGHTS
    save_file({name: value.contiguous() for name, value in run.model.state_dict().items()}, path)
    return path


def predictor(run: Run) -> spark_worker.Predictor:
    """Return the predictor of ``run``, with what workers must know."""
    return spark_worker.Predictor(
        cell=run.cell.json(),
        classes=len(run.data.classes),
        shape=list(run.data.test_images.shape[1:]),
        mean=run.data.mean,
        std=run.data.std,
        vocabulary=run.data.vocabulary,
    )


def helpers_of(application: str) -> list[psutil.Process]:
    """Return this machine's executors of ``application``, their descendants and this process's."""
    words_by_process = {
        process: process.info["cmdline"] or () for process in psutil.process_iter(["cmdline"])
    }
    executors = [process for process, words in words_by_process.items() if application in words]
    own_children = psutil.Process().children(recursive=True)
    executor_children = []
    for process in executors:
        with contextlib.suppress(psutil.NoSuchProcess):  # the process has just ended
            executor_children += process.children(recursive=True)
    return list(dict.fromkeys([*own_children, *executors, *executor_children]))


class Session:
    """A Spark session with the test set of ``run`` in its executors' memory.

    ``seconds``: the time that its start took.
    """

    def __init__(self, run: Run):
        self.run, cell = run, run.cell
        self.options, self.cores = cell.strategy.options, cell.hardware.threads
        run.beat("start-up")
        with Stopwatch([]) as watch:
            self.spark = start_session(cell)
            if self.options["cluster"]:
                self._await_cores()
        self.seconds = watch.seconds
        self._load_executors()
        run.beat("start-up")

    def _await_cores(self) -> None:
        """Wait for the executors. Raises ParbenchError if cores are missing after
        CLUSTER_SECONDS."""
        deadline = time.monotonic() + CLUSTER_SECONDS
        while True:
            rows = (row for row in self._query("executors") if row["id"] != "driver")
            if (cores := sum(row["totalCores"] for row in rows)) >= self.cores:
                return
            if time.monotonic() > deadline:
                fix = "start it (make spark-up), or correct `spark: {master: ...}` in config.yaml"
                if cores:
                    fix = "choose a larger cluster, fewer threads or more executors"
                raise ParbenchError(
                    f"{self.run.cell.id}: the Spark cluster at {self.run.cell.run.spark_master} "
                    f"provides {cores} of {self.cores} cores, in executors of "
                    f"{self.cores // self.options['executors']}; {fix}"
                )
            self.run.beat("start-up")
            time.sleep(0.5)

    def _load_executors(self) -> None:
        """Send code, weights and records to the executors."""
        run = self.run
        folder = Path(tempfile.mkdtemp(prefix="spark-", dir=os.environ.get("PARBENCH_STATE")))
        send_to_executors(self.spark, keep_weights(run, folder))
        load: Any = predictor(run).load  # Spark's annotations are too narrow
        predict = predict_batch_udf(
            load,
            return_type=types.LongType(),
            batch_size=run.training.evaluation_batch,
        )
        number = self.cores * self.options["partitions"]
        records = self.spark.createDataFrame(_records(run)).repartition(number).cache()
        records.count()  # fills the cache
        self.frame = records.select("id", predict("record").alias("predicted"))

    def predict(self) -> torch.Tensor:
        """Predict the whole test set in one job; return the classes [N]."""
        table = self.frame.toArrow()
        ids = torch.from_numpy(table["id"].to_numpy())
        predicted = torch.full((len(self.run.data.test_labels),), -1)
        predicted[ids] = torch.from_numpy(table["predicted"].to_numpy())
        if len(ids) != len(predicted) or bool((predicted < 0).any()):
            raise ParbenchError(
                f"{self.run.cell.id}: Spark returned {len(ids)} predictions for {len(predicted)} "
                "records, or some of them twice"
            )
        self.run.beat("evaluation")
        return predicted

    # ------------------------------------------------------------ from Spark's own metrics

    def skew(self) -> float:
        """Return the time of the last job's longest task divided by that of its median task."""
        stages = [stage for stage in self._query("stages?status=complete") if stage["numTasks"] > 0]
        last = max(stages, key=lambda stage: stage["stageId"])
        path = f"stages/{last['stageId']}/{last['attemptId']}/taskList?length=100000"
        times = [task["taskMetrics"]["executorRunTime"] for task in self._query(path)]
        return max(times) / max(1.0, statistics.median(times))  # milliseconds

    def memory(self) -> dict[str, float]:
        """Return peak resident memory in MiB: the driver's JVM, the largest executor's JVM, and
        the most that the Python workers of one executor use together.

        With local[n] the driver's JVM is the executor.
        """
        rows = {row["id"]: row.get("peakMemoryMetrics") or {} for row in self._query("executors")}
        driver = rows.pop("driver")
        executors = list(rows.values()) or [driver]
        return {
            "driver_memory_mib": _peak([driver], "JVM"),
            "executor_memory_mib": _peak(executors, "JVM"),
            "worker_memory_mib": _peak(executors, "Python"),
        }

    def _query(self, path: str) -> list[dict]:
        context = self.spark.sparkContext
        address = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/{path}"
        with urlopen(address, timeout=30) as answer:  # noqa: S310 (this process's own server)
            return json.load(answer)

    def helpers(self) -> list[int]:
        """Return the PIDs of this session's other processes on this machine."""
        application = self.spark.sparkContext.applicationId
        return sorted(process.pid for process in helpers_of(application))

    def idle_cores(self) -> float:
        """Return how many cores the session uses while idle."""
        helpers = self.helpers()
        before = sum(map(load.used, helpers))
        time.sleep(IDLE_SECONDS)
        return (sum(map(load.used, helpers)) - before) / IDLE_SECONDS


def _peak(rows: list[dict], kind: str) -> float:
    return max((row.get(f"ProcessTree{kind}RSSMemory", 0) for row in rows), default=0) / MIB


def _records(run: Run) -> pyarrow.Table:
    """Return the test set: ids, and the bytes of images or of texts' tokens without padding."""
    rows, lengths = run.data.test_images.numpy(), run.data.test_lengths
    ends = [None] * len(rows) if lengths is None else lengths.tolist()
    record = [row[:end].tobytes() for row, end in zip(rows, ends, strict=True)]
    schema = pyarrow.schema([("id", pyarrow.int64()), ("record", pyarrow.binary())])
    return pyarrow.table({"id": range(len(record)), "record": record}, schema=schema)
