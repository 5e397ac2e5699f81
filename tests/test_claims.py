"""Claims: what is compared, what a ratio says, what a claim's verdict is, and how it is shown."""

from __future__ import annotations

import io
import json
import math
import re
import tempfile
from pathlib import Path

import pypdf
import pytest

import constructed
from constructed import CPU1, CPU2, make_hardware
from parbench.plan.published import Claim
from parbench.plan.published import rows as rows_of
from parbench.verdicts import claims
from parbench.verdicts.arithmetic import Contradiction, Sure
from parbench.verdicts.comparisons import Rebuilt
from parbench.verdicts.groups import Group, groups_of
from parbench.verdicts.pairs import Compared, Restart, restart
from parbench.verdicts.published import PublishedSource
from parbench.verdicts.words import (
    BELOW,
    FAILS,
    HOLDS,
    NOT_COMPARABLE,
    REPORTED,
    UNDECIDED,
    UNTESTED,
)
from shown import collect, pdf_text, render, squeezed

T4 = make_hardware("cuda", 1, gpu_model="T4", name="t4x1")
HEAD = (
    "study,table,model,strategy,options,hardware,nodes,devices_per_node,batch_size,metric,value,"
    "unit"
)


# ---------------------------------------------------------------- groups


def group(
    variant: str,
    hardware: dict,
    seconds=100.0,
    *,
    model="net",
    accuracy=0.8,
    images=1000,
    **changes,
) -> Group:
    """Return a group whose seeds differ a little in memory (``seconds`` MiB) and accuracy.

    ``accuracy`` is that of all seeds, or of each; ``changes`` go to `constructed.Group`.
    """
    seeds = changes.setdefault("seeds", (0, 1, 2, 3))
    changes["told"] = {"published": None} | changes.pop("told", {})
    # Factors that differ between groups, so that no interval is a point.
    factors = [1 + 0.001 * math.sin(len(variant) + 2 * seed) for seed in seeds]
    memory = [{"processes": [{"rank": 0, "mib": seconds * f}], "devices": []} for f in factors]
    scores = [accuracy * f for f in factors] if isinstance(accuracy, float) else accuracy
    measured = {"train_seconds": [seconds] * len(seeds), "test_accuracy": scores}
    measured |= {"confusion": [[[images]]] * len(seeds), "peak_memory_mib": memory}
    own = constructed.Group(model, variant, hardware, measured=measured, **changes)
    runs = {own.cell_id(seed): constructed.metrics_json(own, seed) for seed in seeds}
    plan = constructed.plan_json(constructed.usual_study(), [own])
    return groups_of(plan, runs)[own.id]


def judged(claim: dict, *groups: Group, rows=(), found=()):
    """Return the verdict on one claim about ``paper``."""
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write("\n".join([HEAD, *(f"paper,Table 1,{row}" for row in rows)]))
        file.flush()
        source = PublishedSource("paper", rows_of(file.name))
    tolerance = {"relative": 0.05, "accuracy": 0.01}
    study = Rebuilt("paper-cpu", tolerance, source, groups, {})
    claim = Claim(study="paper", claim="It is so.", **claim)
    return claims.judge({"a": claim}, [study], found)[0]


def ratio(over: dict, under: dict, op=">", metric="train_seconds", **more) -> dict:
    test = {"metric": metric, "numerator": over, "denominator": under, "op": op}
    return {"test": test | ({"value": 1} if op in (">", "<") else {}) | more}


NO_PAIR = "no pair (`pairs`) compares them in turns"
FASTER = ratio({"strategy": "eager"}, {"strategy": "ddp"})
SMALLER = ratio({"strategy": "eager"}, {"strategy": "ddp"}, metric="peak_memory_process_mib")
EAGER = group("eager", CPU1)
MEMORY = "peak_memory_process_mib"


@pytest.mark.parametrize(
    ("op", "mib", "verdict"),
    [
        (">", 60, HOLDS),
        ("<", 100, UNDECIDED),
        ("within_margin", 102, HOLDS),
        ("within_margin", 120, FAILS),
        ("report", 120, REPORTED),
    ],
)
def test_what_no_clock_measures_is_a_ratio_seed_by_seed(op, mib, verdict):
    claim = ratio({"strategy": "eager"}, {"strategy": "ddp"}, op, MEMORY)
    made = judged(claim, EAGER, group("ddp", CPU2, mib))
    assert made.verdict == verdict
    (one,) = made.comparisons
    assert one.measured.mean == pytest.approx(100 / mib, rel=0.01)


