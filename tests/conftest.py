"""Shared fixtures, and the grouping of tests that run in parallel."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import hypothesis
import pytest

import require

ROOT = Path(__file__).resolve().parent.parent
# No deadline: other load on the machine must not fail a test.
hypothesis.settings.register_profile("parbench", deadline=None)
hypothesis.settings.load_profile("parbench")


def pytest_configure(config):
    # Each parallel worker has its own core locks: cells of different workers slow each other down,
    # which no test minds, but do not wait for each other.
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        folder = Path(tempfile.gettempdir(), f"parbench-locks-{os.getuid()}-{worker}")
        os.environ.setdefault("PARBENCH_LOCKS", str(folder))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Give each file to one worker, and all users of an expensive fixture to one worker."""
    for item in items:
        shared = {"cluster", "quickstart"} & set(item.fixturenames)
        group = min(shared) if shared else item.path.name
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def digits(tmp_path_factory) -> Path:
    """Convert the digits dataset, once; return its folder."""
    from parbench.data import dataset  # imported here: a test copies this file alone

    folder = tmp_path_factory.mktemp("data") / "digits"
    data, digest = folder / "data.safetensors", folder / "digest.json"
    dataset.prepare("digits", {"kind": "digits"}, data, digest)
    return folder


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory):
    """Train and report the default study; return its workspace and the finished process.

    As for a user: in images where Apptainer works, else on the host; without network except for
    loopback, which cells need. One restart per pair: beside other tests more decide nothing.
    """
    from parbench.deploy import apptainer, images
    from workspace import Workspace  # imported here: a test copies this file alone

    settings = {"arguments": {}, "unpack": True}
    work = Workspace(tmp_path_factory.mktemp("quick") / "quick, start", "auto")
    work.edit("studies/quickstart.yaml", "pairs:\n", "pairs:\n  restarts: 1\n")
    for name in () if apptainer.probe().trouble else ("torch", "horovod", "report"):
        images.ensure(images.image(name, "current", settings), settings)
    start = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    start += ["sh", "-c", 'ip link set lo up && exec "$0" "$@"', sys.executable]
    if subprocess.run([*start, "-c", ""], capture_output=True).returncode != 0:  # not allowed here
        start = [sys.executable]
    words = ["-m", "snakemake", "reports/final.html", "reports/final.pdf"]
    done = subprocess.run([*start, *words], cwd=work.folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return work, done


@pytest.fixture(scope="session")
def cluster():
    """Yield a Slurm cluster (tests/cluster.py) for this process."""
    require.require("slurm")
    from cluster import Cluster

    cluster = Cluster()
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()
