"""Fixtures that several test files share, and `--resume`, which `make test` uses.

A test that has passed is not run again by `make test` in the same checkout until something changes
that it could depend on: any file of the project, the environment, or a tool of the machine. So a
suite that was interrupted goes on, and one that has passed ends at once.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import hypothesis
import pytest

import require

ROOT = Path(__file__).resolve().parent.parent
PASSED = ROOT / ".pytest_cache" / "passed"
# Other work on the machine fails no test.
hypothesis.settings.register_profile("parbench", deadline=None)
hypothesis.settings.load_profile("parbench")
TOOLS = sorted(command for commands in require.COMMANDS.values() for command in commands)


def pytest_addoption(parser):
    parser.addoption(
        "--resume",
        action="store_true",
        help="leave out tests that have passed since the last change to anything",
    )


def pytest_configure(config):
    # Without git nobody knows which files are the project's: then everything is run.
    if config.getoption("--resume") and (files := project_files()):
        config.pluginmanager.register(Resume(state_of_everything(files)), "resume")


def project_files() -> bytes:
    """Names of the project's files, each ended by a zero; nothing where this is no git checkout."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        return subprocess.run(words, cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return b""


def state_of_everything(listed: bytes) -> str:
    """A digest of all that a test's outcome could depend on; ``listed``: the project's files."""
    state = hashlib.sha256()
    for name in sorted(set(listed.split(b"\0")) - {b""}):
        path = ROOT / os.fsdecode(name)
        content = path.read_bytes() if path.is_file() else b"none"
        state.update(name + b"\0" + hashlib.sha256(content).digest())
    for tool in TOOLS:
        place = require.which(tool)
        status = os.stat(place) if place else None
        state.update(repr((tool, place, status and (status.st_size, status.st_mtime_ns))).encode())
    kept = {key: value for key, value in os.environ.items() if key.startswith("PARBENCH_")}
    state.update(repr((sys.prefix, sys.version, os.getuid(), sorted(kept.items()))).encode())
    return state.hexdigest()


class Resume:
    """Leaves out what has passed, and takes note of what passes."""

    def __init__(self, state: str):
        self.path = PASSED / state[:16]
        self.known = set(self.path.read_text().splitlines()) if self.path.exists() else set()

    def pytest_collection_modifyitems(self, config, items):
        old = [item for item in items if item.nodeid in self.known]
        if not old:
            return
        items[:] = [item for item in items if item.nodeid not in self.known]
        config.hook.pytest_deselected(items=old)
        print(
            f"\n{len(old)} tests have passed since the last change and are left out; to run them "
            f"again: rm -r {PASSED.relative_to(ROOT)}"
        )

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item, nextitem):
        self.good, self.called = True, False
        yield
        if self.good and self.called:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a") as file:
                file.write(item.nodeid + "\n")

    def pytest_runtest_logreport(self, report):
        self.good = self.good and report.outcome == "passed"
        self.called = self.called or report.when == "call"

    def pytest_sessionfinish(self, session, exitstatus):
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.known:
            session.exitstatus = pytest.ExitCode.OK
        for other in PASSED.glob("*"):  # of other states: never asked for again
            if other != self.path:
                other.unlink()


@pytest.fixture(scope="session")
def digits(tmp_path_factory) -> Path:
    """The converted digits dataset, made once by the project's own program."""
    folder = tmp_path_factory.mktemp("data") / "digits"
    subprocess.run(
        [
            sys.executable,
            str(ROOT / "scripts/dataset.py"),
            "--name=digits",
            '--spec={"kind": "digits"}',
            f"--out={folder / 'data.safetensors'}",
            f"--digest={folder / 'digest.json'}",
        ],
        check=True,
        capture_output=True,
    )
    return folder


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory):
    """The default study, trained and reported on this machine: its work folder, and what was said.

    As a user gets it: in images where Apptainer works, else on the host. One seed of the three: the
    others take time and show no more.
    """
    from workspace import Workspace  # here: a test copies this file alone

    work = Workspace(tmp_path_factory.mktemp("quick") / "quick start", "auto")
    work.edit("config.yaml", "override: {}", "override: {quickstart: {seeds: [0]}}")
    return work, work.snakemake("reports/final.html", "reports/final.pdf")


@pytest.fixture(scope="session")
def cluster():
    """A Slurm cluster (tests/cluster.py), gone with this process, however that ends."""
    require.require("slurm")
    from children import guarded  # here: as above
    from cluster import Cluster

    cluster = Cluster(Path(tempfile.mkdtemp(prefix="slurm-")))  # pytest's folders are too deep
    with guarded(cluster.down):
        try:
            cluster.up()
            yield cluster
        finally:
            cluster.down()
