"""What the submitting terminal shows of cells that run elsewhere, from their files."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import time

import pytest

import constructed
import monitor
from monitor import Monitor
from training import ROOT
from workspace import Workspace, small_study

CELLS = ("a.eager", "b.ddp", "c.ddp")


class Folder:
    """A results folder of three cells, and what a monitor says of it."""

    def __init__(self, root):
        self.cells = root / "results" / "cells"
        for name in CELLS:
            (self.cells / name).mkdir(parents=True)
        self.out = io.StringIO()
        self.monitor = None

    def watch(self, cells=CELLS, entries=None):
        usual = {name: {"device": "cpu", "devices": 1, "like": name[2:]} for name in CELLS}
        self.monitor = Monitor(cells, entries or usual, self.cells, self.out)
        return self.monitor

    def write(self, cell, file, value):
        monitor.write_json(self.cells / cell / file, value)

    def remove(self, cell, file):
        (self.cells / cell / file).unlink()

    def run(self, cell, job="12", nodes=("n1",)):
        value = {"job": job, "host": "n1", "pid": 1, "started": time.time(), "nodes": list(nodes)}
        self.write(cell, "running.json", value)

    def end(self, cell, seconds=10.0):
        hardware = constructed.make_hardware()
        metrics = constructed.make_metrics(
            constructed.make_cell(cell, "resnet18", cell[2:], hardware)
        )
        self.write(cell, "metrics.json", metrics)
        self.write(cell, "wall.json", {"seconds": seconds})
        (self.cells / cell / "running.json").unlink(missing_ok=True)

    def fail(self, cell, **more):
        log = f"results/cells/{cell}/log.txt"
        value = {"sentence": "rank 1 of 2 died", "log": log, "job": "12", "lines": ["one", "two"]}
        self.write(cell, "failed.json", {**value, **more})
        (self.cells / cell / "running.json").unlink(missing_ok=True)

    def said(self):
        """The lines that are new since the last question."""
        self.monitor.look()
        text = self.out.getvalue()
        self.out.seek(0)
        self.out.truncate()
        return text.splitlines()

    def summary(self):
        self.said()
        self.monitor.summarise()
        return self.said()[0]


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def test_a_line_a_change_of_state(folder):
    folder.watch()
    assert folder.said() == []
    folder.run("a.eager")
    folder.run("b.ddp", job="13", nodes=("n1", "n2"))
    assert sorted(folder.said()) == [
        "[0/3] a.eager: running (job 12 on n1)",
        "[0/3] b.ddp: running (job 13 on n1, n2)",
    ]
    os.utime(folder.cells / "a.eager" / "running.json")  # as its launcher does
    (folder.cells / "a.eager" / "any file").touch()
    assert folder.said() == []
    folder.end("a.eager")
    (line,) = folder.said()
    assert line.startswith("[1/3] a.eager: ok, accuracy 0.")
    assert "trained in" in line
    os.utime(folder.cells / "a.eager" / "metrics.json")  # as Snakemake does
    (folder.cells / "a.eager" / "any file").unlink()
    assert folder.said() == []


def test_a_failed_cell_shows_the_end_of_its_log_and_where_it_lies(folder):
    folder.watch()
    folder.run("b.ddp")
    folder.said()
    folder.fail("b.ddp")
    assert folder.said() == [
        "[0/3] b.ddp: failed: rank 1 of 2 died",
        "  | one",
        "  | two",
        "  log: results/cells/b.ddp/log.txt",
    ]


def test_log_lines_move_no_cursor_and_fit_a_terminal(folder):
    folder.watch()
    folder.fail("b.ddp", lines=["10%\r90%", "\x1b[2Jred", "x" * 1000], sentence="\x1b[2Jdied")
    first, bar, escape, long, _ = folder.said()
    assert first == "[0/3] b.ddp: failed: died"
    assert bar == "  | 90%"
    assert escape == "  | red"
    assert len(long) < 170


def test_what_lay_there_before_the_run_is_no_news(folder):
    for cell, leave in zip(CELLS, (folder.end, folder.fail, folder.run), strict=True):
        leave(cell)
    folder.watch()
    assert folder.said() == []
    assert folder.summary() == "parbench: 0 running, 3 pending, 0 done, 0 failed of 3 cells"
    folder.remove("a.eager", "metrics.json")
    folder.end("a.eager")
    assert len(folder.said()) == 1


def test_a_cell_that_an_earlier_starts_job_still_trains_is_running(folder):
    folder.run("a.eager", job="7")
    folder.run("b.ddp", job="8")  # and this job is gone
    monitor.write_json(folder.cells.parent / "plan" / "taken_over.json", {"a.eager": "7"})
    folder.watch()
    assert folder.said() == ["[0/3] a.eager: running (job 7 on n1)"]


def test_a_result_that_is_taken_over_counts_and_is_told_once(folder):
    folder.watch()
    folder.end("a.eager")
    assert len(folder.said()) == 1
    folder.remove("a.eager", "metrics.json")  # by Snakemake, before the job that takes it over
    assert "0 done" in folder.summary()
    folder.end("a.eager")
    assert "1 done" in folder.summary()


def test_a_requeued_cell_is_told_again_and_never_counted_as_failed(folder):
    folder.watch()
    folder.run("a.eager")
    folder.said()
    folder.fail("a.eager", sentence="ended by SIGTERM; a checkpoint is kept", stopped=True)
    assert folder.said()[0] == "[0/3] a.eager: stopped: ended by SIGTERM; a checkpoint is kept"
    assert folder.summary() == "parbench: 0 running, 3 pending, 0 done, 0 failed of 3 cells"
    folder.remove("a.eager", "failed.json")
    folder.run("a.eager", nodes=("n2",))
    assert folder.said() == ["[0/3] a.eager: running (job 12 on n2)"]


def test_a_file_that_is_not_whole_is_looked_at_again(folder):
    folder.watch()
    (folder.cells / "a.eager" / "failed.json").write_text("{")
    assert folder.said() == []
    (folder.cells / "a.eager" / "failed.json").write_text(
        json.dumps({"sentence": "no", "log": None, "job": None, "lines": []})
    )
    assert folder.said() == ["[0/3] a.eager: failed: no"]


def test_the_summary_predicts_by_what_cells_of_a_group_took(folder):
    entries = {
        name: {"device": "cpu", "devices": 1, "like": "one"} for name in (*CELLS, "d.earlier")
    }
    (folder.cells / "d.earlier").mkdir()
    folder.write("d.earlier", "wall.json", {"seconds": 30.0})
    folder.watch(CELLS, entries)
    assert "left" not in folder.summary()  # nothing runs: nobody knows when it will
    folder.run("a.eager")
    summary = "parbench: 1 running, 2 pending, 0 done, 0 failed of 3 cells; about 1 min 30 s left"
    assert folder.summary() == summary
    folder.run("b.ddp")
    assert "about 45 s left" in folder.summary()
    folder.end("a.eager", seconds=10.0)
    assert "1 running, 1 pending, 1 done" in folder.summary()
    assert "about 40 s left" in folder.summary()


# --- what Snakemake says itself -------------------------------------------------------------------


@pytest.fixture
def logger():
    logger = logging.Logger("snakemake of a test", logging.INFO)
    logger.addHandler(logging.StreamHandler(io.StringIO()))
    return logger


def tell_error(logger, message, log=(), rule="train", cell="b.ddp"):
    """What Snakemake logs of a job that failed."""
    output = [f"results/cells/{cell}/metrics.json"]
    logger.error(
        "Error in rule",
        extra={"rule_name": rule, "rule_msg": message, "output": output, "log": log},
    )


def test_a_job_that_slurm_refused_is_told_in_one_sentence(folder, logger):
    watched = folder.watch()
    watched.start(logger)
    tell_error(
        logger,
        "SLURM sbatch failed. The error message was 'sbatch: error: invalid account'.\n"
        "    sbatch call:\n        sbatch --parsable ...",
    )
    watched.stop()
    said = folder.said()
    refused = "SLURM sbatch failed. The error message was 'sbatch: error: invalid account'."
    assert f"[0/3] b.ddp: failed: {refused}" in said
    assert "parbench: 0 running, 2 pending, 0 done, 1 failed of 3 cells" in said
    kept = monitor.read_failure(folder.cells / "b.ddp" / "failed.json")
    assert kept.sentence == refused  # for the report


JOB_LOG = """
SNAKEMAKE
  Date: today
