"""Claims: what is compared, what a ratio shows, what a claim's verdict is, and how it is shown."""

from __future__ import annotations

import collections
import functools
import io
import json
import math
import re
import shutil
import tempfile
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree

import pypdf
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape

import constructed
from constructed import CPU1, CPU2, make_cell, make_hardware, make_pair, make_pair_metrics
from parbench import by_schema
from parbench.__main__ import main
from parbench.audit.arithmetic import Certainty, Contradiction
from parbench.errors import ParbenchError
from parbench.plan.published import Claim
from parbench.plan.published import rows as rows_of
from parbench.plan.study_plan import About, StudyPlan
from parbench.reporting import claim_headline
from parbench.runs import records
from parbench.verdicts import claims, claims_json, terms
from parbench.verdicts.comparisons import ClaimBasis
from parbench.verdicts.groups import Group, Kind, Runs, groups_of
from parbench.verdicts.matching import PublishedSource
from parbench.verdicts.pairs import Compared, Restart, restart
from shown import collect, pdf_text, render, squeezed
from workspace import ROOT

T4 = make_hardware("cuda", 1, gpu_model="T4", name="t4x1")
HEAD = (
    "study,table,model,strategy,options,hardware,nodes,devices_per_node,batch_size,metric,value,"
    "unit"
)


ABOUT = About.model_validate(constructed.usual_study("paper"))


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
    if statuses := changes.pop("status_by_seed", None):
        measured["status"] = statuses
    own = constructed.Group(model, variant, hardware, measured=measured, **changes)
    runs = {
        own.cell_id(seed): records.of(constructed.metrics_json(own, seed), "a run")
        for seed in seeds
    }
    plan = constructed.plan_json(constructed.usual_study(), [own])
    return groups_of(StudyPlan.of(plan, "plan"), Runs.of(runs))[own.id]


def judged(claim: dict, *groups: Group, rows=(), found=(), means=None):
    """Return the verdict on one claim about ``paper``."""
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write("\n".join([HEAD, *(f"paper,Table 1,{row}" for row in rows)]))
        file.flush()
        source = PublishedSource("paper", rows_of(file.name))
    study = ClaimBasis("paper-cpu", ABOUT, source, groups, means or {})
    claim = Claim(study="paper", claim="It is so.", **claim)
    return claims.judge({"a": claim}, [study], found)[0]


def ratio(over: dict, under: dict, op=">", metric="train_seconds", **more) -> dict:
    return {"test": {"metric": metric, "numerator": over, "denominator": under, "op": op} | more}


def answers(made) -> list[tuple[str, str]]:
    """Return direction and size of each comparison of a judged claim."""
    return [(each.verdict, each.size) for each in made.comparisons]


NO_PAIR = "no pair (`pairs`) compares them in turns"
FASTER = ratio({"strategy": "eager"}, {"strategy": "ddp"})
SMALLER = ratio({"strategy": "eager"}, {"strategy": "ddp"}, metric="peak_memory_process_mib")
EAGER = group("eager", CPU1)
MEMORY = "peak_memory_process_mib"


@pytest.mark.parametrize(
    ("op", "mib", "direction", "verdict"),
    [
        (">", 60, terms.AS_CLAIMED, terms.HOLDS),
        ("<", 60, terms.OPPOSITE, terms.FAILS),
        ("<", 100, terms.NO_DIFFERENCE, terms.FAILS),
        ("same", 102, terms.AS_CLAIMED, terms.HOLDS),
        ("same", 120, terms.DIFFERENT, terms.FAILS),
        ("report", 120, terms.REPORTED, terms.REPORTED),
    ],
)
def test_what_no_clock_measures_is_a_ratio_seed_by_seed(op, mib, direction, verdict):
    claim = ratio({"strategy": "eager"}, {"strategy": "ddp"}, op, MEMORY)
    made = judged(claim, EAGER, group("ddp", CPU2, mib))
    assert (made.verdict, answers(made)) == (verdict, [(direction, "")])
    (one,) = made.comparisons
    assert one.measured.mean == pytest.approx(100 / mib, rel=0.01)


def scores(*accuracies, op="same", images=1000, **more):
    """Return the verdict on ddp's ``accuracies`` against eager's, which are all 0.8."""
    claim = ratio({"strategy": "ddp"}, {"strategy": "eager"}, op, "test_accuracy", **more)
    seeds = {"seeds": range(len(accuracies)), "images": images}
    eager = group("eager", CPU1, accuracy=[0.8] * len(accuracies), **seeds)
    return judged(claim, eager, group("ddp", CPU2, accuracy=accuracies, **seeds))


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ({"accuracies": (0.801, 0.8, 0.799, 0.8)}, terms.AS_CLAIMED),
        ({"accuracies": (0.851, 0.85, 0.849, 0.85)}, terms.DIFFERENT),
        ({"accuracies": (0.84, 0.8, 0.8, 0.79)}, terms.UNDECIDED),
        ({"accuracies": (0.84, 0.8, 0.8, 0.79), "margin": 0.2}, terms.AS_CLAIMED),
        ({"accuracies": (0.8,) * 4, "margin": 0.001}, terms.AS_CLAIMED),  # three images of 1,000
        # The resolution is one image, however alike the seeds are.
        ({"accuracies": (0.82,) * 4, "op": ">"}, terms.AS_CLAIMED),
        ({"accuracies": (0.82,) * 4, "op": ">", "images": 100}, terms.UNDECIDED),
        ({"accuracies": (0.801, 0.8, 0.799, 0.8), "op": ">"}, terms.NO_DIFFERENCE),
        ({"accuracies": (0.1, 0.7, 0.9), "op": "report"}, terms.REPORTED),
    ],
)
def test_scores_are_compared_by_their_difference(given, verdict):
    made = scores(*given.pop("accuracies"), **given)
    assert answers(made) == [(verdict, "")]


def test_what_is_lacking_is_said():
    lacking = group("ddp", CPU2, not_run="needs 2x A100")
    made = judged(FASTER, EAGER, lacking)
    assert (made.verdict, made.reason) == (terms.NOT_TESTED, "needs 2x A100")
    for groups in ((EAGER,), (EAGER, group("ddp", CPU2, training={"learning_rate": 0.5}))):
        made = judged(FASTER, *groups)
        assert (made.verdict, made.reason) == (terms.NOT_TESTED, "no cells")
    assert made.comparisons[0].reasons == ("paper-cpu has no two cells that differ only in this",)
    alone = judged(FASTER, EAGER, group("ddp", CPU2))
    assert (alone.verdict, alone.reason) == (terms.NOT_TESTED, terms.NO_PAIR)
    derived = ratio({"strategy": "eager"}, {"strategy": "ddp"}, metric="speedup")
    (one,) = judged(derived, EAGER, group("ddp", CPU2)).comparisons
    assert one.reasons == (
        "no cell measures speedup, which compares two cells; name what each side has, such as "
        "train_seconds, total_seconds, epoch_seconds, samples_per_second",
    )
    untested = judged({"needs": "a meter of what is sent"}, EAGER)
    assert untested.sentence_with_reason == "not tested here: needs a meter of what is sent"


