"""Predict a stream: a producer, the driver of a streaming query, and a reader that counts results.

Producer and driver are separate processes because the driver may be killed; it is then started
again and resumes from Spark's checkpoint.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlparse

import numpy as np
import psutil
import pyarrow.parquet
import torch
from safetensors.torch import save_file

from parbench import files, variables
from parbench.errors import ParbenchError
from parbench.training import spark_inference, stream_driver, stream_producer
from parbench.training.run import Run

POLL_SECONDS = 0.5
QUIET_SECONDS = 45.0  # without a new result, after which missing ones count as lost
KILL_SECONDS = 8.0  # between two kills, on average
FOLDERS = ("coming", "images", "results", "dead")


def evaluate(run: Run) -> tuple[torch.Tensor, None]:
    """Return the predicted classes [N] (int64, CPU) of the test set; -1 for images without a
    result.

    Sets ``run.inference`` to the number of results and their time, and adds latencies, losses and
    duplicates to ``run.extra``.
    """
    stream = _Stream(run)
    try:
        stream.follow()
    finally:
        stream.end()
    return stream.measured(), None


class _Stream:
    """One run of the stream, in its own folder."""

    def __init__(self, run: Run):
        self.run, self.options = run, run.cell.strategy.options
        self.folder = Path(tempfile.mkdtemp(prefix="stream-", dir=os.environ.get("PARBENCH_STATE")))
        for name in FOLDERS:
            (self.folder / name).mkdir()
        spark_inference.keep_weights(run, self.folder)
        # Shuffled, since the dataset may be sorted by class and sent only in part.
        images = run.data.test_images
        self.order = np.random.default_rng(run.cell.seed).permutation(len(images))
        save_file({"images": images[self.order].contiguous()}, self.folder / "test.safetensors")
        description = {"predictor": asdict(spark_inference.predictor(run)), "options": self.options}
        files.write_json(self.folder / "stream.json", description)
        self.random = random.Random(run.cell.seed)  # noqa: S311
        self.killed: Counter[str] = Counter()
        self.results = Reader(self.folder / "results")
        self.workers: set[psutil.Process] = set()  # including those of dead drivers
        self.driver = self._start(stream_driver)
        self.producer: subprocess.Popen | None = None
        self.instrument_cores = 0.0  # cores that the producer and this process keep busy

    def _start(self, program: ModuleType) -> subprocess.Popen:
        environment = variables.without_sites_spark(variables.clean())
        environment["PYTHONPATH"] = str(spark_inference.SCRIPTS)
        return subprocess.Popen(
            [sys.executable, "-m", program.__name__, str(self.folder)],
            env=environment,
            stdin=subprocess.PIPE,  # it closes when this process ends (launched.py)
        )

    # ------------------------------------------------------------ while it runs

    def follow(self) -> None:
        """Run until all images are sent and have results, or no more are expected."""
        timeout = self.run.cell.run.timeout_seconds
        self._wait((self.folder / "ready").exists, timeout)
        self.producer = self._start(stream_producer)
        begun, cost = time.monotonic(), time.process_time()
        next_kill = time.monotonic() + self._pause()
        last_progress, result_count = time.monotonic(), 0
        while True:
            self.run.beat("evaluation")
            time.sleep(POLL_SECONDS)
            self._find_workers()
            if (count := sum(id_ >= 0 for id_ in self.results.committed())) != result_count:
                last_progress, result_count = time.monotonic(), count
            if self._kills_left() and time.monotonic() > next_kill:
                self._kill()
                last_progress = time.monotonic()  # a restart takes time, so the wait begins again
                next_kill = last_progress + self._pause()
            if self.driver.poll() is not None:
                self._restart_driver()
            if self.producer.poll():
                raise ParbenchError(
                    f"{self.run.cell.id}: the producer of images ended with status "
                    f"{self.producer.returncode}; see its output in the log"
                )
            if not self._kills_left():
                (self.folder / "enough").touch()
                quiet = time.monotonic() > last_progress + QUIET_SECONDS
                may_lack = quiet and not self.options["coordinated"]
                if self.producer.poll() is not None and (may_lack or self._is_complete()):
                    cost = time.process_time() - cost
                    cost += files.read_json(self.folder / stream_producer.COST)["cpu_seconds"]
                    self.instrument_cores = cost / (time.monotonic() - begun)
                    return
            if time.monotonic() > last_progress + timeout:
                raise ParbenchError(
                    f"{self.run.cell.id}: no result for {timeout:g} s, and {result_count} of "
                    f"{len(produced(self.folder))} are there; see the driver's output in the log"
                )

    def _wait(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            self.run.beat("start-up")
            time.sleep(POLL_SECONDS)
            if self.driver.poll() is not None or time.monotonic() > deadline:
                raise ParbenchError(
                    f"{self.run.cell.id}: the driver of the stream did not start; see its "
                    "output in the log"
                )

    def _pause(self) -> float:
        return self.random.expovariate(1 / KILL_SECONDS)

    def _kills_left(self) -> bool:
        return sum(self.killed.values()) < self.options["kills"]

    def _kill(self) -> None:
        """Kill a random process of a random kind: driver, executor or worker."""
        processes_by_kind: dict[str, list[psutil.Process]] = {}
        for process in self._find_workers():
            kind = "worker" if "pyspark.daemon" in _command_line(process) else "executor"
            processes_by_kind.setdefault(kind, []).append(process)
        if self.driver.poll() is None:
            processes_by_kind["driver"] = [psutil.Process(self.driver.pid)]
        kind = self.random.choice(sorted(processes_by_kind)) if processes_by_kind else None
        if kind is not None and _kill(self.random.choice(processes_by_kind[kind])):
            self.killed[kind] += 1

    def _find_workers(self) -> list[psutil.Process]:
        """Return the live JVMs and Python workers of the driver's application."""
        application = self.folder / "application"
        name = application.read_text() if application.exists() else "none yet"
        helpers = spark_inference.helpers_of(name)
        workers = [process for process in helpers if {"java", "pyspark.daemon"} & _names(process)]
        self.workers.update(workers)
        return workers

    def _restart_driver(self) -> None:
        """Start the driver again, once the previous one's processes have ended."""
        for worker in psutil.wait_procs(self.workers, timeout=10)[1]:
            _kill(worker)
        self.workers.clear()
        self.driver = self._start(stream_driver)

    def _is_complete(self) -> bool:
        """Return whether each file has a result or was rejected as a dead letter."""
        dead = {path.stem for path in (self.folder / "dead").glob("*.txt")}
        out = self.results.committed()
        return all(id_ in out or str(id_) in dead for id_ in produced(self.folder))

    def end(self) -> None:
        """End all processes of the stream."""
        for process in (self.producer, self.driver):
            if process is not None:
                assert process.stdin is not None
                process.stdin.close()
                process.kill()
                process.wait()
        for worker in psutil.wait_procs(self.workers, timeout=5)[1]:
            _kill(worker)

    # ------------------------------------------------------------ afterwards

    def measured(self) -> torch.Tensor:
        """Set the run's metrics from the results; return the predicted classes."""
        sent, results = produced(self.folder), self.results.committed()
        counted = results if self.options["coordinated"] else self.results.all_results()
        images = {id_: when for id_, when in sent.items() if id_ >= 0}
        times = {id_: result.first for id_, result in results.items() if id_ in images}
        if not times:
            raise ParbenchError(f"{self.run.cell.id}: none of {len(images)} images has a result")
        latencies = [times[id_] - images[id_] for id_ in times]
        first_sent, last_sent = min(images.values()), max(images.values())
        last_result = max(times.values())
        delivered_once = sum(counted[id_].number == 1 for id_ in images if id_ in counted)
        quantiles = np.quantile(latencies, (0.5, 0.95, 0.99))
        self.run.inference = {
            "samples": len(times),
            "seconds": last_result - first_sent,
        }
        self.run.extra |= {
            **json.loads((self.folder / "ready").read_text()),
            "latency_median_seconds": float(quantiles[0]),
            "latency_p95_seconds": float(quantiles[1]),
            "latency_p99_seconds": float(quantiles[2]),
            "backlog": sum(when > last_sent for when in times.values()) + len(images) - len(times),
            "delivered_share": delivered_once / len(images),
            "lost": sum(id_ not in counted for id_ in images),
            "doubled": sum(counted[id_].number > 1 for id_ in images if id_ in counted),
            "dead_letters": len(list((self.folder / "dead").glob("*.txt"))),
            "kills": sum(self.killed.values()),
            "instrument_cores": self.instrument_cores,
        }
        predictions = torch.full((len(self.run.data.test_labels),), -1)
        for id_ in times:
            predictions[self.order[id_ % len(predictions)]] = counted[id_].predicted
        return predictions


