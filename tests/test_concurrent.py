"""Models that train at the same time: each as if it were alone, and what both together take."""

from __future__ import annotations

import json
import re

import pytest

import constructed
from constructed import table
from parbench import strategies
from parbench.errors import ParbenchError
from parbench.launch import devices
from parbench.measure import metrics_json, provenance
from parbench.plan import config, expansion, published
from parbench.plan.state import code_digest
from parbench.plan.study import Study, Table
from parbench.reporting import report
from parbench.strategies import eager
from parbench.training import train
from parbench.training.progress import Heartbeat
from parbench.verdicts import claims, evidence, words
from parbench.verdicts.groups import groups_of
from parbench.verdicts.published import Source
from test_checkpoint import often, state
from test_report import collect
from test_tables import (
    make_group,
    make_hardware,
    make_plan,
    make_published,
    make_run,
    make_runs,
)
from training import altered, cell, learned

__all__ = ["state"]  # a fixture

BESIDE = {"simple_cnn": {}}


# ---------------------------------------------------------------- the strategy's words


@pytest.mark.parametrize(
    ("devices", "beside", "words"),
    [
        (2, {**BESIDE, "swin": {}}, r"beside.swin: with the options \{\} it is not the study's"),
    ],
)
def test_contradictions_are_said(devices, beside, words):
    value = cell("concurrent", devices, beside=beside)
    (problem,) = strategies.of(value).check()
    assert re.search(words, problem)


def test_on_one_gpu_each_process_has_a_core_and_on_one_core_none_may(monkeypatch):
    monkeypatch.setattr("parbench.machine.usable_cores", lambda: list(range(16)))
    value = cell("concurrent", 1, beside=BESIDE)
    assert list(strategies.of(value).check())
    value = altered(value, hardware={"device": "cuda"})
    assert not list(strategies.of(value).check())
    assert devices.needed(value, 1) == (1, 2)


def test_the_code_of_a_cell_is_that_of_all_its_models(monkeypatch):
    value = cell("concurrent", 2, beside=BESIDE)
    code = provenance.code_of(value)
    assert {
        f"parbench.{name}" for name in ("models.swin", "models.simple_cnn", "strategies.concurrent")
    } <= set(code)
    assert "parbench.models.simple_cnn" not in provenance.code_of(cell())
    alone = code_digest(cell("concurrent", 2, beside={"cnn": {}}))
    assert code_digest(value) not in (alone, code_digest(cell()))


# ---------------------------------------------------------------- with others that are scripted


class Scripted(eager.Strategy):
    """One process of two; of the other one, ``late`` looks at its end find nothing."""

    late, seconds, trouble = 2, 30.0, None

    def meet(self, what, mine=None):
        if what == "trained" and self.late > 0:
            return None
        return [mine, *self.other()]

    def heard(self, what):
        if self.late > 0:
            self.late -= 1
            return []
        return self.other()

    def other(self):
        return [{"model": "vit", "train_seconds": self.seconds, "trouble": self.trouble}]


def trained(strategy, digits, folder, heartbeat=None):
    folder.mkdir(exist_ok=True)
    out = folder / "metrics.json"
    train.train(strategy.cell, digits, out, strategy, heartbeat or Heartbeat(0))
    return metrics_json.read(out) if out.exists() else None


def test_the_end_is_when_all_have_ended(digits, tmp_path):
    strategy = Scripted(cell())
    metrics = trained(strategy, digits, tmp_path)
    assert strategy.late == 0
    assert metrics["beside"] == [{"model": "vit", "train_seconds": 30.0}]
    assert metrics["train_seconds"] < 30  # waiting is not training


@pytest.mark.parametrize(("late", "epochs"), [(0, 0), (1, 1), (4, 1)])
def test_a_failure_of_another_one_is_the_cells(digits, tmp_path, late, epochs):
    """Known at the next end of an epoch, or while its end is awaited; and not told again."""
    strategy = Scripted(cell())
    strategy.late, strategy.seconds = late, None
    strategy.trouble = "the training loss became nan in epoch 1 of 2"
    metrics = trained(strategy, digits, tmp_path)
    assert metrics["status"] == "diverged"
    assert metrics["reason"] == f"vit, trained at the same time: {strategy.trouble}"
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


# ---------------------------------------------------------------- several models together: the plan


