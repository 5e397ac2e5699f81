"""The doctor: works on a bare Python, and says what each missing thing costs and what mends it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from parbench import cache, machine
from parbench.deploy import apptainer, build, doctor, environment

ROOT = Path(__file__).resolve().parent.parent
CHECKS = [
    "Python", "disk, work folder", "disk, cache", "memory", "cores", "accelerators", "compiler",
    "environment", "Horovod", "Apptainer", "user namespaces", "/dev/fuse", "Slurm", "git",
    "browser, for tests",
]  # fmt: skip


@pytest.fixture
def bare(tmp_path):
    """Run the doctor without site-packages and with nothing on PATH."""

    def run(*words: str, **more: str) -> subprocess.CompletedProcess:
        env = {"PATH": str(tmp_path), "PARBENCH_CACHE": str(tmp_path / "a cache"), "HOME": "/"}
        env |= {"PARBENCH_APPTAINER_PREFIX": str(tmp_path / "none")} | more
        command = [sys.executable, "-I", "-S", str(ROOT / "scripts" / "doctor.py"), *words]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)

    return run


def test_it_needs_nothing_but_python_and_whatever_is_lacking_has_a_price_and_a_remedy(bare):
    done = bare("--json")
    found = {each["check"]: each for each in json.loads(done.stdout)}
    assert (done.returncode, done.stderr) == (0, "")  # the quickstart runs
    assert list(found) == CHECKS
    for check in ("compiler", "Apptainer", "Slurm", "git", "browser, for tests"):
        assert found[check]["state"] == "missing"
    for each in found.values():
        lacking = each["state"] != "ok"
        assert (bool(each["costs"]), bool(each["mend"])) == (lacking, lacking), each
    assert found["Apptainer"]["found"] == "Apptainer is not installed"
    assert found["Apptainer"]["mend"].startswith("sudo make system")


def test_the_table_names_every_check_and_what_mends_it(bare):
    done = bare()
    lines = done.stdout.splitlines()
    for check in CHECKS:
        assert any(line.startswith(check + " ") for line in lines)
    assert "mend:  sudo apt install g++ make" in done.stdout


def test_without_slurm_it_says_where_to_run(bare):
    done = bare("--slurm")
    assert done.returncode == 1
    assert "Slurm  missing  no sbatch on PATH" in done.stdout
    assert "mend:  run on a login node" in done.stdout


def test_an_older_python_stops_everything_and_is_all_that_is_said():
    code = (
        "import sys, runpy; sys.hexversion = 0x030A0000;"
        f"runpy.run_path({str(ROOT / 'scripts' / 'doctor.py')!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "3.11 or newer is needed" in done.stderr
    assert "Traceback" not in done.stderr


def checks(monkeypatch, tmp_path, **more) -> dict[str, doctor.Check]:
    """What the doctor finds here, by name."""
    monkeypatch.setenv("PARBENCH_CACHE", str(tmp_path))
    for name, value in more.items():
        monkeypatch.setenv(name, value)
    return {each.check: each for each in doctor.examine()}


def test_a_full_disk_or_a_locked_one_stops_the_quickstart(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "GIB_NEEDED", 10**9)
    found = checks(monkeypatch, tmp_path)["disk, cache"]
    assert (found.state, found.essential) == ("missing", True)
    assert "export PARBENCH_CACHE=" in found.mend
    assert "GiB are needed" in found.costs
    monkeypatch.undo()
    monkeypatch.setattr(os, "access", lambda path, mode: "locked" not in str(path))
    (tmp_path / "locked").mkdir()
    found = checks(monkeypatch, tmp_path / "locked")["disk, cache"]
    assert (found.state, found.essential) == ("missing", True)
    assert "may not be written" in found.costs


def test_one_core_and_hidden_accelerators_are_limits(monkeypatch, tmp_path):
    card = {"name": "NVIDIA A100", "memory_mib": 40960, "driver": "580.1", "uuid": "GPU-aa"}
    monkeypatch.setattr(machine, "cores", lambda: 1)
    monkeypatch.setattr(machine, "accelerators", lambda: (card, card))
    found = checks(monkeypatch, tmp_path, CUDA_VISIBLE_DEVICES="0")
    assert found["cores"].state == found["accelerators"].state == "limited"
    assert "needs 2 cores" in found["cores"].costs
    assert "leaves 1" in found["accelerators"].found


def test_a_horovod_that_could_not_be_built_has_its_reason(monkeypatch, tmp_path):
    monkeypatch.setenv("PARBENCH_CACHE", str(tmp_path))
    folder = environment.environment_folder("current")
    folder.mkdir(parents=True)
    reason = {"available": False, "reason": "x.cc:1: error: no", "wheel": "w"}
    (folder / "horovod.json").write_text(json.dumps(reason))
    found = checks(monkeypatch, tmp_path)["Horovod"]
    assert (found.state, found.found) == ("missing", "x.cc:1: error: no")
    assert found.mend == "python3 scripts/environment.py ensure --retry-horovod"


# ---------------------------------------------------------------- Apptainer

HOST = "cells run in this machine's own environment"


@pytest.mark.parametrize(
    ("flags", "unpacked", "lack", "how", "state"),
    [
        ((), False, None, "runs images, builds them", "ok"),
        (("--userns",), False, None, "runs images in a user namespace, builds them", "ok"),
        ((), True, None, "runs images, unpacked to folders, builds them", "ok"),
        ((), False, "no ids; do this", "runs images, cannot build them: no ids", "limited"),
    ],
)
def test_apptainer_that_works_is_named_with_its_way(
    monkeypatch, tmp_path, flags, unpacked, lack, how, state
):
    answer = apptainer.Apptainer("/opt/a/apptainer", "1.4.5", flags, unpacked)
    monkeypatch.setattr(apptainer, "probe", lambda: answer)
    monkeypatch.setattr(apptainer, "lacking_subids", lambda: lack)
    monkeypatch.setattr(build, "debootstrap", lambda: "/usr/sbin/debootstrap")
    found = checks(monkeypatch, tmp_path)["Apptainer"]
    assert (found.state, found.found) == (state, f"1.4.5 (/opt/a/apptainer), {how}")
    assert found.mend == ("do this" if lack else "")


def test_apptainer_that_runs_nothing_says_why_and_what_mends_it(monkeypatch, tmp_path):
    mend = "sysctl -w user.max_user_namespaces=15000"
    trouble = "Apptainer 1.4.5 runs no image here: Failed to create user namespace"
    answer = apptainer.Apptainer("/a", "1.4.5", trouble=f"{trouble}. {mend}", mend=mend)
    monkeypatch.setattr(apptainer, "probe", lambda: answer)
    found = checks(monkeypatch, tmp_path)
    assert found["Apptainer"] == doctor.Check("Apptainer", "limited", trouble, HOST, mend)
    assert "disk, images" not in found


@pytest.mark.parametrize(
    ("free", "there", "state"), [(30, False, "ok"), (10, False, "limited"), (10, True, "ok")]
)
def test_images_need_disk_unless_they_are_there(monkeypatch, tmp_path, free, there, state):
    (tmp_path / "images").mkdir()
    if there:
        (tmp_path / "images" / "horovod-current-0123456789ab.sif").touch()
    usage = shutil.disk_usage(tmp_path)._replace(free=free * 2**30)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage)
    monkeypatch.setattr(apptainer, "probe", lambda: apptainer.Apptainer("/a", "1.4.5"))
    found = checks(monkeypatch, tmp_path)["disk, images"]
    assert found.state == state
    assert f"{free} GiB free in {cache.folder() / 'images'}" in found.found
    assert ("20 GiB" in found.costs) == ("PARBENCH_CACHE" in found.mend) == (state == "limited")
