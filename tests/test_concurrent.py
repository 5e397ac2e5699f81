"""Models that train at the same time: each as if alone, and the time that both take together."""

from __future__ import annotations

import json
import shutil

import pytest

import as_json
import constructed
from parbench import identity, strategies
from parbench.launch import cell_commands, devices
from parbench.measure import clocks, provenance
from parbench.plan import config_files
from parbench.reporting import report
from parbench.strategies import eager
from parbench.training import train
from parbench.training.progress import Heartbeat
from parbench.training.run import Run
from parbench.verdicts import evidence
from test_checkpoint import often, state
from training import altered, cell, learned

__all__ = ["state"]  # a fixture

BESIDE = {"simple_cnn": {}}


# ---------------------------------------------------------------- the strategy


def test_on_one_gpu_each_process_has_a_core_and_on_one_core_none_may(monkeypatch):
    monkeypatch.setattr("parbench.machine.usable_cores", lambda: list(range(16)))
    value = cell("concurrent", 1, beside=BESIDE)
    assert list(strategies.of(value).check())
    value = altered(value, hardware={"device": "cuda"})
    assert not list(strategies.of(value).check())
    assert devices.needed(value, 1) == (1, 2)  # of which each process has one


@pytest.mark.parametrize(("lent", "threads"), [(4, "2"), (8, "4"), (16, "4"), (1, "1")])
def test_beside_a_gpu_a_process_has_no_more_threads_than_cores(tmp_path, lent, threads):
    value = altered(cell("concurrent", 1, beside=BESIDE), hardware={"device": "cuda", "threads": 4})
    paths = [tmp_path / name for name in ("cell.json", "data", "metrics.json", "log.txt")]
    cores = tuple(map(str, range(lent)))
    made = cell_commands.programs(
        cell_commands.Task(value, *paths),
        0,
        None,
        devices.LockedDevices(("GPU-1",), cores),
        None,
        tmp_path,
        {},
    )
    assert [each.environment["OMP_NUM_THREADS"] for each in made.values()] == [threads] * 2


def test_the_code_of_a_cell_is_that_of_all_its_models(monkeypatch):
    value = cell("concurrent", 2, beside=BESIDE)
    code = provenance.code_of(value)
    assert {
        f"parbench.{name}" for name in ("models.swin", "models.simple_cnn", "strategies.concurrent")
    } <= set(code)
    assert "parbench.models.simple_cnn" not in provenance.code_of(cell())
    alone = identity.code_of(cell("concurrent", 2, beside={"cnn": {}}))
    assert identity.code_of(value) not in (alone, identity.code_of(cell()))


# ---------------------------------------------------------------- with a scripted other process


class Scripted(eager.Strategy):
    """One process of two; the other one has not ended yet at the first ``late`` checks."""

    late, seconds, problem = 2, 30.0, None

    def exchange_messages(self, what, message=None):
        if what == "trained" and self.late > 0:
            return None
        return [message, *self.other()]

    def messages(self, what):
        if self.late > 0:
            self.late -= 1
            return []
        return self.other()

    def other(self):
        return [{"model": "vit", "train_seconds": self.seconds, "problem": self.problem}]


def trained(strategy, digits, folder, heartbeat=None):
    folder.mkdir(exist_ok=True)
    out = folder / "metrics.json"
    train.train(strategy.cell, digits, out, strategy, heartbeat or Heartbeat(0))
    return as_json.read(out) if out.exists() else None


def test_the_end_is_when_all_have_ended(digits, tmp_path, monkeypatch):
    """By a clock that advances in steps, while waiting, and a little when it is read."""
    clock, step = [0.0], Run.step

    def stepped(self, *given):
        clock[0] += 1
        return step(self, *given)

    def now():
        clock[0] += 1e-6
        return clock[0]

    class Slow(Scripted):
        def messages(self, what):
            clock[0] += 1000 * (self.late > 0)
            return super().messages(what)

    monkeypatch.setattr(Run, "step", stepped)
    monkeypatch.setattr(clocks.time, "perf_counter", now)
    strategy = Slow(cell())
    strategy.late = 4  # at the ends of both epochs, and twice while waiting
    metrics = trained(strategy, digits, tmp_path)
    assert strategy.late == 0
    assert metrics["beside"] == [{"model": "vit", "train_seconds": 30.0}]
    assert clock[0] > 4000
    steps = 2 * metrics["steps_per_epoch"]
    assert metrics["train_seconds"] == pytest.approx(steps, abs=0.1)  # waiting is not training