@pytest.mark.parametrize("failed", [1, 4])
def test_a_side_that_failed_in_any_seed_is_not_measured(failed):
    status = ["out_of_memory"] * failed + ["ok"] * (4 - failed)
    ddp = group("ddp", CPU2, 60, status_by_seed=status)
    made = judged(SMALLER, EAGER, ddp)
    assert made.verdict == terms.NOT_TESTED
    assert made.reason == f"failed here: out of memory in {failed} of 4 seeds of ddp"


def test_a_model_that_failed_does_not_drop_out_of_a_claim_that_names_none():
    failed = group("ddp", CPU2, 60, model="b", status="out_of_memory")
    groups = (EAGER, group("ddp", CPU2, 60), group("eager", CPU1, model="b"), failed)
    made = judged(SMALLER, *groups)
    failure = "failed here: out of memory in 4 of 4 seeds of ddp"
    assert made.sentence == f"holds where tested (1 of 2 comparisons: net; others: {failure} 1)"


def test_the_sources_configuration_counts_and_not_the_variants_beside_it():
    own = {"told": {"published": {"model": "net", "strategy": "ddp"}}}
    phases = {"training": {"profile": "phases"}}
    groups = [
        EAGER,
        group("ddp", CPU2, 60, **own),
        group("ddp-bucket", CPU2, 160, options={"bucket_cap_mb": 1}),
        group("ddp-phases", CPU2, 160, **phases, **own),
        group("eager-phases", CPU1, 160, **phases),
    ]
    claim = ratio({"devices": 2}, {"devices": 1}, "<", MEMORY)
    made = judged(claim, *groups)
    assert [each.ratios[0].over.variant for each in made.comparisons] == ["ddp"]
    assert made.verdict == terms.HOLDS
    # And nothing stands in for it where it was not run.
    groups[1] = group("ddp", CPU2, 60, not_run="needs 2x A100", **own)
    made = judged(claim, *groups)
    assert [each.ratios[0].over.variant for each in made.comparisons] == ["ddp"]
    assert (made.verdict, made.reason) == (terms.NOT_TESTED, "needs 2x A100")


def test_options_alone_are_compared_on_the_same_devices():
    hooks = [{"options": {"hook": each}} for each in ("none", "fp16")]
    here = group("ddp", CPU2, 60), group("ddp-hook", CPU2, 30, options={"hook": "fp16"})
    wider = group("ddp-4", make_hardware("cpu", 4, name="cpu4"), 90)
    for about in ({}, {"strategy": "ddp"}):
        sides = [side | about for side in hooks]
        made = judged(ratio(*sides, ">", MEMORY), *here, wider)
        assert [each.ratios[0].over.variant for each in made.comparisons] == ["ddp"]


def test_an_option_may_be_named_by_the_default_that_cells_leave_out():
    hook = group("ddp-hook", CPU2, 60, options={"hook": "fp16"})
    claim = ratio({"options": {"hook": "none"}}, {"options": {"hook": "fp16"}}, ">", MEMORY)
    made = judged(claim, group("ddp", CPU2), hook)
    assert made.verdict == terms.HOLDS


def test_devices_of_two_kinds_are_compared_only_where_named():
    tf32 = {"tf32": {"convolutions": False, "matmul": False}}  # which processors have not
    gpu = group("eager-gpu", T4, 10, training=tf32)
    assert EAGER.training.tf32 != gpu.training.tf32
    same = ratio({"device": "gpu"}, {"device": "cpu"}, "same", "test_accuracy")
    assert len(judged(same, EAGER, gpu).comparisons[0].ratios) == 1
    threads = group("eager-threads", {**CPU1, "threads": 2, "name": "cpu1t2"})
    assert len(judged(same, threads, gpu).comparisons[0].ratios) == 1
    cores = ratio({"cores": 1}, {"cores": 2}, "same", "test_accuracy")
    assert len(judged(cores, EAGER, threads, gpu).comparisons[0].ratios) == 1
    models = ratio({"gpu": "T4"}, {"device": "cpu"}, "same", "test_accuracy")
    assert len(judged(models, EAGER, gpu).comparisons[0].ratios) == 1
    a100 = group("eager-a100", make_hardware("cuda", 1, gpu_model="A100", name="a100x1"))
    cards = ratio({"gpu": "T4"}, {"gpu": "A100"}, "same", "test_accuracy")
    assert judged(cards, gpu, a100).verdict == terms.NOT_TESTED  # one with TF32, one without
    steps = {"training": {"steps": 5}}
    few = judged(same, group("eager-cpu", CPU1, **steps), group("eager-gpu", T4, **steps))
    assert few.comparisons[0].reasons == ("paper-cpu has no cell that measures test_accuracy",)
    made = judged(ratio({"strategy": "eager", "devices": 1}, {"strategy": "ddp"}), EAGER, gpu)
    assert made.verdict == terms.NOT_TESTED


@pytest.mark.parametrize(
    ("check", "certainty", "study", "verdict"),
    [
        ("recall is accuracy", Certainty.CERTAIN, "paper", terms.CONTRADICTED),
        ("recall is accuracy", Certainty.WEAK, "paper", terms.NOT_TESTED),
        ("recall is accuracy", Certainty.CERTAIN, "another", terms.NOT_TESTED),
        ("faster than its devices", Certainty.CERTAIN, "paper", terms.IMPOSSIBLE),
    ],
)
def test_a_claim_without_test_may_be_against_its_own_numbers(check, certainty, study, verdict):
    found = Contradiction(check, certainty, study, "0.1 and 0.2", (2,))
    assert judged({"finding": check}, EAGER, found=[found]).verdict == verdict


# ---------------------------------------------------------------- parts


def two(model: str, seconds: float, **more) -> list[Group]:
    """Return eager training of a model, and ddp that takes ``seconds`` MiB for 100."""
    return [
        group("eager", CPU1, model=model),
        group("ddp", CPU2, seconds, model=model, **more),
    ]


def parted(*parts: dict) -> dict:
    return SMALLER | {"parts": [{"about": {"model": part.pop("model")}, **part} for part in parts]}


GOOD, LEVEL, BAD = two("a", 60), two("b", 100), two("c", 160)
OPEN = two("f", 60, seeds=(0, 1))
LACKING = two("d", 60, not_run="needs 2x A100")


