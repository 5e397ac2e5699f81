"""Contradictions among published numbers are found by arithmetic, in any file."""

from __future__ import annotations

import csv

import pytest

from parbench.audit import checks
from parbench.errors import ParbenchError
from parbench.plan.published import Claims
from parbench.plan.published import rows as rows_of
from workspace import ROOT

HEAD = (
    "study,table,model,strategy,hardware,nodes,devices_per_node,"
    "metric,value,unit,published_value,note"
)
GRANTED = checks.DatasetAssumptions()


def found(tmp_path, *rows: str, assumptions=GRANTED) -> dict[str, list[checks.Contradiction]]:
    """Return the findings in a file of ``rows``, by check. Rows begin at column ``strategy``."""
    path = tmp_path / "published.csv"
    path.write_text("\n".join([HEAD, *(f"paper,Table 1,net,{row}" for row in rows)]))
    by: dict[str, list[checks.Contradiction]] = {}
    for finding in checks.contradictions(rows_of(path), assumptions):
        by.setdefault(finding.check, []).append(finding)
    return by


ONE = "eager,X,1,1,train_seconds,100,s,100,"


@pytest.mark.parametrize("name", ["planted", "plausible"])
def test_each_planted_contradiction_is_found_and_nothing_else(name):
    """The column `finds` has `<check> (<how sure>): <words>` on the first line concerned."""
    path = ROOT / "tests" / "audit" / f"{name}.csv"
    with open(path, newline="") as file:
        wanted = {n: row.get("finds") for n, row in enumerate(csv.DictReader(file), start=2)}
    made = checks.contradictions(rows_of(path), GRANTED)
    assert [each.lines[0] for each in made] == [line for line, finds in wanted.items() if finds]
    for each in made:
        kind, _, words = wanted[each.lines[0]].partition(": ")
        assert (f"{each.check} ({each.certainty})", words in each.says) == (kind, True), each


WHOLE = "paper,Table 1,net,eager,X,1,1,train_seconds,100,s,100,"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (f"\ufeff{HEAD}\r\n{WHOLE}\r\n", [2]),
        (f"{HEAD}\r{WHOLE}\r{WHOLE}\r", [2, 3]),
        (f"{HEAD}\n{WHOLE}".replace(",", ";"), [2]),
        (f"{HEAD}\n{WHOLE}".replace(",", "\t"), [2]),
        (f"{HEAD},,\n{WHOLE},,\n,,,,,,,,,,,,,\n , ,,,,,,,,,,,,\n{WHOLE},,", [2, 5]),
        (f'{HEAD}\n\n{WHOLE}"one\nand two"\n\n{WHOLE}', [3, 6]),
        (HEAD.replace(",", " , ") + "\n" + WHOLE.replace(",", " , ") + ' "5, 6 epochs"', [2]),
        (f"mine,{HEAD}\n,{WHOLE}\n", [2]),  # a column of one's own
        (f"{HEAD}\n", []),
    ],
)
def test_rows_are_read_however_a_spreadsheet_wrote_them(tmp_path, text, lines):
    path = tmp_path / "published.csv"
    path.write_bytes(text.encode())
    read = rows_of(path)
    assert [row.line for row in read] == lines
    assert {(row.study, row.value, row.unit) for row in read} <= {("paper", 100.0, "s")}


NOT_BARE = "is not a bare number; write digits with a decimal point"


def row(old: str, new: str) -> str:
    """Return a file of one row, with ``new`` in place of ``old``."""
    assert old in WHOLE
    return f"{HEAD}\n{WHOLE.replace(old, new)}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1: the header must name the columns study, table,"),
        (WHOLE, "line 1: the header must name the columns study, table,"),
        (HEAD.replace("metric,", ""), "line 1: the header must name the columns"),
        (HEAD.replace("note", "Notes"), "line 1: unknown column 'Notes'; did you mean 'note'?"),
        (f"{HEAD},unit", "line 1: duplicate column 'unit'; keep one of them"),
        (f"{HEAD}\n{WHOLE}\npaper,Table 1", "line 3: 2 values, but the header has 12 columns"),
        (
            f"{HEAD}\n{WHOLE}in 1, 2",
            "line 2: 13 values, but the header has 12 columns separated by",
        ),
        (f'{HEAD}\n\n{WHOLE}"as in\n{WHOLE}', "line 3: a quotation mark is opened in this row and"),
        (f'{HEAD}\n{WHOLE}"as in\n{WHOLE}"x"', "line 2: ',' expected after '\"' (in the row that"),
        (row(",s,100", ',s,"56,4"'), f"line 2: published_value: '56,4' {NOT_BARE}"),
        (row("100,s", "1e999,s"), "line 2: value: value '1e999' should be a finite number"),
        (row("100,s", ",s"), f"line 2: value: '' {NOT_BARE}"),
        (row("X,1", "X,0"), "line 2: nodes: value '0' should be greater than or equal to 1"),
        (row("X,1", "X,two"), f"line 2: nodes: 'two' {NOT_BARE}"),
        *(
            (row("100,s", f"{value},s"), f"line 2: value: {value!r} {NOT_BARE}")
            for value in ("100 s", "12%", "~1", ">5", "1.91 ± 0.04", "1 234", "n/a", "1_0", "nan")
        ),
    ],
)
def test_a_row_that_cannot_be_read_is_named(tmp_path, text, says):
    path = tmp_path / "published.csv"
    path.write_text(text)
    with pytest.raises(ParbenchError) as caught:
        rows_of(path)
    assert str(caught.value).startswith(f"{path}: {says}")


