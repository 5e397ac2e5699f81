"""Who trains a cell, and what a run leaves for the one after it."""

from __future__ import annotations

import json
import os
import socket
import threading
import time

import pytest

import claim
import constructed
import files
import job
import provenance
import record
from stopping import Stop, Stopped

OWN = job.Job(7, nodes=("n1",))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(claim, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(claim, "SILENT_SECONDS", 1.0)
    monkeypatch.setattr(claim, "BEAT_SECONDS", 0.2)


def other(folder, **changes):
    """A claim of somebody on another machine."""
    value = {"job": 5, "host": "elsewhere", "pid": 1, "started": "then", "nodes": ["n2"]} | changes
    files.write_json(folder / "running.json", value)
    return value


def test_a_claim_tells_who_it_is_and_goes_with_him(tmp_path):
    with Stop() as stop, claim.claimed(tmp_path, "a cell", OWN, stop):
        told = json.loads((tmp_path / "running.json").read_text())
        assert (told["job"], told["pid"], told["nodes"]) == (7, os.getpid(), ["n1"])
        assert told["host"] == socket.gethostname()
    assert not (tmp_path / "running.json").exists()


@pytest.mark.parametrize("state", [None, "PENDING", "FAILED"])
def test_a_job_that_holds_nothing_loses_its_claim_at_once(tmp_path, monkeypatch, state):
    monkeypatch.setattr(claim, "SILENT_SECONDS", 1000.0)
    monkeypatch.setattr(job, "state", lambda number: {5: state}[number])
    other(tmp_path)
    with Stop() as stop, claim.claimed(tmp_path, "a cell", OWN, stop):
        assert json.loads((tmp_path / "running.json").read_text())["job"] == 7


def test_a_living_job_is_waited_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(job, "state", lambda number: "RUNNING")
    value = other(tmp_path)

    def live():
        for _ in range(20):
            os.utime(tmp_path / "running.json")
            time.sleep(0.1)
        (tmp_path / "running.json").unlink()

    living = threading.Thread(target=live)
    living.start()
    before = time.monotonic()
    with Stop() as stop, claim.claimed(tmp_path, "a cell", OWN, stop):
        assert time.monotonic() - before > 1.5
    living.join()
    said = capsys.readouterr().err
    assert said.count("waiting for job 5 on elsewhere") == 1
    assert value["host"] in said


@pytest.mark.parametrize("number", [5, 7, None])
def test_whoever_says_nothing_is_dead(tmp_path, monkeypatch, number):
    monkeypatch.setattr(job, "state", lambda number: "")  # Slurm does not answer
    other(tmp_path, job=number)
    before = time.monotonic()
    with Stop() as stop, claim.claimed(tmp_path, "a cell", OWN, stop):
        assert time.monotonic() - before > 0.9


def test_the_dead_of_this_machine_are_known_by_their_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(claim, "SILENT_SECONDS", 1000.0)
    other(tmp_path, job=None, host=socket.gethostname())
    with Stop() as stop, claim.claimed(tmp_path, "a cell", None, stop):
        assert json.loads((tmp_path / "running.json").read_text())["pid"] == os.getpid()


def test_who_was_taken_for_dead_ends(tmp_path):
    def train():
        with Stop() as stop, claim.claimed(tmp_path, "a cell", OWN, stop):
            other(tmp_path)
            time.sleep(5)

    with pytest.raises(Stopped):
        train()
    assert json.loads((tmp_path / "running.json").read_text())["job"] == 5  # not his to remove


@pytest.fixture
def finished(tmp_path):
    """A folder of a cell whose job 5 has finished it, and what a later launcher asks with."""
    folder = tmp_path / "results" / "cells" / "x"
    cell = constructed.make_cell("x", "swin", "eager", constructed.make_hardware())
    data = tmp_path / "data"
    files.write_json(data / "digest.json", {"sha256": "0" * 64})
    metrics = constructed.make_metrics(cell)
    code = provenance.cell_code("eager", cell["model"]["name"])
    metrics["environment"] |= {
        "code_digest": provenance.combined(code),
        "image_digest": None,
        "dataset_digest": "0" * 64,
    }
    out = folder / "metrics.json"
    files.write_json(out, metrics)
    record.finished(folder, out, 3.0, 5)
    out.unlink()  # as Snakemake does
    files.write_json(tmp_path / "results" / "plan" / "taken_over.json", {"x": "5"})
    return folder, out, cell, data, None


def test_the_result_of_a_job_whose_workflow_died_is_taken(finished):
    folder, out, *_ = finished
    assert record.take_over(*finished) == "job 5"
    assert json.loads(out.read_text())["status"] == "ok"
    assert (folder / "finished.json").exists()


def test_without_slurm_it_is_an_earlier_run(finished, tmp_path):
    folder, out, *_ = finished
    value = json.loads((folder / "finished.json").read_text())
    files.write_json(folder / "finished.json", {**value, "job": None})
    assert record.left_behind(folder, finished=True)["job"] is None
    assert record.left_behind(folder, finished=False) is None
    files.write_json(tmp_path / "results" / "plan" / "taken_over.json", {"x": None})
    assert record.take_over(*finished) == "an earlier run"
    assert json.loads(out.read_text())["status"] == "ok"


@pytest.mark.parametrize("change", ["job", "cell", "data", "image", "unknown", "damaged"])
def test_another_result_is_not_taken(finished, tmp_path, change):
    folder, out, cell, data, image = finished
    plan = tmp_path / "results" / "plan" / "taken_over.json"
    if change == "job":
        files.write_json(plan, {"x": 6})
    elif change == "cell":
        cell = {**cell, "seed": cell["seed"] + 1}
    elif change == "data":
        files.write_json(data / "digest.json", {"sha256": "1" * 64})
    elif change == "image":
        image = {"sha256": "2" * 64}
    elif change == "unknown":
        plan.unlink()
    else:
        (folder / "finished.json").write_text('{"job": 5, "metr')
    assert record.take_over(folder, out, cell, data, image) is None
    assert not out.exists()
    assert not (folder / "finished.json").exists()
