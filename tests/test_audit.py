"""What published numbers say against themselves is found by arithmetic, in any file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from parbench.plan.published import Claims
from parbench.plan.published import rows as rows_of
from parbench.verdicts import audit

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "studies" / "published" / "published_results.csv"
HEAD = (
    "study,table,model,strategy,hardware,nodes,devices_per_node,"
    "metric,value,unit,published_value,note"
)
TASK = audit.Task()


def found(tmp_path, *rows: str, task=TASK) -> dict[str, list[audit.Contradiction]]:
    """The findings of a small file, by check. Rows begin at ``strategy``."""
    path = tmp_path / "published.csv"
    path.write_text("\n".join([HEAD, *(f"paper,Table 1,net,{row}" for row in rows)]))
    by: dict[str, list[audit.Contradiction]] = {}
    for finding in audit.contradictions(rows_of(path), task):
        by.setdefault(finding.check, []).append(finding)
    return by


ONE = "eager,X,1,1,train_seconds,100,s,100,"


@pytest.mark.parametrize(
    ("rows", "check", "says"),
    [
        ([ONE, "ddp,X,1,2,train_seconds,45,s,45,"], "faster than its devices", "2.22 times"),
        ([ONE, "ddp,X,2,2,train_seconds,20,s,20,"], "faster than its devices", "at most 4"),
        (
            [
                "eager,X,1,1,samples_per_second,10,1/s,10,",
                "ddp,X,1,2,samples_per_second,31,1/s,31,",
            ],
            "faster than its devices",
            "3.1 times",
        ),
        (["ddp,X,1,2,speedup,2.5,ratio,2.5,"], "faster than its devices", "speedup of 2.5"),
        (
            [ONE, "ddp,X,2,2,train_seconds,30,s,30,headed '2 GPUs'"],
            "another number of devices",
            "says 2 GPUs; 100 s to 30 s is 3.33 times, and 2 instead of 1 make at most 2",
        ),
        ([ONE, "eager,X,1,1,train_seconds,90,s,90,"], "two values for one thing", "100 s .* 90 s"),
        (
            [ONE, "ddp,X,1,2,train_seconds,60,s,60,", "ddp,X,1,2,speedup,1.9,ratio,1.9,"],
            "a ratio of other numbers",
            "speedup 1.9 is printed; its numbers give 1.67",
        ),
        (
            ["ddp,X,1,2,speedup,1.8,ratio,1.8,", "ddp,X,1,2,parallel_efficiency,0.8,fraction,80,"],
            "an efficiency of another speedup",
            "1.8 / 2 is 0.9",
        ),
        (
            [
                "ddp,X,1,2,test_accuracy,0.8304,fraction,83.04,",
                "horovod,X,1,2,test_accuracy,0.8304,fraction,83.04,",
            ],
            "equal to the last digit",
            "0.8304 of net ddp on 2x X and of net horovod on 2x X",
        ),
        (
            [
                "ddp,X,1,2,test_accuracy,0.81,fraction,0.81,",
                "ddp,X,1,2,test_recall_macro,0.83,fraction,0.83,",
            ],
            "recall is accuracy",
            "accuracy 0.81 and macro recall 0.83",
        ),
        (
            [
                "ddp,X,1,2,test_recall_macro,0.82,fraction,0.82,",
                "ddp,X,1,2,test_specificity_macro,0.95,fraction,0.95,",
            ],
            "specificity follows from recall",
            "makes it 0.9800",
        ),
        (
            [
                "ddp,X,1,2,train_seconds,100,s,100,5 epochs",
                "ddp,X,1,2,samples_per_second,9000,1/s,9000,",
            ],
            "throughput times time",
            "18.0 epochs of 50,000; 5 are stated",
        ),
        (
            [
                "eager,X,1,1,operator_self_seconds:mm,3,s,3.0,",
                "eager,X,1,1,operator_self_seconds:bmm,2,s,2.0,",
                "eager,X,1,1,profile_self_seconds,4,s,4.0,",
            ],
            "parts and the whole",
            "add up to 5 s, more than the 4 s of all",
        ),
        (
            ["eager,MPS,1,1,operator_self_seconds:mm,3,s,3.0,printed under Self-CPU"],
            "another device's clock",
            "does not measure the accelerator",
        ),
    ],
)
def test_what_cannot_be_is_found(tmp_path, rows, check, says):
    by = found(tmp_path, *rows)
    assert list(by) == [check]
    (finding,) = by[check]
    assert re.search(says, finding.says), finding.says
    assert set(finding.lines) <= set(range(2, 2 + len(rows)))


@pytest.mark.parametrize(
    "rows",
    [
        [ONE, "ddp,X,1,2,train_seconds,50,s,50,"],
        # 100.4 to 49.6 might be printed so: no more than twice as fast with kind rounding.
        [ONE, "ddp,X,1,2,train_seconds,49.8,s,49.8,", "ddp,X,1,2,speedup,2.0,ratio,2.0,"],
        [ONE, "ddp,Y,1,2,train_seconds,10,s,10,"],  # other hardware
        [ONE, ONE],
        [ONE, "ddp,X,1,2,train_seconds,60,s,60,", "ddp,X,1,2,speedup,1.7,ratio,1.7,"],
        ["ddp,X,1,2,speedup,1.87,ratio,1.87,", "ddp,X,1,2,parallel_efficiency,0.93,fraction,93,"],
        # Two digits are equal now and then.
        [
            "ddp,X,1,2,test_accuracy,0.83,fraction,83,",
            "eager,X,1,1,test_accuracy,0.83,fraction,83,",
        ],
        [
            "ddp,X,1,2,test_accuracy,0.814,fraction,81.4,",
            "ddp,X,1,2,test_recall_macro,0.81,fraction,0.81,",
            "ddp,X,1,2,test_specificity_macro,0.9793,fraction,0.9793,",
        ],
        [
            "ddp,X,1,2,train_seconds,100,s,100,5 epochs",
            "ddp,X,1,2,samples_per_second,2600,1/s,26e2,",
        ],
    ],
)
def test_what_can_be_is_not(tmp_path, rows):
    assert found(tmp_path, *rows) == {}


def test_what_is_taken_for_granted_can_be_stated(tmp_path):
    rows = [
        "ddp,X,1,2,test_accuracy,0.81,fraction,0.81,",
        "ddp,X,1,2,test_recall_macro,0.83,fraction,0.83,",
    ]
    assert found(tmp_path, *rows, task=audit.Task(balanced=False)) == {}
    rows = [
        "ddp,X,1,2,test_recall_macro,0.82,fraction,0.82,",
        "ddp,X,1,2,test_specificity_macro,0.94,fraction,0.94,",
    ]
    assert found(tmp_path, *rows, task=audit.Task(classes=4)) == {}


def claim(over, under, op=">", value=1, **more):
    test = {"metric": "train_seconds", "numerator": over, "denominator": under, "op": op}
    test |= {"value": value, **more.pop("test", {})}
    return {"mine": {"study": "paper", "claim": "It is so.", "test": test, **more}}


FASTER = {"strategy": "eager"}, {"strategy": "ddp", "devices": 2}


@pytest.mark.parametrize(
    ("claims", "seconds", "checks"),
    [
        (claim(*FASTER), 80, []),
        (claim(*FASTER), 100, []),  # to the second: it may be 1.01 times
        (claim(*FASTER), 125, ["denied by its own numbers"]),
        (claim(*FASTER, op="<"), 80, ["denied by its own numbers"]),
        (claim(*FASTER, op="<"), 125, []),
        (claim(FASTER[0], {"strategy": "ddp", "devices": 4}), 125, []),  # of which it has no number
        (claim(*FASTER, value=2), 80, ["denied by its own numbers", "promised above its devices"]),
        (
            claim(*FASTER, value="published", published={"ddp": 3}),
            *(80, ["promised above its devices"]),
        ),
        (claim(*FASTER, value="published", published={"ddp": 1.5}), 80, []),
        ({"mine": {"study": "paper", "claim": "It is so."}}, 80, []),
    ],
)
def test_what_a_source_says_is_held_against_its_numbers(tmp_path, claims, seconds, checks):
    path = tmp_path / "published.csv"
    rows = [ONE, f"ddp,X,1,2,train_seconds,{seconds},s,{seconds},"]
    path.write_text("\n".join([HEAD, *(f"paper,Table 1,net,{row}" for row in rows)]))
    made = audit.of_claims(Claims(claims).root, rows_of(path))
    assert [finding.check for finding in made] == checks
    assert all(finding.says.startswith("mine ") and finding.lines for finding in made)


@pytest.mark.parametrize(
    ("options", "key", "value", "has"),
    [
        ("balance=[1,1]", "balance", [1, 1], True),
        ("balance=[1, 1], chunks=4", "chunks", 4, True),
        ("chunks=256", "chunks", 2, False),
        ("checkpoint=always,chunks=4", "checkpoint", "always", True),
        ("uneven_balance=[1,1]", "balance", [1, 1], False),
        ("", "chunks", 2, False),
    ],
)
def test_an_option_is_known_by_its_whole_name_and_value(tmp_path, options, key, value, has):
    """A claim that its numbers deny, where they are of what it is about."""
    path = tmp_path / "published.csv"
    rows = ["eager,X,1,1,train_seconds,100,s,100,", "ddp,X,1,2,train_seconds,125,s,125,"]
    text = [f'paper,Table 1,net,"",{rows[0]}', f'paper,Table 1,net,"{options}",{rows[1]}']
    head = HEAD.replace("model,strategy", "model,options,strategy")
    path.write_text("\n".join([head, *text]))
    told = claim({"strategy": "eager"}, {"strategy": "ddp", "options": {key: value}})
    assert bool(audit.of_claims(Claims(told).root, rows_of(path))) is has
