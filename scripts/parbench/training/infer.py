"""Predict the test set with weights that another cell has trained."""

from __future__ import annotations

import importlib
import os
import time
from pathlib import Path
from types import ModuleType

from parbench.cell import Cell
from parbench.data import saved_weights
from parbench.measure import metrics_json, scores
from parbench.strategies._base import Strategy
from parbench.training import compiling, evaluation
from parbench.training.progress import Heartbeat
from parbench.training.set_up import set_up


def engine(strategy: Strategy) -> ModuleType:
    """Return the module that predicts; like evaluation.py it has ``evaluate`` and ``turns``."""
    return importlib.import_module(f"parbench.training.{strategy.ENGINE}")


def infer(
    cell: Cell, data_folder: Path, out: Path, strategy: Strategy, heartbeat: Heartbeat
) -> None:
    """Load the weights and predict as one rank of ``cell``; rank 0 writes ``out``."""
    launch_time = float(os.environ.get("PARBENCH_LAUNCHED", time.time()))
    run, environment = set_up(cell, data_folder, strategy, heartbeat)
    sha256 = saved_weights.load(run.model, cell, data_folder)
    if cell.training.compile != "none":
        passes = evaluation.passes(run)
        run.extra["compile_seconds"] = compiling.compile_all(run, passes)
    startup = strategy.reduced([time.time() - launch_time], "max")[0]
    run.place.epoch = cell.training.epochs - 1  # the last epoch, since only its evaluation warms up
    with run.meters.timed():
        predictions, _ = engine(strategy).evaluate(run)
    run.meters.hold(*run.held_tensors())
    memory = run.meters.peak_memory()
    if not strategy.leads:
        return
    labels = run.data.test_labels.cpu().numpy()
    delivered = (predictions >= 0).numpy()  # a stream may lose images
    metrics_json.write_run(
        out,
        run.cell,
        "ok",
        None,
        run.started,
        data_folder,
        extra=run.extra,
        startup_seconds=startup,
        peak_memory_mib=memory,
        inference=run.inference,
        weights_sha256=sha256,
        predictions_sha256=metrics_json.weights_sha256({"predictions": predictions}),
        environment=environment,
        **scores.classification(
            labels[delivered], predictions.numpy()[delivered], len(run.data.classes)
        ),
    )