def scores(*accuracies, op="within_margin", images=1000, **more):
    """Return the verdict on ddp's ``accuracies`` against eager's, which are all 0.8."""
    claim = ratio({"strategy": "ddp"}, {"strategy": "eager"}, op, "test_accuracy", **more)
    seeds = {"seeds": range(len(accuracies)), "images": images}
    eager = group("eager", CPU1, accuracy=[0.8] * len(accuracies), **seeds)
    return judged(claim, eager, group("ddp", CPU2, accuracy=accuracies, **seeds))


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ({"accuracies": (0.801, 0.8, 0.799, 0.8)}, HOLDS),
        ({"accuracies": (0.851, 0.85, 0.849, 0.85)}, FAILS),
        ({"accuracies": (0.84, 0.8, 0.8, 0.79)}, UNDECIDED),
        ({"accuracies": (0.84, 0.8, 0.8, 0.79), "margin": 0.2}, HOLDS),
        ({"accuracies": (0.8,) * 4, "margin": 0.001}, HOLDS),  # three images of 1,000
        # The resolution is one image, however alike the seeds are.
        ({"accuracies": (0.81,) * 4, "op": ">", "value": 0}, HOLDS),
        ({"accuracies": (0.81,) * 4, "op": ">", "value": 0, "images": 100}, UNDECIDED),
        ({"accuracies": (0.851, 0.85, 0.849, 0.85), "op": ">", "value": 0.1}, FAILS),
        ({"accuracies": (0.1, 0.7, 0.9), "op": "report"}, REPORTED),
    ],
)
def test_scores_are_compared_by_their_difference(given, verdict):
    made = scores(*given.pop("accuracies"), **given)
    assert made.verdict == verdict


@pytest.mark.parametrize(("recall", "verdict"), [(1, HOLDS), (1.01, FAILS)])
def test_a_metric_that_equals_another_in_every_run(recall, verdict):
    own = group("eager", CPU1, told={"published": {"model": "net", "strategy": "eager"}})
    for run in own.runs:
        run["test_recall_macro"] = recall * run["test_accuracy"]
    scores = ("test_accuracy", "test_recall_macro")
    rows = [f"net,eager,,X,1,1,,{name},0.15,fraction" for name in scores]
    test = {"metric": "test_recall_macro", "against": "test_accuracy", "op": "equal"}
    assert judged({"test": test}, own, rows=rows).verdict == verdict


def test_what_is_lacking_is_said():
    lacking = group("ddp", CPU2, not_run="needs 2x A100")
    made = judged(FASTER, EAGER, lacking)
    assert (made.verdict, made.reason) == (UNTESTED, "needs 2x A100")
    assert judged(FASTER, EAGER).reason == "paper-cpu has no cell with strategy ddp"
    other = group("ddp", CPU2, training={"learning_rate": 0.5})
    assert "no two cells that differ in this alone" in judged(FASTER, EAGER, other).reason
    alone = judged(FASTER, EAGER, group("ddp", CPU2))
    assert (alone.verdict, alone.reason) == (UNTESTED, NO_PAIR)
    failed = group("ddp", CPU2, status="out_of_memory")
    assert "out of memory" in judged(SMALLER, EAGER, failed).reason
    total = ratio({"strategy": "eager"}, {"strategy": "ddp"}, metric="total_seconds")
    made = judged(total, EAGER, group("ddp", CPU2))
    assert made.reason == "paper-cpu has no cell that measures total_seconds"
    unknown = ratio({"strategy": "eager"}, {"strategy": "ddp"}, metric="wishes")
    made = judged(unknown, EAGER, group("ddp", CPU2))
    assert (made.verdict, made.reason) == (UNTESTED, "no cell measures wishes")


def test_the_sources_configuration_counts_and_not_the_variants_beside_it():
    own = {"told": {"published": {"model": "net", "strategy": "ddp"}}}
    phases = {"training": {"profile": "phases"}}
    groups = [
        EAGER,
        group("ddp", CPU2, 60, **own),
        group("ddp-bucket", CPU2, 160, options={"bucket": 1}),
        group("ddp-phases", CPU2, 160, **phases, **own),
        group("eager-phases", CPU1, 160, **phases),
    ]
    made = judged(ratio({"devices": 2}, {"devices": 1}, "<", MEMORY), *groups)
    assert [each.ratios[0].over.variant for each in made.comparisons] == ["ddp"]
    assert made.verdict == HOLDS


def test_devices_of_two_kinds_are_compared_only_where_named():
    gpu = group("eager-gpu", T4, 10)
    same = ratio({"device": "gpu"}, {"device": "cpu"}, "within_margin", "test_accuracy")
    assert len(judged(same, EAGER, gpu).comparisons[0].ratios) == 1
    threads = group("eager-threads", {**CPU1, "threads": 2, "name": "cpu1t2"})
    assert len(judged(same, threads, gpu).comparisons[0].ratios) == 1
    steps = {"training": {"steps": 5}}
    few = judged(same, group("eager-cpu", CPU1, **steps), group("eager-gpu", T4, **steps))
    assert few.reason == "paper-cpu has no cell that measures test_accuracy"
    made = judged(ratio({"strategy": "eager", "devices": 1}, {"strategy": "ddp"}), EAGER, gpu)
    assert made.verdict == UNTESTED


