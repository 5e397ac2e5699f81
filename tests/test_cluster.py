"""The test cluster itself: what other tests rely on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from cluster import LONGEST_FOLDER, Cluster, ClusterError
from require import require
from workspace import ROOT


def wait_until(question, seconds=60):
    """Until ``question`` answers anything but nothing; returns that."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := question():
            return answer
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds} s")


def submit(cluster, script, *options):
    words = ("sbatch", "--parsable", f"--output={cluster.folder}/%j.txt", *options)
    return cluster.run(*words, f"--wrap={script}").strip()


def mentioning(folder):
    """Processes that have ``folder`` in their command line."""
    listed = psutil.process_iter(["cmdline"])
    return [p for p in listed if any(str(folder) in word for word in p.info["cmdline"] or ())]


def test_a_job_runs_on_both_nodes(cluster):
    says = "echo $SLURMD_NODENAME $SLURM_JOB_NUM_NODES"
    names = cluster.run("srun", "--nodes=2", "sh", "-c", says)
    assert sorted(names.splitlines()) == ["n1 2", "n2 2"]


@pytest.fixture
def folder(tmp_path_factory):
    """Of a cluster that the test starts itself."""
    require("slurm")
    folder = tmp_path_factory.mktemp("c")
    yield folder
    Cluster(folder).down()


def program(what, folder):
    words = [sys.executable, str(ROOT / "tests/cluster.py"), what, f"--folder={folder}"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def test_down_leaves_nothing(folder):
    assert program("up", folder) == f"export PATH={folder}/bin:$PATH\n"
    submit(Cluster(folder), f"setsid sh -c 'sleep 300; :' {folder} & sleep 300")
    wait_until(lambda: any(p.cmdline()[:1] == ["sh"] for p in mentioning(folder)))
    program("up", folder)  # is up: changes nothing
    assert any(p.cmdline()[:1] == ["sh"] for p in mentioning(folder))
    program("down", folder)
    assert not mentioning(folder)
    assert not folder.exists()


def test_nothing_is_left_of_a_test_run_that_was_killed(folder):
    script = f"""
import time
from pathlib import Path
from children import guarded
from cluster import Cluster
cluster = Cluster(Path({str(folder)!r}))
with guarded(cluster.down):
    cluster.up()
    print("up", flush=True)
    time.sleep(300)
"""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/tests:{ROOT}/scripts"}
    with subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: not mentioning(folder) and not folder.exists())


def test_a_folder_that_slurm_cannot_have_is_named(tmp_path):
    require("slurm")
    for folder in (tmp_path / "with blank", tmp_path / ("x" * LONGEST_FOLDER)):
        with pytest.raises(ClusterError, match=f"--folder {folder}: Slurm wants"):
            Cluster(folder).up()


def test_a_folder_of_other_things_is_left_alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("c")
    (folder / "slurm.conf").write_text("ClusterName=theirs\n")
    for action in (Cluster(folder).up, Cluster(folder).down):
        with pytest.raises(ClusterError, match=f"--folder {folder}: holds other things"):
            action()
    assert (folder / "slurm.conf").read_text() == "ClusterName=theirs\n"
