"""Fixtures that several test files share, and which tests may run at once."""

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
# Other work on the machine fails no test.
hypothesis.settings.register_profile("parbench", deadline=None)
hypothesis.settings.load_profile("parbench")


def pytest_configure(config):
    # Each of the workers that run tests at once lends cores by locks of its own: their cells slow
    # each other down, which no test minds, and do not wait for each other.
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        folder = Path(tempfile.gettempdir(), f"parbench-locks-{os.getuid()}-{worker}")
        os.environ.setdefault("PARBENCH_LOCKS", str(folder))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """A worker takes a whole file, and one worker takes all tests of what is made only once."""
    for item in items:
        shared = {"cluster", "quickstart"} & set(item.fixturenames)
        group = min(shared) if shared else item.path.name
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def digits(tmp_path_factory) -> Path:
    """The converted digits dataset, made once."""
    from parbench.data import dataset  # here: a test copies this file alone

    folder = tmp_path_factory.mktemp("data") / "digits"
    data, digest = folder / "data.safetensors", folder / "digest.json"
    dataset.prepare("digits", {"kind": "digits"}, data, digest)
    return folder


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory):
    """The default study, trained and reported on this machine: its work folder, and what was said.

    As a user gets it: in images where Apptainer works, else on the host; without network, but for
    loopback, which cells need. One restart of each pair: beside other tests more decide nothing.
    """
    from parbench.deploy import apptainer, images
    from workspace import Workspace  # here: a test copies this file alone

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
    """A Slurm cluster (tests/cluster.py) for this process."""
    require.require("slurm")
    from cluster import Cluster

    cluster = Cluster()
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()
