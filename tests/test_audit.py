"""Contradictions among published numbers are found by arithmetic, in any file."""

from __future__ import annotations

import csv

import pytest

from parbench.plan.published import Claims
from parbench.plan.published import rows as rows_of
from parbench.verdicts import audit
from workspace import ROOT

HEAD = (
    "study,table,model,strategy,hardware,nodes,devices_per_node,"
    "metric,value,unit,published_value,note"
)
GRANTED = audit.Granted()


def found(tmp_path, *rows: str, granted=GRANTED) -> dict[str, list[audit.Contradiction]]:
    """Return the findings in a file of ``rows``, by check. Rows begin at column ``strategy``."""
    path = tmp_path / "published.csv"
    path.write_text("\n".join([HEAD, *(f"paper,Table 1,net,{row}" for row in rows)]))
    by: dict[str, list[audit.Contradiction]] = {}
    for finding in audit.contradictions(rows_of(path), granted):
        by.setdefault(finding.check, []).append(finding)
    return by


ONE = "eager,X,1,1,train_seconds,100,s,100,"


@pytest.mark.parametrize("name", ["planted", "plausible"])
def test_each_planted_contradiction_is_found_and_nothing_else(name):
    """The column `finds` has `<check> (<how sure>): <words>` on the first line concerned."""
    path = ROOT / "tests" / "audit" / f"{name}.csv"
    with open(path, newline="") as file:
        wanted = {n: row.get("finds") for n, row in enumerate(csv.DictReader(file), start=2)}
    made = audit.contradictions(rows_of(path), GRANTED)
    assert [each.lines[0] for each in made] == [line for line, finds in wanted.items() if finds]
    for each in made:
        kind, _, words = wanted[each.lines[0]].partition(": ")
        assert (f"{each.check} ({each.sure})", words in each.says) == (kind, True), each


def test_what_is_taken_for_granted_can_be_stated(tmp_path):
    rows = [
        "ddp,X,1,2,test_accuracy,0.81,fraction,0.81,",
        "ddp,X,1,2,test_recall_macro,0.83,fraction,0.83,",
    ]
    assert found(tmp_path, *rows, granted=audit.Granted(balanced=False)) == {}
    rows = [
        "ddp,X,1,2,test_recall_macro,0.82,fraction,0.82,",
        "ddp,X,1,2,test_specificity_macro,0.94,fraction,0.94,",
    ]
    assert found(tmp_path, *rows, granted=audit.Granted(classes=4)) == {}


def claim(over, under, op=">", value=1, **more):
    test = {"metric": "train_seconds", "numerator": over, "denominator": under, "op": op}
    test |= {"value": value, **more.pop("test", {})}
    return {"mine": {"study": "paper", "claim": "It is so.", "test": test, **more}}


FASTER = {"strategy": "eager"}, {"strategy": "ddp", "devices": 2}


@pytest.mark.parametrize(
    ("claims", "seconds", "checks"),
    [
        (claim(*FASTER), 80, []),
        (claim(*FASTER), 100, []),  # rounded to seconds: the ratio may be 1.01
        (claim(*FASTER), 125, ["denied by its own numbers"]),
        (claim(*FASTER, op="<"), 80, ["denied by its own numbers"]),
        (claim(*FASTER, op="<"), 125, []),
        (claim(FASTER[0], {"strategy": "ddp", "devices": 4}), 125, []),  # no number for 4
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
