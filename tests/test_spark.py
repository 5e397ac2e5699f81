"""Spark predicts what one process does: locally, on a cluster, and over a stream despite kills.

``PARBENCH_KILLS`` is the number of kills, by default 3; `make chaos-stream` sets 20.
"""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

import as_json
import training
from launched import Launched, wait_for
from parbench import models, strategies
from parbench.cell import Cell
from parbench.data import dataset, loader, saved_weights, text_input
from parbench.errors import ParbenchError
from parbench.measure import metrics_json
from require import require, require_package
from workspace import ROOT, Workspace

TOLD = ("session_seconds", "first_batch_seconds", "task_skew", "idle_cores")
MEMORY = ("driver_memory_mib", "executor_memory_mib", "worker_memory_mib")
GRAMMAR = {"kind": "grammar", "train_samples": 240, "test_samples": 60, "seed": 0}
OF_TEXTS = {"max_length": 32, "train_samples": None, "test_samples": None}


@pytest.fixture(scope="module", autouse=True)
def _packages():
    require_package("spark", "pyspark")
    require("spark")


@pytest.fixture
def home(tmp_path, digits):
    """Return a folder with results/data/digits."""
    (tmp_path / "results/data").mkdir(parents=True)
    (tmp_path / "results/data/digits").symlink_to(digits)
    return tmp_path


def kept_by(trainer: Cell, home, seen, classes: int = 10) -> torch.nn.Module:
    """Build the model of ``trainer``, keep its weights in ``home`` as if trained; return it."""
    strategy = strategies.of(trainer)
    strategy.setup()
    of = trainer.model
    model = strategy.wrap(models.load(of.name).build(classes, seen, of.options)).eval()
    weights = model.state_dict()
    folder = home / "results/cells" / trainer.id
    folder.mkdir(parents=True)
    saved_weights.keep(weights, metrics_json.weights_sha256(weights), folder)
    return model


def by_spark(
    trainer: Cell, data, home, strategy: str = "spark", root: Path = ROOT, **changes
) -> dict:
    """Predict with the weights of ``trainer`` on two cores, by the programs of ``root``; return
    metrics.json. ``changes`` are the strategy's options, and ``run`` the run settings."""
    template = training.cell(strategy, **{k: v for k, v in changes.items() if k != "run"})
    value = replace(
        training.altered(trainer, hardware={"threads": 2}, run=changes.get("run", {})),
        id="predicts",
        strategy=template.strategy,
        trained_by=trainer.id,
    )
    it = Launched(value, data, home, root)
    status, _, errors = it.run()
    assert status == 0, errors + it.log.read_text()
    wait_for(lambda: not it.processes())
    return as_json.read(it.out)


def digest(predictions: torch.Tensor) -> str:
    return metrics_json.weights_sha256({"predictions": predictions})


def test_predictions_are_those_of_one_process(home):
    """For each sample, with partitions that are no whole number of batches."""
    trainer, folder = training.cell(), home / "results/data/digits"
    model = kept_by(trainer, home, trainer.training.image_size)
    data = loader.load(folder, "cpu", test_samples=101)
    with torch.no_grad():
        images, _ = loader.Augment(data, 0, 32, augment=False).test_batch(0, 101)
        expected = model(images).argmax(1)
    found = by_spark(trainer, folder, home, partitions=3)
    assert found["predictions_sha256"] == digest(expected)
    assert found["test_accuracy"] == (expected == data.test_labels).double().mean().item()
    assert found["inference"]["samples"] == 3 * 101
    assert all(found[key] > 0 for key in (*TOLD, *MEMORY))
    assert found["task_skew"] >= 1 > found["idle_cores"]