@pytest.fixture
def base(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loaded = config.load() | {"studies": ["laharsh-cpu"]}
    return loaded | {"available": {"cpu": 2}, "deployment": "host"}


def plan_of(base):
    return expansion.plan(config.checked(base)).studies[base["studies"][0]].stated()


def test_both_models_are_a_row_where_a_table_names_them(base):
    plan = plan_of(base)
    assert {group["model"] for group in plan["groups"]} == {"cnn", "vit"}
    both = {group["id"]: group for group in plan["together"]}
    assert len(both) == 2 * 3  # twice, as the source tells it, of every variant
    concurrent = both["cnn+vit.concurrent"]
    assert concurrent["baseline"] == "cnn+vit.eager"
    assert concurrent["published"]["model"] == "cnn+vit"
    assert concurrent["published"]["table"] == "Performance Comparison"
    members = [group for group in plan["groups"] if group["id"] in concurrent["members"]]
    assert [group["model"] for group in members] == ["cnn", "vit"]
    assert concurrent["cells"] == [cell for group in members for cell in group["cells"]]
    shown = plan["study"]["tables"]
    tables = [Table.model_validate(each) for each in shown]
    rows = [each.title for each in tables if each.models and each.holds("cnn+vit", "eager")]
    assert rows == ["Performance Comparison: both models"]
    assert any("width 16 instead of 64" in words for words in concurrent["scaled"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s["models"]["vit"].update(settings={"epochs": 1}), "different settings"),
        (lambda s: s["together"].update(cnn={"models": ["cnn", "vit"]}), "cnn is a model"),
        (lambda s: s["together"]["cnn+vit"].update(models=["cnn", "vitt"]), "did you mean 'vit'"),
        (lambda s: s["tables"][1].update(models=["cnn+vi"]), r"did you mean 'cnn\+vit'"),
        (
            lambda s: s["variants"]["concurrent"]["options"]["beside"]["vit"].update(depth=2),
            "beside.vit: with the options .* make the two agree",
        ),
    ],
)
def test_contradictions_of_several_models(base, monkeypatch, change, words):
    study = config.read_yaml(config.ROOT / "studies/laharsh-cpu.yaml")
    study = json.loads(json.dumps(study))  # anchors are one object
    change(study)
    monkeypatch.setattr(config, "study", lambda name: Study.model_validate(study))
    with pytest.raises(ParbenchError, match=words):
        plan_of(base)


# ---------------------------------------------------------------- several models together: numbers


def members(variant, cnn, vit, beside=(), devices=1, **changes):
    """Groups of both models and their runs; seconds of each seed, and of who trained beside."""
    hardware = make_hardware(devices=devices)
    groups, runs = [], {}
    for model, seconds, other in (("cnn", cnn, "vit"), ("vit", vit, "cnn")):
        group = make_group(variant, (0, 1, 2), model=model, hardware=hardware)
        group["id"] = f"{model}.{variant}"
        group["cells"] = [f"{model}.{variant}.s{seed}" for seed in group["seeds"]]
        made = make_runs(group, train_seconds=seconds)
        for each, both in zip(made.values(), beside, strict=bool(beside)):
            each["beside"] = [{"model": other, "train_seconds": both[other]}]
        groups.append(group | changes)
        runs |= made
    both = {
        **groups[0],
        "id": f"cnn+vit.{variant}",
        "model": "cnn+vit",
        "members": [group["id"] for group in groups],
        "cells": [cell for group in groups for cell in group["cells"]],
        "baseline": None if variant == "eager" else "cnn+vit.eager",
    }
    return groups, both, runs


TABLES = [
    {"title": "a", "variants": ["eager", "concurrent", "ddp"], "metrics": ["train_seconds"]},
    {
        "title": "b",
        "models": ["cnn+vit"],
        "variants": ["eager", "concurrent", "ddp"],
        "metrics": ["total_seconds", "speedup", "parallel_efficiency"],
    },
]


def study_of(change=lambda runs: None):
    """(plan, metrics): eager, concurrent and ddp of both models."""
    alone = members("eager", [10.0] * 3, [30.0, 30.0, 36.0])
    beside = [{"cnn": 12.5, "vit": 32.0}] * 3
    concurrent = members("concurrent", [12.0] * 3, [33.0] * 3, beside, devices=2)
    ddp = members("ddp", [8.0] * 3, [20.0] * 3, devices=2)
    plan = make_plan(*alone[0], *concurrent[0], *ddp[0], tables=TABLES)
    plan["together"] = [alone[1], concurrent[1], ddp[1]]
    runs = alone[2] | concurrent[2] | ddp[2]
    change(runs)
    return plan, runs