Execute 1 jobs...

[Sat Nov 21 14:49:32 2026]
rule train:
    input: results/data/digits/digest.json
error: no such device
[Sat Nov 21 14:49:33 2026]
Error in rule train:
    shell: python scripts/launch.py
slurmstepd: error: oom-kill
Shutting down, this might take some time.
WorkflowError:
"""


def test_a_job_that_died_with_its_node_shows_slurms_log(folder, logger, tmp_path):
    log = tmp_path / "13.log"
    log.write_text(JOB_LOG)
    watched = folder.watch()
    folder.run("b.ddp", job="13")
    watched.look()
    watched.start(logger)
    tell_error(
        logger,
        "SLURM-job '13' failed, SLURM status is: 'NODE_FAIL'. Detailed failure reason unavailable",
        log=["results/cells/b.ddp/log.txt", str(log)],
    )
    watched.stop()
    said = folder.said()
    at = said.index("[0/3] b.ddp: failed: SLURM-job '13' failed, SLURM status is: 'NODE_FAIL'.")
    shown = ["error: no such device", "slurmstepd: error: oom-kill"]
    assert said[at + 1 : at + 3] == [f"  | {line}" for line in shown]
    assert said[at + 3].startswith("  log: ")
    assert said[at + 3].endswith("13.log")
    assert "0 running" in said[-1]  # though running.json is left


def test_what_a_cell_said_itself_is_not_said_again(folder, logger):
    watched = folder.watch()
    folder.fail("b.ddp")
    watched.start(logger)
    tell_error(logger, "SLURM-job '12' failed, SLURM status is: 'FAILED'.")
    watched.stop()
    said = folder.said()
    assert sum("b.ddp: failed" in line for line in said) == 1
    assert monitor.read_failure(folder.cells / "b.ddp" / "failed.json").sentence.startswith("rank")


def test_snakemakes_own_lines_are_kept_down_but_not_warnings_or_other_rules(folder, logger):
    watched = folder.watch()
    watched.start(logger)
    logger.info("Job 3 has been submitted")
    logger.info("Terminating processes on user request, this might take some time.")
    logger.warning("No SLURM account given, trying to guess.")
    logger.warning("a warning")
    tell_error(logger, "no", rule="dataset")
    tell_error(logger, "no")
    watched.stop()
    logger.info("and again")
    shown = logger.handlers[0].stream.getvalue()
    answer, *others = shown.splitlines()
    assert answer.startswith("Terminating")
    assert others == ["a warning", "Error in rule", "and again"]


def test_it_ends_with_its_process(tmp_path):
    program = (
        "import sys; sys.path.insert(0, 'scripts'); from pathlib import Path;"
        "from monitor import Monitor; Monitor([], {}, Path(sys.argv[1])).start()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    assert subprocess.run(command, cwd=ROOT, timeout=60, check=False).returncode == 0


def test_a_look_asks_the_file_system_once_for_a_cell_that_did_not_change(folder, monkeypatch):
    folder.watch()
    folder.run("a.eager")
    folder.said(), folder.said()
    asked = []
    monkeypatch.setattr(Monitor, "_stamps", lambda self, name: asked.append(name) or {})
    assert folder.said() == []
    assert asked == []


# --- a run with a failed cell ---------------------------------------------------------------------

TWO = small_study(
    "Two cells",
    "swin: {options: {embed_dim: 12, depths: [1, 1], num_heads: [2, 2], window_size: 4}}",
    """