@pytest.mark.parametrize(
    ("models", "sentence"),
    [
        ("a", "holds (1 comparison: a)"),
        ("ad", "holds where tested (1 of 2 parts: a; others: needs 2x A100 1)"),
        ("ac", "holds in part (1 as claimed, 1 opposite of 2 parts, 2 models)"),
        (
            "acd",
            "holds in part (1 as claimed, 1 opposite of 3 parts, 2 models; "
            "others: needs 2x A100 1)",
        ),
        ("bc", "does not hold (2 comparisons of 2 models)"),
        ("cd", "does not hold where tested (1 of 2 parts: c; others: needs 2x A100 1)"),
        ("d", "not tested here (needs 2x A100 1)"),
        ("af", "undecided (1 as claimed, 1 undecided of 2 parts, 2 models)"),
        ("f", "undecided (1 comparison: f)"),
        ("fd", "undecided (1 of 2 parts: f; others: needs 2x A100 1)"),
        ("ae", "holds where tested (1 of 2 parts: a; others: no cells 1)"),
    ],
)
def test_a_claim_is_what_its_parts_say_with_their_coverage(models, sentence):
    claim = parted(*({"model": model} for model in models))
    made = judged(claim, *GOOD, *LEVEL, *BAD, *LACKING, *OPEN)
    assert made.sentence == sentence


def test_a_verdict_says_on_how_many_comparisons_of_which_models_it_rests():
    several = [*GOOD, group("eager", CPU1, model="a", training={"global_batch": 16})]
    several.append(group("ddp", CPU2, 60, model="a", training={"global_batch": 16}))
    assert judged(SMALLER, *several).sentence == "holds (2 comparisons: a)"
    several += two("b", 60)
    assert judged(SMALLER, *several).sentence == "holds (3 comparisons of 2 models)"
    across = ratio({"model": "a"}, {"model": "g"}, ">", MEMORY)
    made = judged(across, group("eager", CPU1, model="a"), group("eager", CPU1, 60, model="g"))
    assert made.sentence == "holds (1 comparison: a over g)"


def test_the_headline_counts_each_reason_of_an_untested_claim_once():
    eager, ddp = GOOD
    groups = (eager, ddp.model_copy(update={"differs": "it repeats"}), *LACKING)
    lacking = judged(parted({"model": "d"}, {"model": "d"}), *groups)
    told = "1 was not tested here: needs 2x A100 (1)."
    assert told in claim_headline.headline([lacking])
    mixed = judged(parted({"model": "a"}, {"model": "e"}, {"model": "e"}), *groups)
    of_parts = "(of its parts, 2 have no cells and 1 is not comparable)."
    assert f"1 was not tested here {of_parts}" in claim_headline.headline([mixed])
    told = "2 were not tested here: needs 2x A100 (1); 1 for several reasons "
    assert f"{told}{of_parts}" in claim_headline.headline([lacking, mixed])


@pytest.mark.parametrize(
    ("size", "word"),
    [
        (1.66, terms.AS_PUBLISHED),
        (2.5, terms.SMALLER),
        (1.2, terms.LARGER),
        ([1.6, 1.7], terms.AS_PUBLISHED),
        ([2.5, 3.0], terms.SMALLER),
        ([1.1, 1.2], terms.LARGER),
    ],
)
def test_size_is_an_answer_of_its_own(size, word):
    """Measured: 1.667."""
    made = judged(parted({"model": "a", "size": size}), *GOOD)
    assert answers(made) == [(terms.AS_CLAIMED, word)]
    holds = terms.HOLDS if word == terms.AS_PUBLISHED else terms.HOLDS_IN_DIRECTION
    assert made.verdict == holds
    # Of a ratio below 1, smaller is closer to 1, too.
    sizes = [1 / each for each in size] if isinstance(size, list) else 1 / size
    claim = ratio({"strategy": "ddp"}, {"strategy": "eager"}, "<", MEMORY, size=sizes)
    assert answers(judged(claim, *GOOD)) == [(terms.AS_CLAIMED, word)]


def test_groups_that_differ_from_the_source_decide_nothing():
    eager, ddp = GOOD
    made = judged(SMALLER, eager, ddp.model_copy(update={"differs": "it repeats"}))
    assert (made.verdict, made.reason) == (terms.NOT_TESTED, terms.NOT_COMPARABLE)
    assert made.comparisons[0].reasons == ("differs from the source: it repeats",)
    assert made.comparisons[0].measured.seeds == 4  # and are shown


def test_cells_that_differ_only_in_scores_still_decide_about_everything_else():
    groups = [GOOD[0], GOOD[1].model_copy(update={"scores_differ": "its images are not shuffled"})]
    assert judged(SMALLER, *groups).verdict == terms.HOLDS
    scored = ratio({"strategy": "eager"}, {"strategy": "ddp"}, "same", "test_accuracy")
    made = judged(scored, *groups)
    assert (made.verdict, made.reason) == (terms.NOT_TESTED, terms.NOT_COMPARABLE)


def test_studies_are_judged_each_for_itself():
    """Such as those of two machines."""
    source = PublishedSource("paper", [])
    claim = {"a": Claim(study="paper", claim="It is so.", **SMALLER)}
    studies = [
        ClaimBasis(name, ABOUT, source, tuple(groups), {})
        for name, groups in (("one", GOOD), ("two", BAD), ("three", [EAGER]))
    ]
    made = claims.judge(claim, studies, [])
    found = [(each.study, each.verdict) for each in made]
    assert found == [("one", terms.HOLDS), ("two", terms.FAILS)]
    assert [each.study for each in claims.judge(claim, studies[2:], [])] == ["three"]


# ---------------------------------------------------------------- whatever a study holds


@functools.cache
def constructed_group(model: str, variant: str, mib: int, state: str) -> Group:
    more = {"not_run": "needs 2x A100"} if state == "not run" else {}
    more |= {"status_by_seed": ["ok", "diverged", "ok", "ok"]} if state == "failed" else {}
    more |= {"told": {"published": None, "differs": "it repeats"}} if state == "differs" else {}
    return group(variant, CPU2 if variant == "ddp" else CPU1, mib, model=model, **more)


MODELS = ("a", "b", "c", "d")
STATES = ("ok", "ok", "ok", "not run", "failed", "differs")
STUDIES = st.dictionaries(
    st.sampled_from(MODELS), st.tuples(st.sampled_from((60, 98, 100, 160)), st.sampled_from(STATES))
)
HOLDING = {terms.HOLDS, terms.HOLDS_IN_DIRECTION}


def groups_in(study) -> list[Group]:
    """Return eager's group of each model, of 100 MiB, and ddp's as ``study`` has it."""
    return [
        constructed_group(model, *each)
        for model, (mib, state) in study.items()
        for each in (("eager", 100, "ok"), ("ddp", mib, state))
    ]