def take_turns(plan, *ratios):
    """Put pairs of both at once, beside one after the other, into a plan; metrics.json of each."""
    names = [f"both.r{n}" for n in range(len(ratios))]
    told = {"variant": "concurrent", "baseline": "eager", "inference": False, "not_run": None}
    plan["pairs"] = [{"model": "cnn+vit", "cells": names, **told}]
    groups = plan["groups"]
    sides = [make_run(each, each["cells"][0])["cell"] for each in (groups[2], *groups[:2])]
    return {
        name: constructed.make_pair_metrics(
            constructed.make_pair(name, sides, n), seconds=(1.0, 0.25 * ratio, 0.75 * ratio)
        )
        for n, (name, ratio) in enumerate(zip(names, ratios, strict=True))
    }


TURNS = (1.2, 1.21, 1.19, 1.2)


def rows_of(frame, group):
    rows = frame[frame["group"] == group]
    return {row["metric"]: row for _, row in rows.iterrows()}


def test_what_both_models_take():
    """One after the other the sum; at the same time until the last has ended."""
    plan, runs = study_of()
    frame = table(plan, runs | take_turns(plan, *TURNS))
    eager, concurrent, ddp = (
        rows_of(frame, f"cnn+vit.{variant}") for variant in ("eager", "concurrent", "ddp")
    )
    assert eager["total_seconds"]["max"] == 46.0
    # 32 beside cnn, whose cell says so, and 33 by vit's own cell: each has measured both.
    assert concurrent["total_seconds"]["mean"] == 32.5
    assert ddp["total_seconds"]["mean"] == 28.0
    assert concurrent["speedup"]["mean"] == pytest.approx(1.2, abs=1e-4)
    assert concurrent["parallel_efficiency"]["mean"] == pytest.approx(0.6, abs=1e-4)
    assert set(eager) == set(ddp) == {"total_seconds"}
    assert set(concurrent) == {"total_seconds", "speedup", "parallel_efficiency"}
    assert "total_seconds" not in rows_of(frame, "cnn.eager")
    # A ratio that no table of a group names has no row.
    assert "throughput_ratio" not in set(frame["metric"])
    assert "parallel_efficiency" not in rows_of(frame, "cnn.concurrent")


def test_both_models_need_both_models():
    def change(runs):
        lost = runs["vit.eager.s1"]
        lost.update(status="out_of_memory", reason="8 GiB", train_seconds=None)

    found = rows_of(table(*study_of(change)), "cnn+vit.eager")["total_seconds"]
    assert found[["status", "n_seeds"]].tolist() == ["out of memory 1 of 3", 2]


def test_both_models_beside_their_published_numbers():
    plan, runs = study_of()
    values = {"metric": "total_seconds", "unit": "s", "model": "cnn+vit", "strategy": "eager"}
    printed = {**values, "metric": "speedup", "unit": "ratio", "strategy": "concurrent"}
    source = make_published(
        {**values, "value": 40.0, "table": "A"},
        {**values, "value": 20.0, "table": "B"},
        {**printed, "value": 14.3, "table": "A", "devices_per_node": 2},
        {**printed, "value": 1.9, "table": "B", "devices_per_node": 2},
    )
    for group in plan["together"]:
        selected = {"model": "cnn+vit", "strategy": group["strategy"], "table": ["B", "C"]}
        group["published"] = selected
    runs |= take_turns(plan, *TURNS)
    found = rows_of(table(plan, runs, source), "cnn+vit.concurrent")["speedup"]
    # Of 0.25 and 0.75, both at once are at most 4/3 times as fast as one after the other.
    assert (found["published"], found["verdict"]) == (1.9, words.NOT_COMPARABLE)
    assert "at most 1.33" in found["reason"]
    plan["together"][0]["published"].pop("table")
    with pytest.raises(ParbenchError, match="selects two values of total_seconds"):
        table(plan, runs, source)


