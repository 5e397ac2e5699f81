"""What all tests share: they run apart from the checkout, and must leave no process behind."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import hypothesis
import psutil
import pytest

import require
from isolated import ROOT
from parbench.data import dataset
from parbench.deploy import apptainer, containers, recipes
from workspace import Workspace

# Other load on the machine must not fail a test.
SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("parbench", deadline=None, suppress_health_check=SLOW)
hypothesis.settings.load_profile("parbench")

GRACE_SECONDS = 60  # for processes that are about to end when the last test of a file has


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Give each file to one worker, and all users of an expensive fixture to one worker; what is
    scattered goes to the worker that is free.

    Tests that take minutes are skipped unless PARBENCH_REQUIRE contains `whole` or `all`.
    """
    long = pytest.mark.skip(reason="takes minutes: PARBENCH_REQUIRE=whole make test")
    for item in items:
        if item.get_closest_marker("whole") and not require.required("whole"):
            item.add_marker(long)
        if item.get_closest_marker("scattered"):
            continue
        shared = {"cluster", "quickstart"} & set(item.fixturenames)
        group = min(shared) if shared else item.path.name
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Fail a skipped test where PARBENCH_REQUIRE contains `all`, unless it is for a GPU."""
    return (yield) if item.get_closest_marker("gpu") else _failed_if_skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    """Fail a file of tests that is skipped, as `pytest_runtest_makereport` does with a test."""
    return _failed_if_skipped((yield))


def _failed_if_skipped(report):
    if report.skipped and require.required("all"):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        report.outcome, report.longrepr = "failed", f"{reason}, and PARBENCH_REQUIRE contains all"
    return report


@pytest.fixture(scope="session", autouse=True)
def _in_the_copy():
    """Run tests in the copy of the project: what they read of results is not the checkout's."""
    before = Path.cwd()
    os.chdir(ROOT)
    yield
    os.chdir(before)


@pytest.fixture(scope="module", autouse=True)
def _no_process_is_left(request):
    """End the processes that tests of a file have left behind, and fail."""
    yield
    begun = f"{request.node.nodeid}::"
    running = psutil.process_iter(["cmdline"])
    left = [process for process in running if started_by(process).startswith(begun)]
    _, alive = psutil.wait_procs(left, timeout=GRACE_SECONDS)
    for process in alive:
        process.kill()
    assert not alive, [process.info["cmdline"] for process in alive]


def started_by(process: psutil.Process) -> str:
    """Return the ID of this run's test that started ``process``; empty if no test did."""
    try:
        variables = process.environ()
        test, _, when = variables.get("PYTEST_CURRENT_TEST", "").rpartition(" ")
        mine = variables.get("PARBENCH_TESTS") == os.environ["PARBENCH_TESTS"] and when == "(call)"
        return test if mine and process.status() != psutil.STATUS_ZOMBIE else ""
    except psutil.Error:  # it has ended, or is another user's
        return ""


@pytest.fixture(scope="session")
def digits(tmp_path_factory) -> Path:
    """Convert the digits dataset, once; return its folder."""
    folder = tmp_path_factory.mktemp("data") / "digits"
    data, digest = folder / "data.safetensors", folder / "digest.json"
    dataset.prepare("digits", {"kind": "digits"}, data, digest)
    return folder


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory):
    """Type `make report` for the default study; return its workspace and the finished process.

    As for a user: in images where Apptainer works, else on the host; without network except for
    loopback, which cells need. One restart per pair: beside other tests more decide nothing.
    """
    settings = recipes.ImageSettings(unpack=True)
    work = Workspace(tmp_path_factory.mktemp("quick") / "quick, start", "auto")
    shutil.copy(ROOT / "Makefile", work.folder)
    work.edit("studies/quickstart.yaml", "pairs:\n", "pairs:\n  restarts: 1\n")
    work.edit("config.yaml", "budget_minutes: 3", "budget_minutes: 0")
    for name in () if apptainer.probe().problem else ("torch", "horovod", "report"):
        containers.ensure(recipes.image(name, "current", settings), settings)
    start = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    start += ["sh", "-c", 'ip link set lo up && exec "$0" "$@"']
    if subprocess.run([*start, "true"], capture_output=True).returncode != 0:  # not allowed here
        start = []
    done = subprocess.run(
        [*start, "make", "report"], cwd=work.folder, capture_output=True, text=True
    )
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