def about(named) -> dict:
    """Return a claim with a part for each model ``named``."""
    return parted(*({"model": model} for model in sorted(named)))


@given(st.sets(st.sampled_from(MODELS), min_size=1), STUDIES, st.sampled_from(MODELS))
def test_no_group_turns_a_verdict_that_the_claim_does_not_name_or_that_is_taken_away(
    named, study, model
):
    made = judged(about(named), *groups_in(study))
    obstacles = collections.Counter(made.obstacles)
    assert len(made.comparisons) == len(named) == sum(obstacles.values())
    assert obstacles[""] == sum(len(part.judged) for part in made.parts)
    resting = {ratio.over.model for part in made.parts for c in part.judged for ratio in c.ratios}
    assert resting <= named
    assert all(study[each][1] == "ok" for each in resting)

    without_others = {other: value for other, value in study.items() if other in named}
    assert judged(about(named), *groups_in(without_others)).sentence == made.sentence

    fewer = {other: value for other, value in study.items() if other != model}
    failed = study | {model: (study[model][0], "failed")} if model in study else study
    for changed in (fewer, failed):
        turned = {made.verdict, judged(about(named), *groups_in(changed)).verdict}
        assert not (terms.FAILS in turned and turned & HOLDING)


@given(st.sets(st.sampled_from(MODELS), min_size=1), STUDIES, STUDIES)
def test_another_machines_file_changes_no_verdict(named, here, there):
    claim = {"a": Claim(study="paper", claim="It is so.", **about(named))}
    source = PublishedSource("paper", [])
    both = [
        ClaimBasis(name, ABOUT, source, tuple(groups_in(study)), {})
        for name, study in (("here", here), ("there", there))
    ]
    alone = {study.name: claims.judge(claim, [study], [])[0].sentence for study in both}
    for each in claims.judge(claim, both, []):
        assert each.sentence == alone[each.study]


def test_what_hardware_is_needed_is_said_before_what_is_not_measured():
    sides = [
        each.model_copy(update={"not_run": why, "runs": ()})
        for each, why in ((EAGER, "not measured"), (DDP, "needs 2 GPUs"))
    ]
    for claim in (FASTER, ratio({"strategy": "ddp"}, {"strategy": "eager"})):
        assert judged(claim, *sides).comparisons[0].reasons[0] == "needs 2 GPUs"


def test_cards_that_nobody_saw_do_not_keep_contrasts_apart():
    seen = {"machine": {"accelerators": [{"name": "NVIDIA H200"}]}}
    sides = []
    for model, own in (("a", seen), ("b", {"told": {"not_run": "not measured"}})):
        for n in (1, 2):
            sides.append(group(f"horovod-{n}", make_hardware("cuda", n), model=model, **own))
    claim = ratio(
        *({"strategy": "horovod", "devices": n} for n in (1, 2)),
        contrast=[{"model": "a"}, {"model": "b"}],
    )
    (one,) = judged(claim, *sides).comparisons
    assert len(one.ratios) == 2


LARGEST = {"test": {"metric": "operator_self_seconds", "op": "largest", "expected": ["mm"]}}


@pytest.mark.parametrize(
    ("hardware", "answer"), [(CPU1, terms.AS_CLAIMED), (T4, terms.NOT_COMPARABLE)]
)
def test_operators_are_compared_where_the_source_has_their_clock(hardware, answer):
    profiled = group("eager-profiled", hardware, training={"profile": "operators"})
    timed = group("eager", hardware, told={"not_run": "not measured"})  # has no operators
    names = ("operator_self_seconds:mm", "operator_self_seconds:copy")
    made = judged(
        LARGEST,
        profiled,
        timed,
        rows=[f"net,eager,,CPU,1,1,,{name},1,s" for name in names],
        means={(profiled.id, name): seconds for name, seconds in zip(names, (2, 1), strict=True)},
    )
    (one,) = made.comparisons
    assert (one.verdict, one.largest.measured) == (answer, "mm")


# ---------------------------------------------------------------- pairs that took turns


def turns(
    own: Group,
    baseline: Group,
    *ratios: float,
    kind: Kind = "training",
    bound=math.inf,
    failed=0,
    disturbed=0,
):
    """Return ``own``, measured to be ``ratios`` times as fast as ``baseline``, by restart."""
    ends = datetime(2030, 1, 1, 8), datetime(2030, 1, 1, 8, 0, 20)
    made = [
        Restart(n, math.log(ratio), 0.0, (), 4, disturbed, bound, *ends)
        for n, ratio in enumerate(ratios)
    ]
    cells = tuple(f"{own.id}.r{each.number}" for each in made)
    compared = Compared(tuple(made), (), cells, {"out of memory": failed} if failed else {})
    pairs = {kind: {**own.in_turns.of(kind), baseline.id: compared}}
    return own.model_copy(update={"in_turns": replace(own.in_turns, **pairs)})


DDP = group("ddp", CPU2, 60)
FAST, SLOW = (1.49, 1.51, 1.5, 1.5), (0.79, 0.81, 0.8, 0.8)


@pytest.mark.parametrize(
    ("claim", "ratios", "direction"),
    [
        (FASTER, FAST, terms.AS_CLAIMED),
        (FASTER, SLOW, terms.OPPOSITE),  # regardless of whole trainings
        (FASTER, (0.9, 1.1, 1.3, 0.8), terms.UNDECIDED),
        (FASTER, FAST[:3], terms.UNDECIDED),
        (FASTER, (1.001, 0.999, 1.001, 0.999), terms.NO_DIFFERENCE),
        (ratio({"strategy": "ddp"}, {"strategy": "eager"}, "<"), FAST, terms.AS_CLAIMED),
        (ratio({"strategy": "ddp"}, {"strategy": "eager"}, "same"), FAST, terms.DIFFERENT),
    ],
)
def test_pairs_decide_by_themselves(claim, ratios, direction):
    made = judged(claim, EAGER, turns(DDP, EAGER, *ratios))
    assert answers(made) == [(direction, "")]
    assert made.comparisons[0].measured.seeds == len(ratios)


def test_pairs_decide_without_whole_trainings():
    eager, ddp = (
        each.model_copy(update={"not_run": "not measured", "runs": (), "cell_runs": ()})
        for each in (EAGER, DDP)
    )
    assert judged(FASTER, eager, ddp).comparisons[0].verdict == terms.NOT_RUN
    assert answers(judged(FASTER, eager, turns(ddp, eager, *FAST))) == [(terms.AS_CLAIMED, "")]


def test_claims_about_inference_are_decided_by_pairs_of_inference():
    claim = ratio({"strategy": "eager"}, {"strategy": "ddp"}, metric="inference_seconds")
    trained = turns(DDP, EAGER, *FAST)
    assert judged(claim, EAGER, trained).reason == terms.NO_PAIR
    predicted = turns(DDP, EAGER, *SLOW, kind="predicting")
    assert judged(claim, EAGER, predicted).verdict == terms.FAILS