eager: {strategy: eager, hardware: cpu1}
gpipe-2: {strategy: gpipe, options: {balance: [2]}, hardware: cpu1, baseline: eager}
""",
)


def test_a_run_with_a_failed_cell_leaves_a_report_of_what_is_there(tmp_path):
    work = Workspace(tmp_path / "a work folder")
    (work.folder / "studies/two.yaml").write_text(TWO)
    work.edit("config.yaml", "studies: [quickstart]", "studies: [two]")
    # Only inside of cells: the workflow itself reads the module, too.
    trap = "import os\n\nif 'PARBENCH_STATE' in os.environ:\n    raise RuntimeError('broken')\n"
    first = "from __future__ import annotations\n"
    work.edit("scripts/strategies/gpipe.py", first, f"{first}\n{trap}")
    done = work.snakemake("--keep-going", check=False)
    assert done.returncode == 1
    said = done.stdout + done.stderr
    assert "1 of 2 cells failed:" in said
    assert "reports/unfinished.html" in said
    html = (work.folder / "reports/unfinished.html").read_text()
    cell = next(path.name for path in (work.folder / "results/cells").glob("swin.gpipe*"))
    assert "This report is not finished: 1 cell failed." in html
    assert f'href="../results/cells/{cell}/log.txt"' in html
    assert (work.folder / f"results/cells/{cell}/log.txt").exists()
    assert "swin.eager" in html
    # Mended, the whole report takes its place.
    work.edit("scripts/strategies/gpipe.py", trap, "")
    assert work.snakemake().returncode == 0
    assert not (work.folder / "reports/unfinished.html").exists()
    assert "not finished" not in (work.folder / "reports/final.html").read_text()
