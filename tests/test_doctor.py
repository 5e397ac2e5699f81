"""The doctor: runs on a bare Python, and says what each missing thing costs and how to fix it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from parbench import machine
from parbench.deploy import apptainer, doctor, host_environment
from workspace import ROOT

CHECKS = ["Python", "disk", "cores", "accelerators", "Horovod", "compiler", "Apptainer", "Slurm"]


@pytest.fixture
def bare(tmp_path):
    """Return a function that runs the doctor without site-packages and with an empty PATH."""

    def run(*words: str) -> subprocess.CompletedProcess:
        env = {"PATH": str(tmp_path), "PARBENCH_CACHE": str(tmp_path / "a cache"), "HOME": "/"}
        command = [sys.executable, "-I", "-S", str(ROOT / "scripts/bin/parbench"), "doctor", *words]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)

    return run


def test_it_needs_nothing_but_python_and_names_every_check(bare):
    done = bare()
    assert (done.returncode, done.stderr) == (0, "")  # the quickstart runs
    lines = done.stdout.splitlines()
    states = {line[:12].strip(): line.split("  ")[1:] for line in lines if line[0] != " "}
    assert list(states) == CHECKS
    assert "Apptainer is not installed; " in done.stdout
    assert "cannot be compiled without a C++ compiler and make" in done.stdout


def test_without_slurm_it_says_where_to_run(bare):
    done = bare("--slurm")
    assert done.returncode == 1
    assert "Slurm  missing  no sinfo on PATH" in done.stdout
    assert "fix:   run on a login node" in done.stdout


def test_an_older_python_stops_everything_and_is_all_that_is_said():
    code = (
        "import sys, runpy; sys.hexversion = 0x030A0000;"
        f"runpy.run_path({str(ROOT / 'scripts/bin/parbench')!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "3.11 or newer is needed" in done.stderr
    assert "Traceback" not in done.stderr


def test_python_without_docstrings_is_refused():
    command = [sys.executable, "-OO", str(ROOT / "scripts/bin/parbench"), "doctor"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "unset PYTHONOPTIMIZE" in done.stderr


@pytest.fixture
def checks(monkeypatch, tmp_path):
    """Return a function that gives the doctor's checks by name; failed ones have cost and mend."""
    monkeypatch.setenv("PARBENCH_CACHE", str(tmp_path))

    def examine() -> dict[str, doctor.Check]:
        found = {each.check: each for each in doctor.examine()}
        for each in found.values():
            lacking = each.state != doctor.OK
            assert (bool(each.costs), bool(each.fix)) == (lacking, lacking), each
        return found

    return examine


def test_one_core_and_hidden_accelerators_are_limits(monkeypatch, checks):
    card = {"name": "NVIDIA A100", "memory_mib": 40960, "driver": "580.1", "uuid": "GPU-aa"}
    monkeypatch.setattr(machine, "cores", lambda: 1)
    monkeypatch.setattr(machine, "accelerators", lambda: (card, card))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    found = checks()
    assert found["cores"].state == found["accelerators"].state == "limited"
    assert "needs 2 cores" in found["cores"].costs
    assert "leaves 1" in found["accelerators"].found


DEBIAN = {"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}
SUSE = {"ID": "opensuse-tumbleweed", "ID_LIKE": "opensuse suse"}


@pytest.mark.parametrize(
    ("system", "horovod", "images"),
    [
        (DEBIAN, "sudo apt install g++ make; ", "sudo make system ARGS=apptainer"),
        ({"ID": "fedora"}, "sudo dnf install gcc-c++ make; ", "sudo dnf install apptainer"),
        ({"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, "sudo dnf ", "sudo dnf install appt"),
        (SUSE, "sudo zypper install gcc-c++ make; ", "sudo zypper install apptainer"),
        (
            {"ID": "arch"},
            "install g++, make (the names may differ on this system); ",
            "install apptai",
        ),
        (
            None,
            "install g++, make (the names may differ on this system); ",
            "install apptainer (the names",
        ),
    ],
    ids=["Mint", "Fedora", "Rocky", "openSUSE", "Arch", "unknown"],
)
def test_remedies_are_in_the_words_of_the_distribution(
    monkeypatch, checks, tmp_path, system, horovod, images
):
    def release() -> dict[str, str]:
        if system is None:
            raise OSError("no os-release")
        return system

    monkeypatch.setattr("platform.freedesktop_os_release", release)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(host_environment, "horovod_needs", lambda: ["compiler", "make"])
    apptainer.probe.cache_clear()
    found = checks()
    apptainer.probe.cache_clear()
    assert found["Horovod"].fix.startswith(horovod)
    assert found["Apptainer"].fix.startswith(images)
    assert images in found["Apptainer"].found