@pytest.mark.parametrize(
    ("metric", "mean"),
    [("samples_per_second", 1.5), ("epoch_seconds", 1 / 1.5), ("train_seconds", 1 / 1.5)],
)
def test_pairs_answer_whatever_is_made_of_their_times(metric, mean):
    """The pair measures how many times as fast ddp is: 1.5."""
    claim = ratio({"strategy": "ddp"}, {"strategy": "eager"}, "report", metric)
    (one,) = judged(claim, EAGER, turns(DDP, EAGER, *FAST)).comparisons
    assert one.measured.mean == pytest.approx(mean, rel=0.01)


def test_energy_is_decided_by_pairs_that_measure_it_and_has_no_bound_by_devices():
    claim = ratio({"strategy": "eager"}, {"strategy": "ddp"}, metric="joules_per_sample", size=4.0)
    made = judged(claim, EAGER, turns(DDP, EAGER, *FAST))
    assert made.comparisons[0].reasons == ("paper-cpu has no cell that measures joules_per_sample",)
    eager, ddp = group("eager", T4), group("ddp", T4 | {"devices": 2})
    times = turns(ddp, eager, *FAST)
    made = judged(claim, eager, times)
    assert (made.verdict, made.reason) == (terms.NOT_TESTED, terms.NO_PAIR)
    energy = turns(times, eager, 3.99, 4.0, 4.01, 4.0, kind="energy")
    made = judged(claim, eager, energy)
    assert answers(made) == [(terms.AS_CLAIMED, terms.AS_PUBLISHED)]


def test_a_restart_of_energy_is_made_of_joules():
    sides = [make_cell(name, "net", name, CPU1) for name in ("ddp", "eager")]
    content = make_pair_metrics(make_pair("a pair", sides), seconds=(1.0, 3.0))
    for each in content["slices"]:
        each["joules"] = (50.0, 100.0)[each["side"]]
    run = records.of(content, "a run")
    assert math.exp(restart(run).value) == pytest.approx(3.0)
    assert math.exp(restart(run, "joules").value) == pytest.approx(2.0)


def test_a_rate_cannot_grow_by_more_than_the_devices_give():
    claim = ratio({"strategy": "ddp"}, {"strategy": "eager"}, ">", "samples_per_second", size=3.0)
    made = judged(claim, EAGER, turns(DDP, EAGER, *FAST))
    assert answers(made) == [(terms.AS_CLAIMED, terms.CANNOT_BE_SHOWN)]
    devices = {"strategy": "ddp", "devices": 2}
    claim = ratio(devices, {"strategy": "eager"}, ">", "samples_per_second", size=3.0)
    assert judged(claim, EAGER, turns(DDP, EAGER, *FAST)).verdict == terms.IMPOSSIBLE


def test_gains_of_different_choices_are_kept_apart():
    def gains(choices: list[dict]) -> list[Group]:
        """Return two groups for each choice, the second of two devices; the first gains."""
        made = []
        for ratios, own in zip((FAST, SLOW), choices, strict=True):
            one, wide = (group(f"horovod-{n}", make_hardware(devices=n), **own) for n in (1, 2))
            made += [one, turns(wide, one, *ratios)]
        return made

    sides = {"strategy": "horovod", "devices": 1}, {"strategy": "horovod", "devices": 2}
    for choices in (
        [{"model": "a"}, {"model": "b"}],
        [{"options": {"backend": "gloo"}}, {"options": {"backend": "mpi"}}],
    ):
        (one,) = judged(ratio(*sides, contrast=choices), *gains(choices)).comparisons
        assert one.verdict == terms.AS_CLAIMED
        assert one.measured.mean == pytest.approx(1.5 / 0.8, rel=0.01)


def test_restarts_tell_over_how_many_sessions_and_days_they_are_spread():
    def at(*hours: float) -> Compared:
        starts = [datetime(2030, 1, 1) + timedelta(hours=hour) for hour in hours]
        ends = [start + timedelta(minutes=2) for start in starts]
        restarts = (
            Restart(n, 0.0, 0.0, (), 4, 0, math.inf, *both)
            for n, both in enumerate(zip(starts, ends, strict=True))
        )
        return Compared(tuple(restarts), (), ())

    assert at().measured_over == ""
    assert at(8, 8.5, 9).measured_over == "62 min"
    assert at(8, 13).measured_over == "5.0 h"
    assert at(8, 20).measured_over == "2 sessions, 1 day"
    assert at(30, 8, 8.1, 54.0).measured_over == "3 sessions, 3 days"


def test_a_pair_that_failed_in_any_restart_is_not_measured():
    made = judged(FASTER, EAGER, turns(DDP, EAGER, *FAST, failed=1))
    assert made.verdict == terms.NOT_TESTED
    assert made.reason == "failed here: out of memory in 1 of 5 restarts"
    assert made.comparisons[0].measured.seeds == 4  # and is shown


def test_a_comparison_without_a_pair_is_shown_and_decides_nothing():
    other = two("other", 60)
    made = judged(FASTER, EAGER, turns(DDP, EAGER, *FAST), *other)
    verdicts = {each.ratios[0].over.model: each.verdict for each in made.comparisons}
    assert verdicts == {"net": terms.AS_CLAIMED, "other": terms.NO_PAIR}


# ---------------------------------------------------------------- what devices can give


@pytest.mark.parametrize(
    ("claim", "verdict", "size"),
    [
        ({"size": 1.5}, terms.HOLDS, terms.AS_PUBLISHED),
        ({"size": 1.9}, terms.HOLDS_IN_DIRECTION, terms.SMALLER),
        # Two devices give the source at most 2.
        ({"size": 3.0}, terms.IMPOSSIBLE, terms.CANNOT_BE_SHOWN),
        ({"size": [2.0, 3.0]}, terms.HOLDS_IN_DIRECTION, terms.SMALLER),
        ({"size": [2.0, 3.0], "bound": 1.99}, terms.IMPOSSIBLE, terms.SMALLER),
        ({"size": 1.4, "bound": 1}, terms.IMPOSSIBLE, terms.LARGER),
    ],
)
def test_what_the_sources_own_devices_cannot_give_is_impossible(claim, verdict, size):
    test = ratio({"strategy": "eager"}, {"strategy": "ddp", "devices": 2}, **claim)
    made = judged(test, EAGER, turns(DDP, EAGER, *FAST))
    assert (made.verdict, answers(made)) == (verdict, [(terms.AS_CLAIMED, size)])