def test_a_claim_of_a_total_is_of_both_models_and_no_other_is():
    plan, runs = study_of()
    turns = take_turns(plan, *TURNS)
    groups, source = tuple(groups_of(plan, runs | turns).values()), Source("laharsh", [])
    both = claims.Rebuilt("both", plan["study"]["tolerance"], source, groups, {})
    stated = published.claims(config.ROOT / "studies" / "published" / "claims.yaml")
    judged = claims.judge(stated, [both], [])
    made = {each.name: each for each in judged}
    total, each = made["laharsh-total-speedup"], made["laharsh-vit-speedup"]
    assert [found.ratios[0].over.model for found in total.comparisons] == ["cnn+vit"]
    assert total.comparisons[0].measured.max == pytest.approx(1.21)
    assert total.comparisons[0].published == 14.3
    assert total.comparisons[0].beside.lies == words.NOT_COMPARABLE
    assert (total.verdict, total.reason) == (words.UNTESTED, "at most 1.33 times")
    assert {found.ratios[0].over.model for found in each.comparisons} == {"cnn", "vit"}
    assert (each.verdict, "no pair" in each.reason) == (words.UNTESTED, True)


# ---------------------------------------------------------------- several models together: report


def written(folder, plan, runs, **study):
    """The paths of a plan, its table and its cells, as a run of ``runs`` leaves them."""
    plan["study"] = constructed.usual_study(tables=TABLES, citation=None, **study)
    usual = constructed.plan_json(plan["study"], constructed.usual_groups())
    for group in plan["groups"] + plan["together"]:
        group["work"] = usual["groups"][0]["work"]
    paths = {"plan": folder / "both.json", "table": folder / "both.csv", "cells": folder / "cells"}
    paths["plan"].write_text(json.dumps(plan))
    for name, metrics in runs.items():
        (paths["cells"] / name).mkdir(parents=True)
        (paths["cells"] / name / "metrics.json").write_text(json.dumps(metrics))
        (paths["cells"] / name / "log.txt").write_text("done\n")
    (folder / "published.csv").write_text(constructed.published_csv(plan["study"], []))
    constructed.make_table(paths["plan"], paths["cells"], paths["table"])
    return paths


@pytest.mark.parametrize(
    ("there", "why"),
    [
        (["cnn.s0", "cnn.s1", "cnn.s2"], "not measured"),
        (["cnn.s0", "vit.s1", "vit.s2"], "no seed of which all models are done"),
    ],
)
def test_a_pair_of_which_half_is_done_is_a_row_that_says_so(tmp_path, there, why):
    """In what is made of partial evidence."""
    plan, runs = study_of()
    there = [".concurrent.".join(name.split(".")) for name in there]
    for name in [name for name in runs if ".concurrent." in name and name not in there]:
        del runs[name]
    seeds = {name: {"seed": run["cell"]["seed"]} for name, run in runs.items()}
    left = evidence.plan({"plan": plan, "cells": seeds})
    both = {group["id"]: group for group in left["together"]}
    assert both["cnn+vit.concurrent"]["not_run"] == why
    assert both["cnn+vit.eager"] == plan["together"][0]
    paths = written(tmp_path, left, runs, published="laharsh")
    out, source = tmp_path / "report.json", config.ROOT / "studies" / "published"
    asked = ["--plan", paths["plan"], "--table", paths["table"], "--cells", paths["cells"]]
    asked += ["--claims", source / "claims.yaml", "--published", *sorted(source.glob("*.csv"))]
    report.main(["collect", *map(str, asked), "--out", str(out)])
    (row,) = (
        [cell["text"] for cell in row]
        for row in json.loads(out.read_text())["claims"]["detail"]["rows"]
        if row[1]["text"].startswith("cnn+vit")
    )
    made = json.loads(out.read_text())["claims"]
    assert any(why in note["text"] for note in made["detail"]["notes"])
    assert row[-1] == words.UNTESTED


def test_the_report_shows_both_models(tmp_path):
    """As a row of their own, whose number leads to their cells; no cell is shown twice."""
    paths = written(tmp_path, *study_of(), published=None)
    data = json.loads(collect(tmp_path, paths).read_text())
    (section,) = data["studies"]
    second = section["tables"][1]
    assert [row[0]["text"] for row in second["rows"]] == ["cnn+vit"] * 3
    assert second["rows"][1][3]["text"].startswith("32.5")
    assert second["rows"][0][4]["text"] == "–"  # the baseline has no speedup
    anchors = {panel["id"] for panel in data["groups"]}
    assert second["rows"][1][3]["link"] in anchors
    assert len(anchors) == 6
    work = next(table for table in section["tables"] if table["title"].startswith("What each"))
    assert [row[0]["text"] for row in work["rows"]] == ["cnn", "vit"]  # their variants alike
