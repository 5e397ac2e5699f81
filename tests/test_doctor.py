"""The doctor: works on a bare Python, and says what each missing thing costs and what mends it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import apptainer
import cache
import doctor
import environment
import machine
import system

ROOT = Path(__file__).resolve().parent.parent
CHECKS = [
    "Python", "pip", "disk, work folder", "disk, cache", "memory", "cores", "accelerators",
    "compiler", "environment", "Horovod", "Apptainer", "user namespaces", "/dev/fuse", "Slurm",
    "git", "browser, for tests",
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


def test_it_needs_nothing_but_python(bare):
    done = bare("--json")
    findings = json.loads(done.stdout)
    assert done.stderr == ""
    assert [finding["check"] for finding in findings] == CHECKS
    states = {finding["check"]: finding["state"] for finding in findings}
    assert states["Python"] == "ok"
    for check in ("compiler", "Apptainer", "Slurm", "git", "browser, for tests"):
        assert states[check] == "missing"


def test_whatever_is_lacking_has_a_price_and_a_remedy(bare):
    for finding in json.loads(bare("--json").stdout):
        lacking = finding["state"] != "ok"
        assert bool(finding["costs"]) == lacking, finding
        assert bool(finding["mend"]) == lacking, finding


def test_without_slurm_it_says_where_to_run(bare):
    done = bare("--slurm")
    assert done.returncode == 1
    assert "Slurm  missing  no sbatch on PATH" in done.stdout
    assert "mend:  run on a login node" in done.stdout


def test_nothing_of_that_stops_the_quickstart(bare):
    done = bare()
    assert done.returncode == 0
    assert "mend:  sudo apt install g++ make" in done.stdout


def test_the_table_names_every_check(bare):
    lines = bare().stdout.splitlines()
    for check in CHECKS:
        assert any(line.startswith(check + " ") for line in lines)


def test_a_full_disk_stops_the_quickstart(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PARBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(environment, "GIB_NEEDED", 10**9)
    monkeypatch.setattr(sys, "argv", ["doctor.py"])
    assert doctor.main() == 1
    assert "export PARBENCH_CACHE=" in capsys.readouterr().out


def test_an_older_python_stops_everything_and_is_all_that_is_said(monkeypatch):
    monkeypatch.setattr(sys, "hexversion", 0x030A0000)
    (finding,) = doctor.examine()
    assert (finding.state, finding.essential) == ("missing", True)
    assert "3.11" in finding.costs


def test_one_core_is_limited(monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 1)
    assert doctor._cores().state == "limited"
    assert "needs 2 cores" in doctor._cores().costs


def test_hidden_accelerators_are_mentioned(monkeypatch):
    card = {"name": "NVIDIA A100", "memory_mib": 40960, "driver": "580.1", "uuid": "GPU-aa"}
    monkeypatch.setattr(machine, "accelerators", lambda: (card, card))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert doctor._accelerators().state == "limited"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert doctor._accelerators().state == "ok"


def test_a_horovod_that_could_not_be_built_has_its_reason(monkeypatch, tmp_path):
    reason = {"available": False, "reason": "x.cc:1: error: no"}
    (tmp_path / "horovod.json").write_text(json.dumps(reason))
    monkeypatch.setattr(doctor, "_ready_environment", lambda: tmp_path)
    ready, horovod = doctor._environment()
    assert (ready.state, horovod.state) == ("ok", "missing")
    assert horovod.found == "x.cc:1: error: no"
    assert "--retry-horovod" in horovod.mend


@pytest.mark.parametrize("content", ["{", "[]", "{}", None])
def test_a_record_of_horovod_that_cannot_be_read_is_mended(monkeypatch, tmp_path, content):
    if content is not None:
        (tmp_path / "horovod.json").write_text(content)
    monkeypatch.setattr(doctor, "_ready_environment", lambda: tmp_path)
    _, horovod = doctor._environment()
    assert horovod.state == "missing"
    assert horovod.found
    # a fresh Debian has no `python`
    assert horovod.mend == "python3 scripts/environment.py ensure --retry-horovod"


def test_a_mistake_of_the_user_is_one_message(bare):
    done = bare(PARBENCH_HOROVOD_GPU="x")
    assert done.returncode == 2
    assert done.stderr == (
        "error: PARBENCH_HOROVOD_GPU is 'x'; set it to none or nccl, or unset it\n"
    )


def test_a_cache_that_may_not_be_written_is_essential(monkeypatch, tmp_path):
    if os.geteuid() == 0:
        monkeypatch.setattr(os, "access", lambda path, mode: "locked" not in str(path))
    (tmp_path / "locked").mkdir(mode=0o500)
    monkeypatch.setenv("PARBENCH_CACHE", str(tmp_path / "locked"))
    found = next(found for found in doctor._disk() if found.check == "disk, cache")
    assert (found.state, found.essential) == ("missing", True)


# ---------------------------------------------------------------- Apptainer


HOST = "cells run in this machine's own environment"


@pytest.fixture
def rows(monkeypatch, tmp_path):
    """The doctor's rows about images, by name, where the probe says ``answer``."""

    def ask(answer: apptainer.Apptainer, lacks: tuple = ()) -> dict[str, doctor.Finding]:
        monkeypatch.setenv("PARBENCH_CACHE", str(tmp_path))
        monkeypatch.setattr(apptainer, "probe", lambda: answer)
        monkeypatch.setattr(system, "lacking_to_build", lambda: list(lacks))
        return {finding.check: finding for finding in doctor._apptainer()}

    return ask