@pytest.mark.parametrize(("late", "epochs"), [(0, 0), (1, 1), (4, 1)])
def test_a_failure_of_another_one_is_the_cells(digits, tmp_path, late, epochs):
    """Noticed at the next end of an epoch or while waiting for it, and reported once."""
    strategy = Scripted(cell())
    strategy.late, strategy.seconds = late, None
    strategy.problem = "the training loss became nan in epoch 1 of 2"
    metrics = trained(strategy, digits, tmp_path)
    assert metrics["status"] == "diverged"
    assert metrics["reason"] == f"vit, trained at the same time: {strategy.problem}"
    assert len(metrics["history"]) == epochs


def test_a_run_that_waits_can_be_stopped_and_goes_on(digits, tmp_path, state):
    value = often(mode="deterministic")
    whole = trained(Scripted(value), digits, tmp_path / "whole")
    strategy = Scripted(value)
    strategy.late = 10**6

    class Waiting(Heartbeat):
        def beat(self, phase, epoch=0, step=0):
            if phase == "waiting":
                (state / "stop").touch()

    assert trained(strategy, digits, tmp_path / "ended", Waiting(0)) is None
    assert json.loads((state / "stopped.json").read_text()) == {"epoch": 2, "step": 5}
    (state / "stop").unlink()
    ended = trained(Scripted(value), digits, tmp_path / "ended")
    assert ended["resumed_from"][0]["step"] == 5
    assert learned(ended) == learned(whole)


# ---------------------------------------------------------------- several models together
# tests/expected has the numbers of all evidence.


(MEASURED,) = (config_files.ROOT / "reports/evidence").glob("laharsh-cpu-*.json")


@pytest.fixture
def measured(tmp_path):
    """Return a function that makes the table of laharsh-cpu's evidence: (plan, table, cells)."""
    folder = evidence.unpack(MEASURED, tmp_path)
    shutil.copy(
        config_files.ROOT / "studies/published/published_results.csv", folder / "published.csv"
    )
    plan, cells = folder / f"plan/{folder.name}.json", folder / "cells"

    def made():
        return plan, constructed.make_table(plan, cells, folder / "table.csv"), cells

    made.cells = cells
    return made


def test_both_models_need_both_models(measured):
    path = next(measured.cells.glob("vit.eager.cpu1.s1-*/metrics.json"))
    lost = {"status": "out_of_memory", "reason": "8 GiB", "train_seconds": None}
    path.write_text(json.dumps(json.loads(path.read_text()) | lost))
    rows = constructed.read_table(measured()[1]).set_index(["group", "metric"])
    found = rows.loc[("cnn+vit.eager", "total_seconds")]
    assert found[["status", "n_seeds"]].tolist() == ["out of memory 1 of 2", 1]


def test_the_report_shows_both_models(measured):
    """In rows of their own, whose numbers link to their cells; no cell is shown twice."""
    plan, table, cells = measured()
    data = report.collect([plan], [table], cells)
    rows = [row for each in data["studies"][0]["tables"] for row in each["rows"]]
    links = [c["link"] for row in rows if row[0]["text"] == "cnn+vit" for c in row if "link" in c]
    anchors = [panel["id"] for panel in data["groups"]]
    assert links
    assert set(links) <= set(anchors)
    assert "; 6 more combine groups of several models" in dict(data["summary"]["facts"])["Groups"]
    assert len(set(anchors)) == len(anchors) == len(json.loads(plan.read_text())["groups"])
