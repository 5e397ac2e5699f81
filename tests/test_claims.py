"""Claims: what is compared, what a ratio says, what a claim's verdict is, and how it is shown."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pandas as pd
import pytest

import audit
import cells
import claims
import config
import constructed
import report
import tables
from claims import FAILS, HOLDS, REPORTED, UNDECIDED, UNTESTED, Trial
from constructed import CPU1, CPU2, TRAINING, make_cell, make_hardware, make_metrics
from errors import ParbenchError
from reporting import render as layout
from tables import Group, Summary
from test_report import HOSTILE, Page, pdf_text, render, squeezed

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "studies" / "published" / "claims.yaml"
PUBLISHED = sorted((ROOT / "studies" / "published").glob("*.csv"))
T4 = make_hardware("cuda", 1, gpu_model="T4", name="t4x1")
NODES = make_hardware(devices=1, nodes=2, name="cpu2x1")
HEAD = (
    "study,table,model,strategy,options,hardware,nodes,devices_per_node,batch_size,metric,value,"
    "unit"
)
NOTE = "torchgpipe gives all CPU devices one worker"


# ---------------------------------------------------------------- one ratio


def summary(low: float, high: float, n: int = 3) -> Summary:
    return Summary(n, (low + high) / 2, 0.01, low, high, low, high)


NOISE = (0.95, 1.05)


@pytest.mark.parametrize(
    ("op", "value", "interval", "band", "verdict"),
    [
        (">", 1, (1.2, 1.4), NOISE, HOLDS),
        (">", 1, (1.04, 1.4), NOISE, UNDECIDED),
        (">", 1, (0.7, 0.94), NOISE, FAILS),
        (">", 2, (1.2, 1.4), NOISE, FAILS),
        (">", 2, (1.8, 1.95), NOISE, UNDECIDED),
        (">", 2, (2.2, 2.4), NOISE, HOLDS),
        ("<", 1, (0.5, 0.6), NOISE, HOLDS),
        ("<", 1, (0.5, 0.96), NOISE, UNDECIDED),
        ("<", 1, (1.1, 1.2), NOISE, FAILS),
        ("<", 1, (0.98, 0.999), claims.EVEN, HOLDS),
        ("within_noise", 1, (0.96, 1.04), NOISE, HOLDS),
        ("within_noise", 1, (0.94, 1.04), NOISE, UNDECIDED),
        ("within_noise", 1, (0.2, 1.9), NOISE, UNDECIDED),
        ("within_noise", 1, (1.06, 1.2), NOISE, FAILS),
        ("within_noise", 1, (0.8, 0.9), NOISE, FAILS),
        (">", 1, (1.2, 1.4), None, UNDECIDED),
        ("report", 1, (0.2, 1.9), None, REPORTED),
    ],
)
def test_an_interval_decides(op, value, interval, band, verdict):
    found, reasons = claims.decide(op, value, summary(*interval), band)
    assert found == verdict
    assert (found == UNDECIDED) == bool(reasons)


@pytest.mark.parametrize(("op", "verdict"), [(">", UNDECIDED), ("report", REPORTED)])
def test_two_seeds_decide_nothing(op, verdict):
    found, reasons = claims.decide(op, 1, summary(2, 2.1, n=2), NOISE)
    assert (found, reasons) == (verdict, ["2 of at least 3 seeds"])


# ---------------------------------------------------------------- groups


def group(
    variant: str,
    strategy: str,
    hardware: dict,
    seconds=100.0,
    *,
    model="net",
    options=None,
    accuracy=0.8,
    status="ok",
    seeds=(0, 1, 2),
    jitter=0.001,
    **changes,
) -> Group:
    """A group of three seeds whose times and accuracies differ by ``jitter``.

    ``changes`` are those of the plan, such as ``not_run`` and ``published``; others are settings.
    """
    plan = {"not_run": None, "published": None, "comparable": {}, "baseline": None, "scaled": []}
    plan |= {key: changes.pop(key) for key in list(changes) if key in plan}
    name = f"{model}.{variant}"
    cell = make_cell(
        name, model, strategy, hardware, options=options, training={**TRAINING, **changes}
    )
    plan |= {
        "id": name,
        "model": model,
        "variant": variant,
        "strategy": strategy,
        "options": options or {},
        "model_options": {},
        "hardware": hardware,
        "dataset": cell["dataset"],
        "training": cell["training"],
        "seeds": list(seeds),
        "cells": [f"{name}.s{seed}" for seed in seeds],
    }
    runs = []
    for seed in seeds if plan["not_run"] is None else ():
        own = {**cell, "id": f"{name}.s{seed}", "seed": seed}
        # Another factor than of the other group's seeds: no interval is a point.
        factor = 1 + jitter * math.sin(len(variant) + 2 * seed)
        measured = {"train_seconds": seconds * factor, "test_accuracy": accuracy * factor}
        runs.append(make_metrics(own, status, **(measured if status == "ok" else {})))
    return Group(plan, tuple(runs))


def judged(claim: dict, *groups: Group, rows=(), findings=(), means=None, study="paper"):
    """The verdict on one claim about ``paper``."""
    text = "\n".join([HEAD, *(f"paper,Table 1,{row}" for row in rows)])
    frame = pd.read_csv(pd.io.common.StringIO(text))
    told = {"published": study, "tolerance": {"relative": 0.05, "accuracy": 0.01}}
    trial = Trial("paper-cpu", told, groups, means or {})
    claim = {"study": "paper", "claim": "It is so.", **claim}
    config.check({"a": claim}, "claims", "test")
    return claims.judge({"a": claim}, [trial], frame, findings)[0]


def ratio(over: dict, under: dict, op=">", metric="train_seconds", **more) -> dict:
    test = {"metric": metric, "numerator": over, "denominator": under, "op": op}
    return {"test": test | ({"value": 1} if op in (">", "<") else {}) | more}


FASTER = ratio({"strategy": "eager"}, {"strategy": "ddp"})
EAGER = group("eager", "eager", CPU1)


@pytest.mark.parametrize(("seconds", "verdict"), [(60, HOLDS), (100, UNDECIDED), (160, FAILS)])
def test_a_speedup(seconds, verdict):
    made = judged(FASTER, EAGER, group("ddp", "ddp", CPU2, seconds, baseline="net.eager"))
    assert made.verdict == verdict
    (one,) = made.comparisons
    assert one.measured.mean == pytest.approx(100 / seconds, rel=0.01)
    assert one.band[0] < 1 < one.band[1]


def test_the_noise_is_the_baselines_whichever_side_it_stands_on():
    quiet = group("eager", "eager", CPU1, jitter=0.0001)
    loud = group("ddp", "ddp", CPU2, 60, jitter=0.05, baseline="net.eager")
    forth = judged(FASTER, quiet, loud).comparisons[0]
    back = judged(ratio({"strategy": "ddp"}, {"strategy": "eager"}), quiet, loud).comparisons[0]
    assert forth.band == back.band
    assert forth.band[1] < 1.01


def test_published_is_what_the_claim_states_or_what_its_numbers_give():
    named = {"strategy": "eager"}, {"strategy": "ddp"}
    groups = [
        group(name, name, hardware, published={"model": "net", "strategy": name})
        for name, hardware in zip(("eager", "ddp"), (CPU1, CPU2), strict=True)
    ]
    rows = ["net,eager,,X,1,1,,train_seconds,90,s", "net,ddp,,X,1,2,,train_seconds,60,s"]
    assert judged(ratio(*named), *groups, rows=rows).comparisons[0].published == 1.5
    for stated in (2.5, {"net": 2.5}, {"net": {"64": 2.5}}, {"horovod": 3, "ddp": 2.5}):
        made = judged(ratio(*named) | {"published": stated}, *groups, rows=rows)
        assert made.comparisons[0].published == 2.5
    other = [rows[0], rows[1].replace(",X,", ",Y,")]
    assert judged(ratio(*named), *groups, rows=other).comparisons[0].published is None


@pytest.mark.parametrize(("seconds", "verdict"), [(30, HOLDS), (60, FAILS)])
def test_a_ratio_may_have_to_be_above_what_is_stated_of_its_strategy(seconds, verdict):
    asked = ratio({"strategy": "eager"}, {"strategy": ["gpipe", "ddp"]}, value="published")
    asked |= {"published": {"gpipe": 1, "ddp": 2}}
    ddp = group("ddp", "ddp", CPU2, seconds, baseline="net.eager")
    made = judged(asked, EAGER, ddp)
    assert (made.verdict, made.comparisons[0].published) == (verdict, 2)
    made = judged(asked | {"published": {"gpipe": 1}}, EAGER, ddp)
    assert (made.verdict, made.reason) == (UNTESTED, "the claim states no number for this")


EQUAL = {"test": {"metric": "test_recall_macro", "against": "test_accuracy", "op": "equal"}}


@pytest.mark.parametrize(("recall", "verdict"), [(1, HOLDS), (1.01, FAILS)])
def test_a_metric_that_equals_another_in_every_run(recall, verdict):
    own = group("eager", "eager", CPU1, published={"model": "net", "strategy": "eager"})
    for run in own.runs:
        run["test_recall_macro"] = recall * run["test_accuracy"]
    other = group("ddp", "ddp", CPU2)  # of which the source says nothing
    lacking = group("nodes", "ddp", NODES, not_run="needs 2 nodes", published=own.plan["published"])
    rows = [
        "net,eager,,X,1,1,,test_accuracy,0.1476,fraction",
        "net,eager,,X,1,1,,test_recall_macro,0.1714,fraction",
    ]
    made = judged(EQUAL, own, other, lacking, rows=rows)
    assert made.verdict == verdict
    ran, left = made.comparisons
    assert (ran.published, ran.measured.mean) == pytest.approx((0.1714 / 0.1476, recall))
    assert (left.verdict, left.reasons) == (UNTESTED, ("needs 2 nodes",))
    made = judged(EQUAL, other, rows=rows)
    assert (made.verdict, made.reason) == (UNTESTED, "no cell of paper-cpu has a score")


def test_what_is_lacking_is_said():
    lacking = group("ddp", "ddp", CPU2, not_run="needs 2x A100")
    made = judged(FASTER, EAGER, lacking)
    assert (made.verdict, made.reason) == (UNTESTED, "needs 2x A100")
    assert judged(FASTER, EAGER).reason == "paper-cpu has no cell with strategy ddp"
    other = group("ddp", "ddp", CPU2, learning_rate=0.5)
    assert "no two cells that differ in this alone" in judged(FASTER, EAGER, other).reason
    failed = group("ddp", "ddp", CPU2, status="out_of_memory")
    assert "out of memory" in judged(FASTER, EAGER, failed).reason
    total = ratio({"strategy": "eager"}, {"strategy": "ddp"}, metric="total_seconds")
    made = judged(total, EAGER, group("ddp", "ddp", CPU2))
    assert made.reason == "paper-cpu has no cell that measures total_seconds"
    unknown = ratio({"strategy": "eager"}, {"strategy": "ddp"}, metric="wishes")
    made = judged(unknown, EAGER, group("ddp", "ddp", CPU2))
    assert (made.verdict, made.reason) == (UNTESTED, "no cell measures wishes")


def test_without_a_common_seed_there_is_no_number():
    """Neither in one ratio nor in two: what is not measured is no NaN."""
    empty = Group(group("ddp", "ddp", CPU2).plan, ())
    made = judged(ratio({"strategy": "ddp"}, {"strategy": "eager"}), EAGER, empty)
    assert (made.verdict, made.reason) == (UNTESTED, "no seed that both have")
    assert made.comparisons[0].measured is None
    test = ratio({"strategy": "eager"}, {"strategy": "ddp"}, models=["a", "b"])
    groups = [
        group(name, name, hardware, model=model, seeds=seeds)
        for model, seeds in (("a", (0, 1, 2)), ("b", (3, 4, 5)))
        for name, hardware in (("eager", CPU1), ("ddp", CPU2))
    ]
    made = judged(test, *groups)
    assert (made.verdict, made.reason) == (UNTESTED, "no seed that all of them have")


def test_a_pipeline_on_one_worker_tests_no_speedup_but_its_own_options():
    def gpipe(checkpoint: str, seconds: float) -> Group:
        options = {"balance": [1, 1], "checkpoint": checkpoint}
        told = {"comparable": {"speedup": NOTE}}
        return group(f"gpipe-{checkpoint}", "gpipe", CPU2, seconds, options=options, **told)

    groups = EAGER, gpipe("always", 140), gpipe("never", 100)
    made = judged(ratio({"strategy": "eager"}, {"strategy": "gpipe"}), *groups)
    assert (made.verdict, made.reason) == (UNTESTED, f"needs 2x GPU: {NOTE}")
    always, never = (
        {"strategy": "gpipe", "options": {"checkpoint": name}} for name in ("always", "never")
    )
    assert judged(ratio(always, never), *groups).verdict == HOLDS


def test_one_ratio_over_another():
    test = ratio({"strategy": "eager"}, {"strategy": "ddp"}, models=["swin", "resnet50"])
    groups = [
        group(name, name, hardware, seconds, model=model)
        for model, ddp in (("resnet50", 50), ("swin", 80))
        for name, hardware, seconds in (("eager", CPU1, 100), ("ddp", CPU2, ddp))
    ]
    made = judged(test | {"published": {"swin": 1.3, "resnet50": 1.44}}, *groups)
    (one,) = made.comparisons
    assert made.verdict == FAILS
    assert one.published == pytest.approx(1.3 / 1.44)
    assert one.measured.mean == pytest.approx(1.25 / 2, rel=0.01)
    assert one.band[1] > max(each.band[1] for each in one.ratios)


@pytest.mark.parametrize(
    ("accuracy", "jitter", "verdict"),
    [(0.801, 0.0005, HOLDS), (0.7, 0.0005, FAILS), (0.8, 0.1, UNDECIDED)],
)
def test_equal_accuracies_are_known_to_be(accuracy, jitter, verdict):
    test = ratio({"strategy": "ddp"}, {"strategy": "eager"}, "within_noise", "test_accuracy")
    ddp = group("ddp", "ddp", CPU2, accuracy=accuracy, jitter=jitter)
    made = judged(test, EAGER, ddp)
    assert made.verdict == verdict
    assert made.comparisons[0].band == pytest.approx((1 - 0.0125, 1 + 0.0125), abs=1e-4)


def test_a_batch_is_compared_at_the_same_hardware_and_options():
    groups = [
        group(
            f"{name}-{batch}", strategy, hardware, seconds, global_batch=batch, min_tail=batch // 2
        )
        for name, strategy, hardware in (
            ("one", "eager", CPU1),
            ("two", "ddp", CPU2),
            ("nodes", "ddp", NODES),
        )
        for batch, seconds in ((16, 100), (64, 60))
    ]
    groups.append(group("two-64-bucket", "ddp", CPU2, 60, options={"bucket": 1}, global_batch=64))
    made = judged(ratio({"batch_size": 64}, {"batch_size": 16}, "<"), *groups)
    pairs = [
        (each.ratios[0].over.plan["variant"], each.ratios[0].under.plan["variant"])
        for each in made.comparisons
    ]
    assert pairs == [(f"{name}-64", f"{name}-16") for name in ("one", "two", "nodes")]
    assert (made.verdict, made.reason) == (HOLDS, "comparisons: holds 3; on paper-cpu")


def test_the_sources_configuration_counts_and_not_the_variants_beside_it():
    own = {"published": {"model": "net", "strategy": "ddp"}}
    groups = [
        EAGER,
        group("ddp", "ddp", CPU2, 60, **own),
        group("ddp-bucket", "ddp", CPU2, 160, options={"bucket": 1}),
        group("ddp-phases", "ddp", CPU2, 160, profile="phases", **own),
        group("eager-phases", "eager", CPU1, 160, profile="phases"),
    ]
    made = judged(ratio({"devices": 2}, {"devices": 1}, "<"), *groups)
    assert [each.ratios[0].over.plan["variant"] for each in made.comparisons] == ["ddp"]
    assert made.verdict == HOLDS


def test_other_hardware_counts_only_where_the_sources_own_did_not_run():
    test = ratio({"nodes": 2}, {"nodes": 1, "devices": 1}, "<")
    own = {"published": {"model": "net"}}
    four = make_hardware(devices=2, nodes=2, name="cpu2x2")
    eager, other = group("eager", "eager", CPU1, **own), group("of-one", "ddp", NODES, 160)
    made = judged(test, eager, group("nodes", "ddp", four, 60, **own), other)
    assert [each.ratios[0].over.plan["variant"] for each in made.comparisons] == ["nodes"]
    assert made.verdict == HOLDS
    lacking = group("nodes", "ddp", four, not_run="needs 2 nodes of 2", **own)
    made = judged(test, eager, lacking, other)
    assert [each.verdict for each in made.comparisons] == [UNTESTED, FAILS]
    nothing = group("of-one", "ddp", NODES, not_run="needs 2 nodes of 1")
    made = judged(test, eager, lacking, nothing)
    assert (made.verdict, made.reason) == (UNTESTED, "needs 2 nodes of 2")


def test_devices_of_two_kinds_are_compared_only_where_named():
    gpu = group("gpu", "eager", T4, 10)
    same = ratio({"device": "gpu"}, {"device": "cpu"}, "within_noise", "test_accuracy")
    assert len(judged(same, EAGER, gpu).comparisons[0].ratios) == 1
    threads = group("threads", "eager", {**CPU1, "threads": 2, "name": "cpu1t2"})
    assert len(judged(same, threads, gpu).comparisons[0].ratios) == 1
    few = judged(same, group("cpu", "eager", CPU1, steps=5), group("gpu", "eager", T4, steps=5))
    assert few.reason == "paper-cpu has no cell that measures test_accuracy"
    made = judged(ratio({"strategy": "eager", "devices": 1}, {"strategy": "ddp"}), EAGER, gpu)
    assert made.verdict == UNTESTED


def test_what_is_only_told():
    made = judged(
        ratio({"strategy": "ddp"}, {"strategy": "eager"}, "report", "test_accuracy"),
        EAGER,
        group("ddp", "ddp", CPU2, accuracy=0.4),
    )
    assert made.verdict == REPORTED
    assert made.comparisons[0].measured.mean == pytest.approx(0.5, rel=0.01)


def test_the_largest_part():
    test = {"test": {"metric": "operator_self_seconds", "op": "largest"}}
    vit = group("vit", "eager", T4, published={"model": "net", "hardware": "T4"})
    rows = [
        f"net,eager,,T4,1,1,,operator_self_seconds:aten::{name},{seconds},s"
        for name, seconds in (("mm", 1), ("copy_", 3))
    ]
    means = {
        ("net.vit", f"operator_self_seconds:aten::{name}"): seconds
        for name, seconds in (("mm", 2.0), ("copy_", 1.0))
    }
    (one,) = judged(test, vit, rows=rows, means=means).comparisons
    assert (one.verdict, one.published, one.measured) == (REPORTED, "aten::copy_", "aten::mm")
    made = judged(test, vit, rows=rows)
    assert (made.verdict, made.reason) == (UNTESTED, "no cell measures operator_self_seconds")
    assert judged(test, EAGER).verdict == UNTESTED


def test_a_claim_without_test_may_be_against_its_own_numbers():
    found = audit.Finding("recall is accuracy", "paper", "0.1 and 0.2", (2,))
    claim = {"finding": "recall is accuracy"}
    made = judged(claim, EAGER, findings=[found])
    assert made.verdict == FAILS
    assert "published numbers alone" in made.reason
    assert judged(claim, EAGER).verdict == UNTESTED
    other = audit.Finding("recall is accuracy", "another", "", (2,))
    assert judged(claim, EAGER, findings=[other]).verdict == UNTESTED


def test_one_comparison_that_is_against_it_is_enough():
    def two(model: str, seconds: float, **more) -> list[Group]:
        return [
            group("eager", "eager", CPU1, model=model),
            group("ddp", "ddp", CPU2, seconds, model=model, **more),
        ]

    good, level, bad = two("a", 60), two("b", 100), two("c", 160)
    lacking = two("d", 60, not_run="needs 2x A100")
    assert judged(FASTER, *good, *lacking).verdict == HOLDS
    assert judged(FASTER, *good, *level).verdict == UNDECIDED
    made = judged(FASTER, *good, *level, *bad, *lacking)
    assert made.verdict == FAILS
    assert made.reason == (
        "comparisons: holds 1, does not hold 1, undecided 1, cannot be tested here 1; on paper-cpu"
    )


# ---------------------------------------------------------------- the file


def every_claim() -> dict[str, dict]:
    return config.claims(FILE)


def test_every_claim_of_the_four_sources_gets_a_verdict():
    frame = pd.concat(map(tables.read_published, PUBLISHED))
    told = {"tolerance": {"relative": 0.05, "accuracy": 0.01}}
    sources = {claim["study"] for claim in every_claim().values()}
    assert sources <= set(frame["study"])
    trials = [
        Trial(f"{name}-cpu", told | {"published": name}, (EAGER, group("ddp", "ddp", CPU2)), {})
        for name in sources
    ]
    found = [f for path in PUBLISHED for f in audit.findings(audit.read(path), audit.Task())]
    made = {each.name: each for each in claims.judge(every_claim(), trials, frame, found)}
    assert len(made) == 21
    assert {each.verdict for each in made.values()} <= set(claims.VERDICTS)
    assert all(each.reason for each in made.values() if each.verdict == UNTESTED)
    # What published numbers alone contradict needs no cell.
    for name in ("laharsh-efficiency", "laharsh-epochs"):
        assert made[name].verdict == FAILS, name


def test_kamojis_accuracies_are_compared_between_its_gpu_and_its_cpu(monkeypatch):
    monkeypatch.chdir(ROOT)
    asked = {
        "studies": ["kamoji"],
        "deployment": "host",
        "available": {"cpu": 2, "cuda": {"T4": 1}},
    }
    plan = cells.plan(config.checked(config.load() | asked)).studies["kamoji"]
    groups = tuple(Group(each, ()) for each in plan["groups"])
    trial = Trial("kamoji", plan["study"], groups, {})
    frame = pd.concat(map(tables.read_published, PUBLISHED))
    made = {each.name: each for each in claims.judge(every_claim(), [trial], frame, [])}
    found = [
        (ratio.over.plan["model"], ratio.over.plan["variant"], ratio.under.plan["variant"])
        for each in made["kamoji-same-accuracy"].comparisons
        for ratio in each.ratios
    ]
    assert found == [("resnet50", "gpu", "cpu"), ("vit", "gpu", "cpu")]


def test_only_claims_of_the_reports_sources_are_judged():
    told = {"published": "kamoji", "tolerance": {"relative": 0.05, "accuracy": 0.01}}
    frame = tables.read_published(PUBLISHED[-1])
    made = claims.judge(every_claim(), [Trial("kamoji-cpu", told, (), {})], frame, [])
    assert {each.claim["study"] for each in made} == {"kamoji"}


def test_stated_ratios_are_those_of_the_published_values():
    frame = pd.concat(map(tables.read_published, PUBLISHED))
    times = frame[frame["metric"] == "train_seconds"]

    def seconds(**wanted) -> float:
        rows = times
        for column, value in wanted.items():
            rows = rows[rows[column] == value]
        (value,) = set(rows["value"])
        return value

    claim = every_claim()
    for name, strategy in (("horovod", "horovod"), ("gpipe", "gpipe")):
        for model, stated in claim[f"gorantla-{name}-speedup"]["published"].items():
            own = {"study": "gorantla2024", "model": model, "hardware": "A100"}
            found = seconds(strategy="eager", **own) / seconds(strategy=strategy, **own)
            assert stated == pytest.approx(found, abs=0.005), (name, model)
    for model, batches in claim["rangoju-two-devices"]["published"].items():
        for batch, stated in batches.items():
            own = {"study": "rangoju2025", "model": model, "batch_size": float(batch), "nodes": 1}
            found = seconds(devices_per_node=2, **own) / seconds(devices_per_node=1, **own)
            assert stated == pytest.approx(found, abs=0.0006), (model, batch)
    printed = frame[(frame["study"] == "laharsh") & (frame["metric"] == "speedup")]
    for label, entry in config.study("laharsh")["together"].items():
        told = entry["published"]["table"]
        rows = printed[printed["table"].isin([told] if isinstance(told, str) else told)]
        (found,) = rows[rows["model"] == "cnn+vit"]["value"]
        assert claim["laharsh-total-speedup"]["published"][label] == found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"verdict": "true"}, "unknown key 'verdict'"),
        (ratio({"devices": 2}, {"devices": 1}, "is"), "test.op: is is not one of"),
        ({"test": {"metric": "train_seconds", "op": ">"}}, "'value'"),
        ({"test": {"metric": "x", "op": "report"}}, "'numerator'"),
        ({"test": {"metric": "x", "op": "equal"}}, "'against'"),
        (ratio({"devices": 2}, {"devices": 1}, value="as published"), "value: "),
        (ratio({"devices": 2}, {"devices": 1}, value="published"), "'published'"),
        (ratio({"devcies": 2}, {"devices": 1}), "did you mean 'devices'"),
        (ratio({"devices": 2}, {"devices": 1}, "report", value=2), "value: does not belong"),
        ({"published": {"net": {"all": 2.0}}}, "published.net"),
    ],
)
def test_a_typo_is_told_with_its_place(tmp_path, change, words):
    path = tmp_path / "claims.yaml"
    claim = {"study": "paper", "claim": "It is so."}
    path.write_text(json.dumps({"mine": claim | change}))
    with pytest.raises(ParbenchError) as caught:
        config.claims(path)
    assert str(caught.value).startswith(f"{path}: mine")
    assert words in str(caught.value)


# ---------------------------------------------------------------- the report


def make_report(folder: Path, claim: dict, groups=None, **study) -> dict:
    """report.json of the constructed study with one claim about it."""
    paths = constructed.write_study(folder, constructed.usual_study(**study), groups)
    text = {"study": "constructed", "claim": "Two are faster than one.", **claim}
    (folder / "claims.yaml").write_text(json.dumps({"two-faster": text}))
    rows = [
        "constructed,Table 1,resnet18,eager,,X,1,1,,test_accuracy,0.8304,fraction",
        "constructed,Table 1,resnet18,ddp,,X,1,2,,test_accuracy,0.8304,fraction",
        "another,Table 1,resnet18,ddp,,X,1,2,,speedup,3,x",
    ]
    (folder / "published.csv").write_text("\n".join([HEAD, *rows]) + "\n")
    out = folder / "results" / "report.json"
    words = ["--plan", paths["plan"], "--table", paths["table"], "--cells", paths["cells"]]
    words += ["--claims", folder / "claims.yaml", "--published", folder / "published.csv"]
    report.main(["collect", *map(str, words), "--out", str(out)])
    return json.loads(out.read_text())


def texts(table: dict) -> list[list[str]]:
    return [[cell["text"] for cell in row] for row in table["rows"]]


def test_the_first_page_is_the_verdicts_on_claims(tmp_path):
    data = make_report(tmp_path, FASTER | {"published": 1.5})
    html, pdf = render(tmp_path, tmp_path / "results" / "report.json")
    made = data["claims"]
    row = texts(made["table"])[0]
    assert row[:3] == [
        "constructed",
        "Two are faster than one.",
        "resnet18 1.50, vgg16 1.50, swin 1.50",
    ]
    assert re.fullmatch(r"resnet18 1\.6\d+ ± 0\.\d+ \(3\), vgg16 1\.6.*", row[3])
    assert row[4] == HOLDS
    swin = next(row for row in texts(made["detail"]) if row[2] == "swin: eager over ddp")
    assert "out of memory" in swin[5]
    assert swin[-1] == UNTESTED
    notes = [note["text"] for note in made["table"]["notes"]]
    assert notes == ["comparisons: holds 2, cannot be tested here 1; on constructed (scaled)"]
    # Of this report's sources alone.
    (found,) = texts(made["audit"])
    assert found[:2] == ["constructed", "equal to the last digit"]
    assert found[3] == "published.csv, lines 2, 3"
    first = squeezed(pdf_text(pdf)[:4000])
    for words in ("What the sources claim", row[1], row[3], "holds"):
        assert squeezed(words) in first
    assert html.index('id="t-claims"') < html.index('id="summary"')
    assert 'href="#t-claims-each-h"' in html
    assert 'id="t-claims-each-h"' in html
    assert squeezed("What the published numbers alone contradict") in squeezed(pdf_text(pdf))


def pair(seeds=(0, 1, 2)) -> list[constructed.Group]:
    return [
        constructed.Group("net", "eager", CPU1, 12, seeds=seeds),
        constructed.Group("net", "ddp", CPU2, 8, seeds=seeds),
    ]


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_few_seeds_are_told_as_their_range(tmp_path, seeds):
    (row,) = texts(make_report(tmp_path, FASTER, pair(seeds))["claims"]["detail"])
    assert row[-1] == UNDECIDED
    assert row[5] == f"1.50 ({len(seeds)})"
    assert (row[6] == "–") == (len(seeds) == 1)


def test_markup_in_a_claim_is_shown_as_text(tmp_path):
    make_report(tmp_path, {"claim": HOSTILE, "note": HOSTILE, **FASTER}, pair())
    html, pdf = render(tmp_path, tmp_path / "results" / "report.json")
    page = Page(html)
    assert [tag for tag, _ in page.elements].count("script") == 1
    assert squeezed("".join(page.text)).count(squeezed(HOSTILE)) == 2
    assert squeezed(pdf_text(pdf)).count(squeezed(HOSTILE)) == 2


def test_without_a_source_nothing_is_claimed(tmp_path):
    data = make_report(tmp_path, FASTER, pair(), published=None, citation=None)
    assert data["claims"] is None
    assert "Claims" not in layout.render_html(data)


def test_a_source_without_claims_is_audited_alone(tmp_path):
    data = make_report(tmp_path, {"study": "another", **FASTER}, pair())
    assert data["claims"]["table"]["rows"] == []
    assert len(data["claims"]["audit"]["rows"]) == 1