def test_what_only_our_devices_cannot_give_is_no_size():
    """The source's four devices give four times, two here at most two."""
    test = ratio({"strategy": "eager"}, {"strategy": "ddp"}, size=3.0, bound=4)
    made = judged(test, EAGER, turns(DDP, EAGER, *FAST))
    assert made.verdict == terms.HOLDS_IN_DIRECTION
    assert answers(made) == [(terms.AS_CLAIMED, terms.CANNOT_BE_SHOWN)]
    assert "at most 2.00" in made.comparisons[0].reasons[-1]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, "at most 2.00"),
        (
            {"members": [EAGER.id]},
            "at most 1.74, the sum of the models' times here over the longest",
        ),
        (
            {"options": {"beside": {"net": {}, "other": {}}}},
            "at most 1.00, since each of the models side by side has one device",
        ),
        (
            {"work": DDP.work.model_copy(update={"pipeline_bound": 1.6})},
            "at most 1.60, the most that its pipeline of micro-batches can gain",
        ),
    ],
)
def test_what_bounds_a_size_here_is_told_apart_from_what_bounds_the_source(changes, why):
    sides = {"strategy": "eager"}, {"strategy": "ddp", "devices": 2}
    eager = EAGER.model_copy(update={"members": changes.get("members", [])})
    metric = "total_seconds" if "members" in changes else "train_seconds"
    test = ratio(*sides, metric=metric, size=14.3)
    made = judged(test, eager, turns(DDP.model_copy(update=changes), eager, *FAST, bound=1.74))
    assert made.reason == "the source's own devices give at most 2 times for the same work"
    (reason,) = made.comparisons[0].reasons
    assert reason == f"published 14.3, beyond what can be reached here: {why}"


def test_what_the_sources_own_numbers_deny_is_contradicted_and_not_impossible():
    rows = ["net,eager,,X,1,1,,train_seconds,100,s", "net,ddp,,X,1,2,,train_seconds,125,s"]
    told = {"published": {"model": "net", "strategy": "eager"}}, {"published": {"strategy": "ddp"}}
    eager, ddp = group("eager", CPU1, told=told[0]), group("ddp", CPU2, 60, told=told[1])
    denied = Contradiction(claims.DENIED, Certainty.CERTAIN, "paper", "", (2, 3), ("a", 0))
    made = judged(FASTER, eager, turns(ddp, eager, *FAST), rows=rows, found=[denied])
    assert (made.verdict, answers(made)) == (terms.CONTRADICTED, [(terms.AS_CLAIMED, "")])
    assert made.sentence == "contradicted by its source (its own numbers deny it)"
    told = "Of 1 claim, 1 is contradicted by its source."
    assert claim_headline.headline([made]).startswith(told)
    # Beside a part beyond the source's devices, the claim as a whole is impossible.
    parts = [{"about": {"model": "net"}}, {"denominator": {"devices": 2}, "size": 3.0}]
    both = FASTER | {"parts": parts}
    made = judged(both, eager, turns(ddp, eager, *FAST), rows=rows, found=[denied])
    words = [part.against_source for part in made.parts]
    assert (made.verdict, words) == (terms.IMPOSSIBLE, [terms.CONTRADICTED, terms.IMPOSSIBLE])
    assert made.reason.endswith("; its own numbers deny 1 of 2 parts")


# ---------------------------------------------------------------- equal sides, and firm verdicts


def test_where_equal_sides_differ_pairs_tell_nothing():
    unequal = (1.1, 1.101, 1.1, 1.101)
    biased = turns(turns(DDP, EAGER, *FAST), DDP, *unequal)
    made = judged(FASTER, EAGER, biased)
    assert (made.verdict, answers(made)) == (terms.NOT_TESTED, [(terms.NOT_COMPARABLE, "")])
    assert "the A/A pair on 2 CPU cores is biased" in made.comparisons[0].reasons[0]
    equal = turns(turns(DDP, EAGER, *FAST), DDP, 1.001, 0.999, 1.001, 0.999)
    assert judged(FASTER, EAGER, equal).verdict == terms.HOLDS
    # Equal sides of another kind, such as of predicting, vouch for nothing.
    predicting = turns(turns(DDP, EAGER, *FAST), DDP, *unequal, kind="predicting")
    assert judged(FASTER, EAGER, predicting).verdict == terms.HOLDS


VOUCHED = (1.001, 0.999, 1.001, 0.999)


@pytest.mark.parametrize(
    ("ddp", "weakness"),
    [
        (turns(turns(DDP, EAGER, *FAST), DDP, *VOUCHED), ""),
        (turns(DDP, EAGER, *FAST), "no A/A pair of training on 2 CPU cores"),
        (turns(turns(DDP, EAGER, *FAST), DDP, *VOUCHED[:3]), "A/A pair is not shown"),
        (turns(turns(DDP, EAGER, *FAST, disturbed=3), DDP, *VOUCHED), "slices disturbed"),
        (
            turns(turns(DDP, EAGER, *FAST), DDP, *VOUCHED).model_copy(
                update={"scaled": ["epochs 1 instead of 50"]}
            ),
            "from a scaled copy",
        ),
    ],
)
def test_firm_is_what_is_vouched_for_undisturbed_and_at_the_sources_scale(ddp, weakness):
    eager = turns(EAGER, EAGER, *VOUCHED)
    made = judged(ratio({"strategy": "ddp"}, {"strategy": "eager"}, "<"), eager, ddp)
    assert weakness in made.weakness
    assert made.firm == (weakness == "")


def test_each_side_of_a_pair_needs_equal_sides_on_as_many_devices():
    both = turns(turns(DDP, EAGER, *FAST), DDP, *VOUCHED)
    on_one = "no A/A pair of training on 1 CPU core"
    assert judged(FASTER, EAGER, both).weakness == on_one
    predicting = turns(EAGER, EAGER, *VOUCHED, kind="predicting")
    assert judged(FASTER, predicting, both).weakness == on_one
    eager = turns(EAGER, EAGER, *VOUCHED)
    assert judged(FASTER, eager, both).firm
    made = judged(FASTER, eager, turns(DDP, EAGER, *FAST))
    told = "is not firm: it has no A/A pair of training on 2 CPU cores."
    assert told in claim_headline.headline([made])


def test_claims_of_the_same_source_that_no_study_tests_are_counted(tmp_path):
    claim = {"study": "another", "claim": "Another.", "test": FASTER["test"]}
    more = {"not-asked": claim}
    data = make_report(tmp_path, FASTER | {"study": "another"}, claims=["two-faster"], more=more)
    told = "1 other claim of the same sources is not part of this report."
    assert told in data["claims"]["sentence"]