@pytest.mark.parametrize(
    ("sure", "study", "verdict"),
    [
        (Sure.CERTAIN, "paper", FAILS),
        (Sure.WEAK, "paper", UNTESTED),
        (Sure.CERTAIN, "another", UNTESTED),
    ],
)
def test_a_claim_without_test_may_be_against_its_own_numbers(sure, study, verdict):
    found = Contradiction("recall is accuracy", sure, study, "0.1 and 0.2", (2,))
    assert judged({"finding": "recall is accuracy"}, EAGER, found=[found]).verdict == verdict


def test_one_comparison_that_is_against_it_is_enough():
    def two(model: str, seconds: float, **more) -> list[Group]:
        return [
            group("eager", CPU1, model=model),
            group("ddp", CPU2, seconds, model=model, **more),
        ]

    good, level, bad = two("a", 60), two("b", 100), two("c", 160)
    lacking = two("d", 60, not_run="needs 2x A100")
    assert judged(SMALLER, *good, *lacking).verdict == HOLDS
    assert judged(SMALLER, *good, *level).verdict == UNDECIDED
    made = judged(SMALLER, *good, *level, *bad, *lacking)
    assert made.verdict == FAILS
    assert made.reason.startswith(
        "comparisons: holds 1, does not hold 1, undecided 1, cannot be tested here 1; on paper-cpu"
    )


# ---------------------------------------------------------------- pairs that took turns


def turns(own: Group, baseline: Group, *ratios: float, bound=math.inf) -> Group:
    """Return ``own``, measured to be ``ratios`` times as fast as ``baseline``, by restart."""
    made = [
        Restart(n, math.log(ratio), 0.0, (), 4, 0, bound, 20.0) for n, ratio in enumerate(ratios)
    ]
    compared = Compared(tuple(made), (), tuple(f"{own.id}.r{each.number}" for each in made))
    return own.model_copy(update={"pairs": {**own.pairs, baseline.id: compared}})


DDP = group("ddp", CPU2, 60)
FAST, SLOW = (1.49, 1.51, 1.5, 1.5), (0.79, 0.81, 0.8, 0.8)


@pytest.mark.parametrize(
    ("claim", "ratios", "verdict"),
    [
        (FASTER, FAST, HOLDS),
        (FASTER, SLOW, FAILS),  # regardless of whole trainings
        (FASTER, (0.9, 1.1, 1.3, 0.8), UNDECIDED),
        (FASTER, FAST[:3], UNDECIDED),
        (ratio({"strategy": "ddp"}, {"strategy": "eager"}, "<"), FAST, HOLDS),
        (ratio({"strategy": "ddp"}, {"strategy": "eager"}, "within_margin"), FAST, FAILS),
        (ratio({"strategy": "eager"}, {"strategy": "ddp"}, value=1.6), FAST, FAILS),
    ],
)
def test_pairs_decide_by_themselves(claim, ratios, verdict):
    made = judged(claim, EAGER, turns(DDP, EAGER, *ratios))
    assert made.verdict == verdict
    assert made.comparisons[0].measured.seeds == len(ratios)


def test_predicting_is_told_by_pairs_of_predicting():
    claim = ratio({"strategy": "eager"}, {"strategy": "ddp"}, metric="inference_seconds")
    trained = turns(DDP, EAGER, *FAST)
    assert judged(claim, EAGER, trained).reason == NO_PAIR
    predicted = DDP.model_copy(update={"predicting": turns(DDP, EAGER, *SLOW).pairs})
    assert judged(claim, EAGER, predicted).verdict == FAILS


# ---------------------------------------------------------------- where the published number lies


def test_where_a_published_number_lies_is_told_where_it_can_be():
    def beside(claim, ddp):
        (one,) = judged(claim, EAGER, ddp).comparisons
        return one

    fast, stated = turns(DDP, EAGER, *FAST), FASTER | {"published": 1.5}
    assert beside(FASTER, fast).position == ""
    assert beside(stated, turns(DDP, EAGER, *FAST[:3])).position == ""
    assert beside(FASTER | {"published": 0.6}, fast).position == BELOW
    other = beside(stated, fast.model_copy(update={"differs": "it repeats"}))
    assert (other.position, "it repeats" in other.says) == (NOT_COMPARABLE, True)


def test_a_study_with_pairs_compares_no_other_times():
    other = group("ddp", CPU2, 60, model="other")
    made = judged(
        FASTER, EAGER, turns(DDP, EAGER, *FAST), EAGER.model_copy(update={"id": "x"}), other
    )
    assert [each.ratios[0].over.id for each in made.comparisons] == [EAGER.id]
    alone = turns(group("ddp-b", CPU2, 60, model="c"), EAGER, *FAST)
    assert "no pair" in judged(FASTER, EAGER, DDP, alone).reason