def _kill(process: psutil.Process) -> bool:
    """Kill a process; return False if it has just ended."""
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return False
    return True


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _names(process: psutil.Process) -> set[str]:
    return {Path(word).name for word in _command_line(process)[:3]}


# ------------------------------------------------------------ results


@dataclass
class Prediction:
    """An image's class, the time of its first result, and the number of its results."""

    predicted: int
    first: float
    number: int = 0


def produced(folder: Path) -> dict[int, float]:
    """Return when each file was sent, by id; ids below 0 are not images."""
    rows = (folder / stream_producer.MADE).read_text().split()
    return {int(id_): float(when) for id_, _, when in (row.partition(",") for row in rows)}


class Reader:
    """Reads the folder ``results``, the Parquet sink of the streaming query."""

    def __init__(self, results: Path):
        self._results = results
        self._known: set[str] = set()  # batches and files already read
        self._found: dict[int, Prediction] = {}

    def committed(self) -> dict[int, Prediction]:
        """Return the committed results, those in files that Spark's own log lists, by id.

        A batch counts once its log entry is there; files that no log lists are ignored.
        """
        log = self._results / "_spark_metadata"
        batches = (path for path in log.glob("[0-9]*") if path.name not in self._known)
        for path in sorted(batches, key=lambda path: int(path.stem)):
            self._known.add(path.name)
            _, *lines = path.read_text().splitlines()
            for entry in map(json.loads, lines):
                if entry["path"] not in self._known:  # a compacted log repeats all earlier entries
                    self._known.add(entry["path"])
                    file = Path(unquote(urlparse(entry["path"]).path))
                    _count(self._found, file, path.stat().st_mtime)
        return self._found

    def all_results(self) -> dict[int, Prediction]:
        """Return the results in all files, committed or not, by id."""
        results: dict[int, Prediction] = {}
        for path in self._results.glob("*.parquet"):
            _count(results, path, path.stat().st_mtime)
        return results


def _count(found: dict[int, Prediction], file: Path, when: float) -> None:
    try:
        rows = pyarrow.parquet.read_table(file).to_pylist()
    except pyarrow.ArrowInvalid:  # the process that wrote it was killed
        return
    for row in rows:
        found.setdefault(row["id"], Prediction(row["predicted"], when)).number += 1