def test_all_reasons_against_firmness_are_given():
    ddp = turns(turns(DDP, EAGER, *FAST, disturbed=3), DDP, *VOUCHED[:3])
    scaled = ddp.model_copy(update={"scaled": ["epochs 1 instead of 50"]})
    made = judged(ratio({"strategy": "ddp"}, {"strategy": "eager"}, "<"), EAGER, scaled)
    parts = ("from a scaled copy", "A/A pair is not shown", "slices disturbed")
    assert all(part in made.weakness for part in parts)
    reasons = "from a scaled copy, has no A/A pair of training on 1 CPU core, rests on pairs whose"
    assert f"is not firm: it comes {reasons} A/A pair" in claim_headline.headline([made])
    vouched = turns(turns(DDP, EAGER, *FAST), DDP, *VOUCHED)
    firm = judged(FASTER, turns(EAGER, EAGER, *VOUCHED), vouched)
    two, three = [made] * 2, "Of the 3 verdicts that a claim holds or does not, "
    told = claim_headline.headline(two)
    assert "none is firm: both come from a scaled copy, both have no A/A pair of training" in told
    told = claim_headline.headline([*two, firm])
    assert f"{three}1 is firm. Of the others, 2 come from a scaled copy, 2 have no A/A" in told
    told = claim_headline.headline([made, firm, firm])
    assert f"{three}2 are firm. The other comes from a scaled copy, has no A/A pair" in told


def test_a_pair_that_drifts_is_called_so_and_forecasts_nothing():
    rising = (0.88, 0.98, 0.98, 0.99, 0.87, 0.97, 1.02, 1.01, 1.02, 1.01, 1.03, 1.02)
    made = judged(FASTER, EAGER, turns(DDP, EAGER, *rising))
    assert made.sentence == "undecided (1 comparison: net); 1 of 1 pairs drift"
    assert made.reason == "what it would take is unknown, since the restarts drift"
    (drifting,) = made.comparisons[0].ratios
    assert drifting.pair.drift == "drift: 0.94 in the first half, 1.02 in the second"
    mixed = judged(FASTER, EAGER, turns(DDP, EAGER, *rising[::2], *rising[::-2]))
    assert mixed.sentence == "undecided (1 comparison: net)"
    assert mixed.reason.endswith("if the estimate stays")


def test_a_verdict_on_a_pair_that_drifts_is_not_firm():
    rising = (1.41, 1.42, 1.43, 1.44, 1.45, 1.46)
    ddp = turns(turns(DDP, EAGER, *rising), DDP, *VOUCHED)
    assert (
        judged(FASTER, turns(EAGER, EAGER, *VOUCHED), ddp).weakness == "based on a pair that drifts"
    )


@pytest.mark.parametrize(
    ("disturbed", "told"), [(0, ""), (1, ""), (3, "pairs of slices disturbed")]
)
def test_a_verdict_says_where_most_of_its_turns_were_disturbed(disturbed, told):
    made = judged(FASTER, EAGER, turns(DDP, EAGER, *FAST, disturbed=disturbed))
    assert made.verdict == terms.HOLDS
    for sentence in (made.sentence, made.sentence_with_reason):
        assert sentence.startswith("holds (1 comparison: net)")
        assert ("disturbed" in sentence, told in sentence) == (bool(told), True)


def test_a_restart_is_what_its_undisturbed_pairs_say():
    """Two models one after the other, relative to both at once."""
    side = constructed.make_cell("side", "net", "eager", CPU1)
    pair = constructed.make_pair("three", [side] * 3, restart=5)
    value = constructed.make_pair_metrics(pair, seconds=(1.0, 0.6, 0.9))
    value["slices"] = value["slices"][:9]
    for entry in value["slices"][6:]:
        entry["disturbed"] = True
        entry["seconds"] = (1.0, 9.0, 9.0)[entry["side"]]
    value |= {"started": "2026-11-22T10:00:00Z", "finished": "2026-11-22T10:00:30Z"}
    found = restart(records.of(value, "a pair"))
    assert math.exp(found.value) == pytest.approx(1.5)
    assert math.exp(found.of_all) > 1.5
    assert (found.number, found.slice_pairs, found.disturbed, found.seconds) == (5, 3, 1, 30)
    assert found.bound == pytest.approx(1.5 / 0.9)


# ---------------------------------------------------------------- the report


def make_report(folder: Path, claim: dict, groups=None, more=None, **study) -> dict:
    """Return report.json of the constructed study with one claim about it, and ``more`` known."""
    paths = constructed.write_study(folder, constructed.usual_study(**study), groups)
    text = {"study": "constructed", "claim": "Two are faster than one.", **claim}
    (folder / "claims.yaml").write_text(yaml.safe_dump({"two-faster": text} | (more or {})))
    rows = [
        "constructed,Table 1,resnet18,eager,,X,1,1,,test_accuracy,0.8304,fraction",
        "constructed,Table 1,resnet18,ddp,,X,1,2,,test_accuracy,0.8304,fraction",
        "another,Table 1,resnet18,ddp,,X,1,2,,speedup,3,x",
    ]
    (folder / "published.csv").write_text("\n".join([HEAD, *rows]) + "\n")
    published = [folder / "published.csv"]
    return collect(paths, claimed=[folder / "claims.yaml"], published=published)


def test_the_first_page_is_the_verdicts_on_claims(tmp_path):
    data = make_report(tmp_path, {"test": FASTER["test"] | {"size": 1.5}})
    html, pdf = render(data)
    made = data["claims"]
    (key, figure) = made["figure"]["parts"]
    assert key["alt"].endswith("Here: ✓ as claimed; > larger than published.")
    for meaning in ("Here:", "✓ as claimed", "> larger than published"):
        assert escape(meaning.replace(" ", "\u00a0")) in key["svg"]
    assert ">Here<" in figure["svg"]
    failure = "failed here: out of memory in 1 of 1 restarts"
    sentence = (
        f"holds in direction where tested (2 of 3 comparisons, 2 models; others: {failure} 1)"
    )
    assert f"Claim 1, {sentence}: Two are faster than one." in figure["alt"]
    reproduced = r"resnet18: as claimed, larger than published, 1\.6\d \(1\.\d+ to 1\.\d+\)"
    assert re.search(f"{reproduced}, published 1.50", figure["alt"])
    for text in ("1  Two are faster than", "resnet18", "resnet50", "(✓) holds in"):
        assert f">{text}" in figure["svg"]
    (swin,) = [row for row in made["detail"]["rows"] if "swin" in row[1]["text"]]
    assert swin[5]["text"] == "failed here"
    notes = [note["text"] for note in made["detail"]["notes"]]
    assert "out of memory in 1 of 1 restarts" in notes
    # Only this report's sources are audited.
    (found,) = made["audit"]["rows"]
    assert [cell["text"] for cell in found][:2] == ["constructed", "equal to the last digit"]
    first = squeezed(pypdf.PdfReader(io.BytesIO(pdf)).pages[0].extract_text())
    where = "Measured on Constructed CPU (2 cores); the sources' numbers come from X."
    for text in (made["sentence"], where, made["figure"]["title"], "Two are faster than one."):
        assert squeezed(text) in first
    assert made["sentence"].startswith("Of 1 claim, 1 holds in direction only. 1 of its 1 part")
    parts = ("f-claims", "t-claims-each", "summary", "terms")
    assert sorted(parts, key=lambda part: html.index(f'id="{part}"')) == list(parts)
    listed = {term["name"] for term in data["terms"]}
    assert {terms.HOLDS_IN_DIRECTION, "(✓)", "firm", terms.FAILED_HERE} < listed
    assert not {terms.HOLDS_IN_PART, terms.IMPOSSIBLE, "no cells"} & listed
    assert squeezed("Contradictions among the published numbers") in squeezed(pdf_text(pdf))


