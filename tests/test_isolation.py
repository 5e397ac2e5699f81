"""Tests depend on nothing that a checkout has made, nor on who starts them; nothing is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from workspace import ROOT

# Of what is read in the checkout's folder, by variables, and after signals.
TESTS = (
    "tests/test_cells.py::test_horovod_that_cannot_be_built_is_a_row",
    "tests/test_cells.py::test_a_failed_run_is_a_result_and_not_trained_again",
    "tests/test_cells.py::test_evidence_says_how_long_cells_took_elsewhere",
    "tests/test_concurrent.py::test_the_report_shows_both_models",
    "tests/test_bundle.py::test_what_would_not_travel_is_refused",
    "tests/test_tuning.py::test_what_it_needs_is_a_reason_not_to_run",
    "tests/test_launch.py::test_a_signal_keeps_a_checkpoint",
    "tests/test_launch.py::test_ranks_end_with_their_launcher_whatever_ends_it",
)
FOREIGN = {
    **{"PARBENCH_STATE": "/nowhere", "PARBENCH_CORES": "99", "PARBENCH_LAUNCHED": "7"},
    **{"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "nobody.example"},
    **{"SLURM_JOB_ID": "1", "SLURM_PROCID": "1", "SLURM_NTASKS": "4", "SLURM_CONF": "/nowhere"},
    **{"OMP_NUM_THREADS": "none", "KMP_AFFINITY": "none", "CUDA_VISIBLE_DEVICES": "GPU-none"},
    **{"http_proxy": "http://127.0.0.1:9", "ALL_PROXY": "socks5://127.0.0.1:9", "CXX": "none"},
    **{"GIT_DIR": "/nowhere", "GIT_INDEX_FILE": "/nowhere", "GIT_AUTHOR_DATE": "never"},
    **{"XDG_RUNTIME_DIR": "/nowhere", "SPARK_HOME": "/nowhere", "SNAKEMAKE_PROFILE": "none"},
    **{"MAKEFLAGS": "-n", "COLUMNS": "7", "LC_ALL": "C", "TZ": "Asia/Kathmandu"},
}


@pytest.fixture
def used(tmp_path) -> Path:
    """Return a clone in which `make report` and its user have left what changes plans."""
    folder = tmp_path / "a clone"
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns("results"))
    for words in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    (folder / "results").mkdir()
    (folder / "results/restarts.json").write_text("{")
    (folder / "results/deployment.json").write_text("{")
    (folder / "bundle").mkdir()
    (folder / "studies/mine.yaml").write_text("{")
    (folder / "reports/evidence/laharsh-cpu-mine-2030-01-01.json").write_text("{")
    (folder / "foreign").mkdir()
    for module in ("parbench", "torch", "yaml"):
        (folder / "foreign" / f"{module}.py").write_text("raise ImportError('another one')\n")
    return folder


def test_neither_results_nor_variables_nor_signals_of_the_caller_change_a_test(used):
    before = _files(used)
    done = subprocess.run(
        [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS],
        cwd=used,
        env={**os.environ, **FOREIGN, "PYTHONPATH": str(used / "foreign")},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert _files(used) == before


def _files(folder: Path) -> list[Path]:
    """Return what is in ``folder`` but for the bytecode that any Python may write beside a file."""
    return sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)


LEAVING = """
import subprocess, sys

def test_it():
    subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()", __file__])
"""


def test_a_test_that_leaves_a_process_behind_fails_and_the_process_is_ended(used):
    (used / "tests/test_leaving.py").write_text(LEAVING)
    shared = used / "tests/conftest.py"
    shared.write_text(shared.read_text().replace("GRACE_SECONDS = 60", "GRACE_SECONDS = 0"))
    words = ["-q", "-p", "no:cacheprovider", "tests/test_leaving.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=used, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "import signal; signal.pause()" in done.stdout
    running = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
    assert not [words for words in running if str(used / "tests/test_leaving.py") in words]


SKIPPING = """
import pytest

def test_for_lack_of_a_tool():
    pytest.skip("no such tool")

@pytest.mark.whole
def test_of_minutes():
    pass

@pytest.mark.gpu
@pytest.mark.skipif(True, reason="no GPU")
def test_of_a_gpu():
    pass
"""
SKIPPED_FILE = "import pytest\npytest.importorskip('no_such_package', reason='no such package')\n"


def test_where_all_is_required_only_a_gpu_may_be_missing(used):
    (used / "tests/test_skipping.py").write_text(SKIPPING)
    (used / "tests/test_skipped_file.py").write_text(SKIPPED_FILE)
    files = ["tests/test_skipping.py", "tests/test_skipped_file.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    command.append("--continue-on-collection-errors")
    for required, status, counts in (
        ("", 0, "4 skipped"),
        ("all", 1, "1 failed, 1 passed, 1 skipped, 1 error"),
    ):
        done = subprocess.run(
            command,
            cwd=used,
            env={**os.environ, "PARBENCH_REQUIRE": required},
            capture_output=True,
            text=True,
        )
        assert done.returncode == status, done.stdout + done.stderr
        assert counts in done.stdout
    assert "no such tool, and PARBENCH_REQUIRE contains all" in done.stdout
