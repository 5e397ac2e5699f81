"""`make gpu-evidence`: what it would train on one GPU, and its end where there is none.

No GPU is needed here: the plans are of a machine that is stated.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from parbench.plan import config, expansion
from workspace import ROOT

PROFILE = ROOT / "profiles" / "gpu.yaml"
ONE_GPU = {"available": {"cpu": 4, "cuda": {"H200": 1}}, "deployment": "host"}


@pytest.fixture(scope="module")
def plan():
    value = config.load(PROFILE) | ONE_GPU
    return expansion.plan(config.checked(value, [PROFILE]), [PROFILE])


def test_every_cell_for_one_gpu_is_planned_and_no_other_of_a_gpu(plan):
    assert list(plan.studies) == ["gorantla2024", "rangoju2025", "laharsh", "kamoji", "torchgpipe"]
    for name, study in plan.studies.items():
        content, variants = study.stated(), config.study(name).variants
        for group in content["groups"]:
            hardware, told = group["hardware"], group["not_run"]
            if hardware["device"] != "cuda":
                continue
            asked = variants[group["variant"]].hardware
            if asked.startswith("a30"):  # on any GPU, the cells of the A100 once more
                assert told == f"needs {hardware['devices']}x A30"
            elif hardware["devices"] == hardware["nodes"] == 1:
                assert told is None, (name, group["variant"])
            elif hardware["nodes"] == 2:
                assert told == "needs 2 nodes"
            else:
                assert told == f"needs {hardware['devices']} GPUs"
    # Two models at once take a GPU each.
    told = {g.not_run for g in plan.studies["laharsh"].groups if g.variant == "concurrent"}
    assert told == {"needs 2 GPUs"}


@pytest.mark.parametrize(("status", "said"), [(0, ""), (9, "no NVIDIA GPU, so that nothing was")])
def test_without_a_gpu_it_ends_in_a_sentence_before_anything_else(tmp_path, status, said):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nexit {status}\n")
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["make", ".gpu"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert (done.returncode != 0) == bool(status)
    assert said in done.stderr


def test_the_target_looks_for_a_gpu_then_runs_reports_and_keeps(plan):
    command = ["make", "--dry-run", "-j4", "gpu-evidence", "ARGS=mine.yaml --keep-going"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    overlay = "--configfile profiles/gpu.yaml mine.yaml"
    steps = [
        "nvidia-smi --list-gpus",
        f"reports/final.html reports/final.pdf {overlay} --keep-going",
        "scripts/evidence.py write\n",
    ]
    places = [done.stdout.index(step) for step in steps]
    assert places == sorted(places)
    assert "environment.py" not in done.stdout[: places[0]]
    asked = plan.studies["kamoji"].arguments
    assert asked == ["--configfile", "profiles/gpu.yaml", "--config", "studies=[kamoji]"]