@pytest.mark.parametrize(
    ("printed", "rounding"), [("100", 0.5), ("1.0e2", 5.0), ("100.00", 0.005), ("+100.", 0.5)]
)
def test_printed_digits_say_how_exact_a_value_is(tmp_path, printed, rounding):
    path = tmp_path / "published.csv"
    path.write_text(f"{HEAD}\n{WHOLE.replace('s,100', f's,{printed}')}")
    assert rows_of(path)[0].rounding == pytest.approx(rounding)


def test_what_is_taken_for_granted_can_be_stated(tmp_path):
    rows = [
        "ddp,X,1,2,test_accuracy,0.81,fraction,0.81,",
        "ddp,X,1,2,test_recall_macro,0.83,fraction,0.83,",
    ]
    assert found(tmp_path, *rows, assumptions=checks.DatasetAssumptions(balanced=False)) == {}
    rows = [
        "ddp,X,1,2,test_recall_macro,0.82,fraction,0.82,",
        "ddp,X,1,2,test_specificity_macro,0.94,fraction,0.94,",
    ]
    assert found(tmp_path, *rows, assumptions=checks.DatasetAssumptions(classes=4)) == {}


def claim(over, under, op=">", **more):
    test = {"metric": "train_seconds", "numerator": over, "denominator": under, "op": op, **more}
    return {"mine": {"study": "paper", "claim": "It is so.", "test": test}}


FASTER = {"strategy": "eager"}, {"strategy": "ddp", "devices": 2}
PROMISED = "promised above its devices"


@pytest.mark.parametrize(
    ("claims", "seconds", "finds"),
    [
        (claim(*FASTER), 80, []),
        (claim(*FASTER), 100, []),  # rounded to seconds: the ratio may be 1.01
        (claim(*FASTER), 125, ["denied by its own numbers"]),
        (claim(*FASTER, op="<"), 80, ["denied by its own numbers"]),
        (claim(*FASTER, op="<"), 125, []),
        (claim(*FASTER, about={"model": "another"}), 125, []),
        (claim(FASTER[0], {"strategy": "ddp", "devices": 4}), 125, []),  # no number for 4
        (claim(*FASTER, size=3), 80, [PROMISED]),
        (claim(*FASTER, size=[1.8, 3]), 80, []),
        (claim(*FASTER, size=1.5), 80, []),
        (claim(*FASTER, size=1.5, bound=1.25), 80, [PROMISED]),
        (claim(FASTER[1], FASTER[0], op="<", size=0.3), 80, [PROMISED]),
        ({"mine": {"study": "paper", "claim": "It is so.", "needs": "a meter"}}, 80, []),
        ({"mine": {"study": "paper", "claim": "So.", "needs": "x", "test": None}}, 80, []),
    ],
)
def test_what_a_source_says_is_held_against_its_numbers(tmp_path, claims, seconds, finds):
    path = tmp_path / "published.csv"
    rows = [ONE, f"ddp,X,1,2,train_seconds,{seconds},s,{seconds},"]
    path.write_text("\n".join([HEAD, *(f"paper,Table 1,net,{row}" for row in rows)]))
    made = checks.of_claims(Claims(claims).root, rows_of(path), checks.DatasetAssumptions())
    assert [finding.check for finding in made] == finds
    assert all(finding.part == ("mine", 0) and finding.lines for finding in made)


def test_a_bound_that_a_claim_states_is_given_with_its_reason(tmp_path):
    path = tmp_path / "published.csv"
    path.write_text(f"{HEAD}\npaper,Table 1,net,{ONE}")
    made = checks.of_claims(
        Claims(claim(*FASTER, size=3, bound=1, note="Each stays on one device.")).root,
        rows_of(path),
        checks.DatasetAssumptions(),
    )
    assert made[0].says.endswith("own devices allow at most 1: Each stays on one device.")
