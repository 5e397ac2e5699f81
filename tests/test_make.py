"""`make report` as a user types it: with mistakes, interrupted, started again, repeated."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess

import pytest

from launched import wait_for
from workspace import HANG_SECONDS, ROOT, Workspace, small_study

STUDY = small_study(
    "Two cells",
    "swin: {options: {embed_dim: 12, depths: [1, 1], num_heads: [2, 2], window_size: 4}}",
    """
eager: {strategy: eager, hardware: cpu1, settings: {epochs: 1}}
ddp: {strategy: ddp, hardware: cpu2, baseline: eager}
""",
    epochs=40,
    images=400,
)


@pytest.fixture
def work(tmp_path):
    work = Workspace(tmp_path / "a work folder")
    shutil.copy(ROOT / "Makefile", work.folder)
    (work.folder / "studies/two.yaml").write_text(STUDY)
    work.edit("config.yaml", "studies: [quickstart]", "studies: [two]")
    return work


# Ranks are held in the middle of the long cell, until the test lets them go on.
HELD = """
from pathlib import Path
from parbench.training.progress import Heartbeat

beat, folder = Heartbeat.beat, Path({folder!r})


def held(self, phase, epoch=0, step=0):
    beat(self, phase, epoch, step)
    while epoch == 2 and not (folder / "go").exists():
        (folder / "held").touch()
        time.sleep(0.01)


Heartbeat.beat = held
"""


@pytest.fixture
def start(work):
    """Yield a function that starts `make report`; end what it has left."""
    started = []

    def begin(**variables: str) -> subprocess.Popen:
        process = subprocess.Popen(
            ["make", "report"],
            cwd=work.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env=os.environ | variables,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("-n --configfile good.yaml mine.yaml", "mine.yaml, line 1: not valid YAML: "),
        ("--configfile=god.yaml -n", "god.yaml: no such file; did you mean good.yaml?"),
        ("--configfile good.yaml -n --config 'studies=[two]'", None),
    ],
)
def test_configuration_that_cannot_be_read_is_named(work, words, error):
    (work.folder / "good.yaml").write_text("studies: [two]\n")
    (work.folder / "mine.yaml").write_text("studies: [two\n")
    command = ["make", "report", f"ARGS={words}"]
    done = subprocess.run(command, cwd=work.folder, capture_output=True, text=True)
    assert (done.returncode == 0) == (error is None), done.stderr
    assert error is None or done.stderr.startswith(f"error: {error}")


def test_why_snakemake_could_not_begin_is_printed(work):
    command = ["make", "report", "ARGS=reports/nosuch.html"]
    done = subprocess.run(command, cwd=work.folder, capture_output=True, text=True)
    assert done.returncode != 0
    assert "No rule to produce reports/nosuch.html" in done.stderr


def test_a_dry_run_prints_no_summary_of_an_earlier_report(work):
    (work.folder / "results").mkdir()
    last = {"studies": [{"name": "other"}], "claims": None, "turns": "of an earlier-study"}
    (work.folder / "results/report.json").write_text(json.dumps(last))
    command = ["make", "report", "ARGS=-n"]
    done = subprocess.run(command, cwd=work.folder, capture_output=True, text=True)
    assert "2 cells to train" in done.stdout + done.stderr
    assert "earlier-study" not in done.stdout


def test_interrupted_in_the_middle_of_a_cell_started_again_and_repeated(work, start):
    """As by Ctrl-C or at the end of MINUTES; tests/test_kills.py has kills."""
    told = work.parbench("cells").stdout.splitlines()
    short = next(line.split()[0] for line in told if line.startswith("swin.eager"))
    work.snakemake(f"results/cells/{short}/metrics.json")
    program = work.folder / "scripts/parbench/commands/called/train.py"
    program.write_text(HELD.format(folder=str(work.folder)) + program.read_text())
    first = start(PARBENCH_REPORT_WHEN_STOPPED="1")
    wait_for(lambda: (work.folder / "held").exists() or first.poll() is not None)
    assert first.poll() is None, first.communicate()[0]
    os.killpg(first.pid, signal.SIGINT)
    (work.folder / "go").touch()
    said = first.communicate(timeout=HANG_SECONDS)[0]
    assert first.returncode != 0
    assert not list((work.folder / "results/cells").glob("swin.ddp*/metrics.json"))
    kept = list((work.folder / "results/cells").glob("swin.eager*/metrics.json"))
    before = {path: path.stat().st_mtime_ns for path in kept}
    report = work.folder / "reports/unfinished.html"
    assert report.exists(), said
    assert "This report is not finished: 1 cell not trained yet." in report.read_text()

    program = work.folder / "scripts/parbench/commands/called/certificate.py"
    certifies = program.read_text()
    program.write_text("raise SystemExit('no certificate')\n")
    said = start().communicate(timeout=HANG_SECONDS)[0]
    assert "no certificate" in said
    assert "This report is not finished: all cells are done, but the run" in report.read_text()

    program.write_text(certifies)
    second = start()
    said = second.communicate(timeout=HANG_SECONDS)[0]
    assert second.returncode == 0, said
    assert not report.exists()
    assert "Traceback" not in said
    for file in ("reports/final.html", "reports/final.pdf"):
        assert file in said
        assert (work.folder / file).stat().st_size > 10_000
    assert {path: path.stat().st_mtime_ns for path in kept} == before
    metrics = [
        json.loads(path.read_text())
        for path in (work.folder / "results/cells").glob("*/metrics.json")
    ]
    assert [m["status"] for m in metrics] == ["ok", "ok"]

    third = start()  # runs nothing, and prints the results again
    said = third.communicate(timeout=HANG_SECONDS)[0]
    assert third.returncode == 0, said
    assert "reports/final.html" in said
    assert "starts on" not in said