def test_texts_on_a_cluster_of_two_workers(home):
    """A real cluster, by the README's commands; nothing of it is left afterwards."""
    require_package("text", "transformers")
    folder = home / "results/data/grammar"
    dataset.prepare("grammar", GRAMMAR, folder / "data.safetensors", folder / "digest.json")
    data = loader.load(folder, "cpu", vocabulary="wordpiece", max_length=32)
    trainer = training.cell("eager", model="tinybert", **OF_TEXTS)
    small = models.options("tinybert", models.load("tinybert").SMALL)
    trainer = replace(trainer, model=replace(trainer.model, options=small))
    model = kept_by(trainer, home, data.vocabulary, len(data.classes))
    with torch.no_grad():
        expected = model(text_input.TextInput(data, "longest").test_batch(0, 60)[0]).argmax(1)

    work = Workspace(home / "work")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    up = ("spark", "up", "--port", str(port))
    said = work.parbench(*up).stdout
    try:
        address = f"spark://127.0.0.1:{port}"
        assert f"spark: {{master: '{address}'}}" in said
        cluster = {"cluster": True, "executors": 2, "run": {"spark_master": address}}
        found = by_spark(trainer, folder, home, **cluster)
        assert (
            "a cluster is already running; end it: make spark-down"
            in work.parbench(*up, check=False).stderr
        )
    finally:
        assert "the cluster is ended" in work.parbench("spark", "down").stdout
    assert found["predictions_sha256"] == digest(expected)
    lines = (each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"]))
    assert not [words for words in lines if address in words]


def streamed(home, **options) -> dict:
    """Run a stream of digits; return metrics.json."""
    trainer = training.cell()
    kept_by(trainer, home, trainer.training.image_size)
    return by_spark(trainer, home / "results/data/digits", home, "stream", **options)


def test_each_image_of_a_stream_comes_out_once_whatever_is_killed(home):
    """Driver, executor or worker, at random moments; broken images stop nothing."""
    kills = int(os.environ.get("PARBENCH_KILLS", "3"))
    found = streamed(home, rate=4, seconds=5, kills=kills, broken=2)
    assert (found["kills"], found["lost"], found["doubled"]) == (kills, 0, 0)
    assert found["delivered_share"] == 1
    assert found["dead_letters"] == 2
    assert found["inference"]["samples"] >= 20
    assert 0 < found["latency_median_seconds"] <= found["latency_p95_seconds"]
    assert 0 < found["instrument_cores"] < 1  # producer and reader, beside the stream


def test_a_stream_without_coordination_loses_images(home):
    """As in the source: images are read while they are written."""
    work = Workspace(home / "work")
    producer = "scripts/parbench/training/stream_producer.py"
    until_read = """
        while not any((folder / "dead").iterdir()):  # the half of the first image is read
            time.sleep(0.01)
"""
    line = "        self.finish(time.monotonic())\n"
    work.edit(producer, line, until_read.lstrip("\n") + line)
    options = {"coordinated": False, "write_seconds": 0, "root": work.folder}
    found = streamed(home, rate=4, seconds=5, **options)
    assert found["lost"] > 0
    assert found["delivered_share"] < 1
    assert found["dead_letters"] >= found["lost"]


def test_weights_that_are_gone_or_anothers_are_refused(home):
    trainer = training.cell()
    model = kept_by(trainer, home, trainer.training.image_size)
    cell, data = replace(trainer, trained_by=trainer.id), home / "results/data/digits"
    path = home / "results/cells" / trainer.id / saved_weights.WEIGHTS
    for spoil in (lambda: path.write_bytes(path.read_bytes()[:-4] + b"\0\1\2\3"), path.unlink):
        spoil()
        with pytest.raises(ParbenchError, match=r"damaged, or not the weights of cell .*; delete"):
            saved_weights.load(model, cell, data)


STUDY = """
title: t
description: t
citation: null
dataset: digits
seeds: [0]
settings: {epochs: 1, global_batch: 48, optimizer: sgd, learning_rate: 0.01, schedule: constant}
models: {simple_cnn: {}}
variants:
  trained: {strategy: eager, hardware: cpu1t2}
  torch: {strategy: eager, hardware: cpu1t2, trained_by: trained, settings: {evaluation_batch: 8}}
tables: [{title: t, variants: [torch], metrics: [test_accuracy]}]
"""


def test_who_predicts_is_trained_for_and_knows_of_other_weights(tmp_path):
    """A trainer is stale when its weights are gone; a predicting cell, when they changed."""
    work = Workspace(tmp_path / "work")
    (work.folder / "studies/inference.yaml").write_text(STUDY)
    mine = ["--config", "studies=[inference]", "deployment=host"]
    of_study = ["--study", "inference"]
    told = work.parbench("cells", *of_study).stdout.splitlines()
    names = [line.split()[0] for line in told if line.startswith("simple_cnn")]
    files = [f"results/cells/{name}/metrics.json" for name in names]
    work.run("-m", "snakemake", "--quiet", "all", "--cores", "2", *mine, "--", *files)
    cells = work.folder / "results/cells"
    (trainer,) = (name for name in names if (cells / name / saved_weights.DIGEST).exists())
    (who,) = set(names) - {trainer}
    first, second = (as_json.read(cells / name / "metrics.json") for name in (trainer, who))
    assert second["confusion"] == first["confusion"]
    assert second["weights_sha256"] == first["weights_sha256"]
    assert second["train_seconds"] is None

    (cells / trainer / saved_weights.DIGEST).write_text('{"sha256": "0"}')
    said = work.parbench("why", *of_study, who).stdout
    assert f"the weights of {trainer}, which it starts from, changed" in said
    (cells / trainer / saved_weights.DIGEST).unlink()
    assert "its weights, but they were not kept" in work.parbench("why", *of_study, trainer).stdout
    work.run("-m", "snakemake", "--quiet", "all", "--cores", "2", *mine, "--", *files)
    assert (cells / trainer / saved_weights.DIGEST).exists()