def test_where_equal_sides_differ_pairs_tell_nothing():
    biased = turns(turns(DDP, EAGER, *FAST), DDP, 1.1, 1.101, 1.1, 1.101)
    made = judged(FASTER | {"published": 1.5}, EAGER, biased)
    assert (made.verdict, made.comparisons[0].position) == (UNTESTED, "")
    assert "equal sides differ on 2 CPU cores" in made.reason
    equal = turns(turns(DDP, EAGER, *FAST), DDP, 1.001, 0.999, 1.001, 0.999)
    assert judged(FASTER, EAGER, equal).verdict == HOLDS


def test_a_restart_is_what_its_undisturbed_pairs_say():
    """Two models one after the other, relative to both at once."""
    seconds = [(1.0, 0.6, 0.9), (1.0, 0.6, 0.9), (1.0, 9.0, 9.0)]
    slices = [
        {"pair": pair, "side": side, "samples": 10, "seconds": row[side], "disturbed": pair == 2}
        for pair, row in enumerate(seconds)
        for side in range(3)
    ]
    cell = {"seed": 5, "variants": 1, "sides": [{"training": {"epochs": 2}}] * 3}
    ends = {"started": "2026-11-22T10:00:00Z", "finished": "2026-11-22T10:00:30Z"}
    found = restart({"cell": cell, "slices": slices, **ends})
    assert math.exp(found.value) == pytest.approx(1.5)
    assert math.exp(found.of_all) > 1.5
    assert (found.number, found.pairs, found.disturbed, found.seconds) == (5, 3, 1, 30)
    assert found.bound == pytest.approx(1.5 / 0.9)


# ---------------------------------------------------------------- the report


def make_report(folder: Path, claim: dict, groups=None, **study) -> dict:
    """Return report.json of the constructed study with one claim about it."""
    paths = constructed.write_study(folder, constructed.usual_study(**study), groups)
    text = {"study": "constructed", "claim": "Two are faster than one.", **claim}
    (folder / "claims.yaml").write_text(json.dumps({"two-faster": text}))
    rows = [
        "constructed,Table 1,resnet18,eager,,X,1,1,,test_accuracy,0.8304,fraction",
        "constructed,Table 1,resnet18,ddp,,X,1,2,,test_accuracy,0.8304,fraction",
        "another,Table 1,resnet18,ddp,,X,1,2,,speedup,3,x",
    ]
    (folder / "published.csv").write_text("\n".join([HEAD, *rows]) + "\n")
    published = [folder / "published.csv"]
    return collect(paths, claimed=folder / "claims.yaml", published=published)


def test_the_first_page_is_the_verdicts_on_claims(tmp_path):
    data = make_report(tmp_path, FASTER | {"published": 1.5})
    html, pdf = render(data)
    made = data["claims"]
    (_, figure) = made["figure"]["parts"]  # after the key
    assert "Claim 1, holds, firm: Two are faster than one." in figure["alt"]
    reproduced = r"resnet18: holds, 1\.6\d \(1\.\d+ to 1\.\d+\)"
    assert re.search(f"{reproduced}, published 1.50", figure["alt"])
    for text in ("1  Two are faster than", "resnet18", "resnet50", "✓ holds, firm"):
        assert f">{text}" in figure["svg"]
    assert "restart 0: at step 3" in [note["text"] for note in made["detail"]["notes"]]
    # Only this report's sources are audited.
    (found,) = made["audit"]["rows"]
    assert [cell["text"] for cell in found][:2] == ["constructed", "equal to the last digit"]
    first = squeezed(pypdf.PdfReader(io.BytesIO(pdf)).pages[0].extract_text())
    for words in (made["sentence"], made["figure"]["title"], "Two are faster than one.", "holds"):
        assert squeezed(words) in first
    assert made["sentence"].startswith("1 of 1 claim can be tested here: 1 holds.")
    parts = ("f-claims", "t-claims-each", "summary")
    assert sorted(parts, key=lambda part: html.index(f'id="{part}"')) == list(parts)
    assert squeezed("What the published numbers alone contradict") in squeezed(pdf_text(pdf))


def test_without_testable_claims_there_is_no_figure_and_without_a_source_nothing(tmp_path):
    alone = [constructed.Group("net", "eager", CPU1)]
    data = make_report(tmp_path, FASTER, alone)
    assert data["claims"]["figure"]["parts"] == []
    _, pdf = render(data)
    assert squeezed("0 of 1 claim") in squeezed(pdf_text(pdf))
    data = make_report(tmp_path, FASTER, alone, published=None, citation=None)
    assert data["claims"] is None
