"""What the machine is, and what it can run."""

from __future__ import annotations

import json
import os
import sys

import pytest

from parbench import machine
from parbench.cell import Hardware
from parbench.measure import cores

A100 = {"name": "NVIDIA A100-SXM4-40GB", "memory_mib": 40960, "driver": "580.1", "uuid": "GPU-aa"}
H100 = {"name": "NVIDIA H100 80GB HBM3", "memory_mib": 81559, "driver": "580.1", "uuid": "GPU-bb"}


def hardware(device: str, devices: int, model=None, nodes: int = 1, threads: int = 1) -> Hardware:
    return Hardware("x", device, devices, threads, nodes, model)


@pytest.fixture
def cards(monkeypatch):
    """Return a function that pretends that the machine has these accelerators."""

    def pretend(*found: dict) -> None:
        monkeypatch.setattr(machine, "accelerators", lambda: found)

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return pretend


def test_accelerators_are_described_without_their_serial_numbers(cards):
    cards(A100)
    assert machine.describe()["accelerators"] == [
        {"name": "NVIDIA A100-SXM4-40GB", "memory_mib": 40960, "driver": "580.1"}
    ]


def test_the_fingerprint_is_steady_where_times_stay_comparable(cards):
    found = []
    for accelerators in ([A100], [{**A100, "driver": "590.0"}], [A100, A100], [H100], []):
        cards(*accelerators)
        found.append(machine.describe()["fingerprint"])
    assert found[0] == found[1] == found[2]  # a job may be given more GPUs
    assert len(set(found)) == 3


def test_a_containers_cpu_limit_counts(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "CGROUPS", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert machine.cores() == 8
    for limit, number in (("max 100000", 8), ("400000 100000", 4), ("50000 100000", 1)):
        (tmp_path / "cpu.max").write_text(limit)
        assert machine.cores() == number


# ---------------------------------------------------------------- available and missing


def test_available_looks_at_affinity_and_accelerators(cards):
    cards(A100, A100, H100)
    assert machine.available() == {"cpu": machine.cores(), "cuda": {"A100": 2, "H100": 1}}
    assert machine.available("auto") == machine.available(None)


@pytest.mark.parametrize(
    ("visible", "models"),
    [
        ("", {}),
        ("-1", {}),
        ("1", {"H100": 1}),
        ("0,1", {"A100": 1, "H100": 1}),
        ("0,9,1", {"A100": 1}),
        ("GPU-bb", {"H100": 1}),
        ("MIG-1234", {"A100": 1}),
    ],
)
def test_hidden_accelerators_are_not_available(cards, monkeypatch, visible, models):
    cards(A100, H100)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.available()["cuda"] == models


@pytest.mark.parametrize(
    ("wanted", "there", "reason"),
    [
        (hardware("cpu", 2), {"cpu": 2, "cuda": {}}, None),
        (hardware("cpu", 4), {"cpu": 2, "cuda": {}}, "needs 4 cores"),
        (hardware("cpu", 1, threads=2), {"cpu": 2, "cuda": {}}, None),
        (hardware("cpu", 2, threads=2), {"cpu": 2, "cuda": {}}, "needs 4 cores"),
        (hardware("mps", 1), {"cpu": 8, "cuda": {"A100": 8}}, "needs an Apple GPU"),
        (hardware("cuda", 2, "A100"), {"cpu": 2, "cuda": {}}, "needs 2x A100"),
        (hardware("cuda", 2, "A100"), {"cpu": 2, "cuda": {"A100": 1}}, "needs 2x A100"),
        (hardware("cuda", 2, "A100"), {"cpu": 2, "cuda": {"A100": 2}}, None),
        (hardware("cuda", 1, "A100"), {"cpu": 2, "cuda": {"NVIDIA A100-SXM4-40GB": 1}}, None),
        (hardware("cuda", 1, "A10"), {"cpu": 2, "cuda": {"A100": 4}}, "needs 1x A10"),
        (hardware("cuda", 1, "rtx 4090"), {"cpu": 2, "cuda": {"RTX 4090": 1}}, None),
        (hardware("cuda", 1), {"cpu": 2, "cuda": {"T4": 1}}, None),
        (hardware("cuda", 1), {"cpu": 2, "cuda": {}}, "needs 1 GPU"),
        (hardware("cuda", 2), {"cpu": 2, "cuda": {"T4": 1, "A100": 1}}, "needs 2 GPUs"),
        (hardware("cuda", 1, "A100", nodes=2), {"cpu": 2, "cuda": {"A100": 1}}, "needs 2 nodes"),
        (hardware("cpu", 1, nodes=2), {"cpu": 2, "cuda": {}, "nodes": 2}, None),
        (hardware("cpu", 2, nodes=2), {"cpu": 2, "cuda": {}}, "needs 4 cores: 2 nodes with 2 each"),
    ],
)
def test_missing(wanted, there, reason):
    assert machine.missing(wanted, there) == reason


# ---------------------------------------------------------------- Horovod


def test_what_horovod_lacks_has_the_builds_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    state, software = {"available": False, "reason": "x.cc:1: error: no"}, machine.Software()
    (tmp_path / "horovod.json").write_text(json.dumps(state))
    assert software.without_horovod() == "Horovod could not be built: x.cc:1: error: no"
    assert software.without_nccl().startswith("needs Horovod with NCCL")
    (tmp_path / "horovod.json").write_text(json.dumps({"available": True, "gpu": "nccl"}))
    assert software.without_nccl() is None


def test_cores_are_parted_among_processes(monkeypatch):
    """A process with two threads has two cores; processes on GPUs may share cores."""
    bound = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: bound.append(cores))
    for lent, processes, parts in (
        ("4,7", 1, [[4, 7]]),
        ("0,1,2,3", 2, [[0, 1], [2, 3]]),
        ("0,1", 2, [[0], [1]]),
        ("5", 2, [[5], [5]]),
    ):
        monkeypatch.setenv("PARBENCH_CORES", lent)
        assert [cores.pin(rank, processes) for rank in range(processes)] == parts
    assert bound[0] == [4, 7]