@pytest.mark.parametrize(
    ("flags", "unpacked", "how"),
    [
        ((), False, "runs images, builds them"),
        (("--userns",), False, "runs images in a user namespace, builds them"),
        ((), True, "runs images, unpacked to folders, builds them"),
    ],
)
def test_apptainer_that_works_is_named_with_its_way(rows, flags, unpacked, how):
    found = rows(apptainer.Apptainer("/opt/a/apptainer", "1.4.5", flags, unpacked))["Apptainer"]
    assert (found.state, found.found) == ("ok", f"1.4.5 (/opt/a/apptainer), {how}")


def test_apptainer_that_cannot_build_is_limited(rows):
    lack = system.Lack("apptainer", "debootstrap", "debootstrap", "sudo make system")
    found = rows(apptainer.Apptainer("/a", "1.4.5"), (lack,))["Apptainer"]
    assert (found.state, found.mend) == ("limited", "sudo make system")
    assert found.found.endswith("runs images, cannot build them: no debootstrap")
    assert found.costs == f"{HOST}, unless its images are in the cache or given (docs/images.md)"


def test_apptainer_that_runs_nothing_says_why_and_what_mends_it(rows):
    mend = "sysctl -w user.max_user_namespaces=15000"
    trouble = "Apptainer 1.4.5 runs no image here: Failed to create user namespace"
    answer = apptainer.Apptainer("/a", "1.4.5", trouble=f"{trouble}. {mend}", mend=mend)
    found = rows(answer)
    assert found["Apptainer"] == doctor.Finding("Apptainer", "limited", trouble, HOST, mend)
    assert "disk, images" not in found


def test_without_apptainer_make_system_is_named(bare):
    findings = {finding["check"]: finding for finding in json.loads(bare("--json").stdout)}
    found = findings["Apptainer"]
    assert (found["state"], found["found"]) == ("missing", "Apptainer is not installed")
    assert found["costs"] == HOST
    assert found["mend"].startswith("sudo make system")


def test_an_apptainer_in_the_private_folder_is_found(bare, tmp_path):
    program = tmp_path / "a prefix" / "usr" / "bin" / "apptainer"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n[ $1 = --version ] && echo apptainer version 1.4.5\nexit 0\n")
    program.chmod(0o755)
    done = bare("--json", PARBENCH_APPTAINER_PREFIX=str(tmp_path / "a prefix"))
    assert done.stderr == ""
    found = next(f for f in json.loads(done.stdout) if f["check"] == "Apptainer")
    assert found["found"].startswith(f"1.4.5 ({program}), runs images")


@pytest.mark.parametrize(
    ("free", "there", "state"), [(30, False, "ok"), (10, False, "limited"), (10, True, "ok")]
)
def test_images_need_disk_unless_they_are_there(rows, monkeypatch, tmp_path, free, there, state):
    (tmp_path / "images").mkdir()
    if there:
        (tmp_path / "images" / "horovod-current-0123456789ab.sif").touch()
    usage = shutil.disk_usage(tmp_path)._replace(free=free * 2**30)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage)
    found = rows(apptainer.Apptainer("/a", "1.4.5"))["disk, images"]
    assert found.state == state
    assert f"{free} GiB free in {cache.folder() / 'images'}" in found.found
    assert ("20 GiB" in found.costs) == ("PARBENCH_CACHE" in found.mend) == (state == "limited")