def test_a_source_may_say_so_much_or_more(tmp_path):
    for least, word in ((1.6, terms.AS_PUBLISHED), (2.5, terms.SMALLER)):
        made = judged(parted({"model": "a", "size": [least, None]}), *GOOD)
        assert answers(made) == [(terms.AS_CLAIMED, word)]
    data = make_report(tmp_path, {"test": FASTER["test"] | {"size": [1.5, None]}})
    html, _ = render(data)
    assert "1.50 or more" in html
    (part,) = json.loads(json.dumps(data["judged"], allow_nan=False))["claims"][0]["parts"]
    assert part["comparisons"][0]["published"] == [1.5, None]
    by_schema.check(data["judged"], "judged", "claims.json")
    assert any(
        "published 1.5 or more" in line for line in claims_json.shown(data["judged"]["claims"][0])
    )


def test_every_verdict_is_in_one_file_for_programs(tmp_path, capsys, monkeypatch):
    made = make_report(tmp_path, {"test": FASTER["test"] | {"size": 1.5}})["judged"]
    by_schema.check(made, "judged", "claims.json")
    schema = yaml.safe_load((by_schema.SCHEMAS / "judged.schema.yaml").read_text())
    verdict = schema["$defs"]["claim"]["properties"]["verdict"]
    assert verdict["enum"] == list(terms.CLAIM_VERDICTS)
    (claim,) = made["claims"]
    (part,) = claim["parts"]
    assert (claim["verdict"], part["size"]) == (terms.HOLDS_IN_DIRECTION, terms.LARGER)
    by_model = {each["groups"][0][0].partition(".")[0]: each for each in part["comparisons"]}
    assert by_model["resnet18"]["measured"]["mean"] == pytest.approx(1.61, abs=0.01)
    assert by_model["swin"]["direction"] == terms.FAILED_HERE

    (tmp_path / "claims.json").write_text(json.dumps(made))
    monkeypatch.chdir(ROOT)

    def said(*arguments: str) -> str:
        main(["claims", "--data", f"{tmp_path}/claims.json", *arguments])
        return capsys.readouterr().out

    suite = ElementTree.fromstring(said("junit"))
    assert [suite.get(key) for key in ("tests", "failures", "skipped")] == ["1", "0", "1"]
    assert said("list").startswith("two-faster: holds in direction where tested (2 of 3 comp")
    shown = said("show", "two-faster")
    for text in ("Two are faster than one.", "as claimed, larger than published", "published 1.5"):
        assert text in shown
    assert "out of memory in 1 of 1 restarts" in shown
    with pytest.raises(ParbenchError, match="no claim 'two-faste'; did you mean 'two-faster'"):
        said("show", "two-faste")
    (tmp_path / "claims.json").write_text(json.dumps(made | {"claims": []}))
    assert "judges no claims: its studies make none" in said("list")


AGAINST = (terms.FAILS, terms.IMPOSSIBLE, terms.CONTRADICTED)
JUNIT = {terms.HOLDS: [], **{word: ["failure"] for word in AGAINST}}


@pytest.mark.parametrize("verdict", terms.CLAIM_VERDICTS)
def test_in_junit_only_what_holds_has_passed(verdict):
    claim = {
        "name": "a",
        "study": "s",
        "verdict": verdict,
        "sentence_with_reason": f"{verdict}; so",
    }
    (case,) = ElementTree.fromstring(claims_json.junit({"claims": [claim]}))
    assert [each.tag for each in case] == JUNIT.get(verdict, ["skipped"])
    assert all(each.get("message") == f"{verdict}; so" for each in case)


def test_evidence_of_several_machines_is_a_matrix(tmp_path):
    """A row for each claim, a column for each machine and grade. One measured pairs alone."""
    (tmp_path / "claims.yaml").write_text(
        json.dumps({"two-faster": {"study": "paper", "claim": "Two are faster.", **FASTER}})
    )
    cells, studies = tmp_path / "results" / "cells", []
    for name, machine, ratios in (("here", "0123456789ab", FAST), ("there", "f" * 12, SLOW)):
        machine = {"machine": {"fingerprint": machine}}
        machine |= {"told": {"not_run": terms.NOT_MEASURED}} if name == "there" else {}
        own = [
            constructed.Group(name, "eager", CPU1, **machine),
            constructed.Group(name, "ddp", CPU2, turns=ratios, **machine),
        ]
        study = constructed.usual_study(name, published="paper")
        paths = constructed.write_study(tmp_path / name, study, own)
        shutil.copytree(paths["cells"], cells, dirs_exist_ok=True)
        studies.append(paths | {"cells": cells})
    published = [tmp_path / "here" / "published.csv"]
    data = collect(*studies, claimed=[tmp_path / "claims.yaml"], published=published)
    matrix = data["claims"]["matrix"]
    (row,) = matrix["rows"]
    columns = [column for head in matrix["heads"][1:] for column in head["columns"]]
    found = dict(zip(columns, (cell["text"] for cell in row[1:]), strict=True))
    here, there = sorted(found)
    assert here.endswith(" 2 cores, 23 GiB (ID 0123456789ab): other hardware")
    assert there.endswith(" 2 cores, 23 GiB (ID ffffffffffff): other hardware")
    rests = "(1 comparison: {})".format
    assert found[here] == f"{terms.HOLDS} {rests('here')}"
    assert found[there] == f"{terms.FAILS} {rests('there')}"
    html, _ = render(data)
    assert html.index('id="t-matrix"') < html.index('id="f-claims"')


def test_without_testable_claims_there_is_no_figure_and_without_a_source_nothing(tmp_path):
    alone = [constructed.Group("net", "eager", CPU1)]
    data = make_report(tmp_path, FASTER, alone)
    assert data["claims"]["figure"]["parts"] == []
    _, pdf = render(data)
    assert squeezed("Of 1 claim, none was tested here.") in squeezed(pdf_text(pdf))
    data = make_report(tmp_path, FASTER, alone, published=None, citation=None)
    assert data["claims"] is None
