"""The sources' claims with their verdicts, and what the published numbers alone contradict."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from parbench.plan.published import Published
from parbench.plan.published import claims as read_claims
from parbench.plan.published import rows as read_rows
from parbench.printable import printable
from parbench.reporting.study import Study
from parbench.reporting.table import Cell, Notes, absent, interval_cell, make_table
from parbench.reporting.text import (
    ABSENT,
    count,
    decimals,
    fixed,
    hardware_text,
    joined_ends,
    label,
    listed,
    mapping_text,
    ratio_text,
    spread_text,
)
from parbench.verdicts import audit, claims, words
from parbench.verdicts.claims import Judged
from parbench.verdicts.comparisons import Comparison, Rebuilt
from parbench.verdicts.estimates import Estimate
from parbench.verdicts.published import Source

TONES = {words.HOLDS: "good", words.FAILS: "bad"}
OPS = {
    ">": "more than {}",
    "<": "less than {}",
    "within_margin": "equal{}",
    "report": "told, not judged",
    "largest": "the largest is told, not judged",
    "equal": "1, in every run",
}
LISTED = 4  # comparisons that the first page names one by one
DETAIL = "t-claims-each"
FIRM = "firm: it would stand also if every claim of this report were tested as one"

POINTS = " points"

Value = float | str | Estimate | None
Panels = dict[tuple[str, str], str | None]  # by study and group


def section(studies: list[Study], claimed: Path | None, published: list[Path]) -> dict | None:
    """The table of claims, its comparisons one by one, and the audit of the same sources.

    None without ``claimed`` or without a study that is asked any.
    """
    asked = [study for study in studies if study.has_source or study.study.get("claims")]
    if claimed is None or not published or not asked:
        return None
    rows = {path: read_rows(path) for path in published}
    of_all = list(itertools.chain.from_iterable(rows.values()))
    all_claims = read_claims(claimed)
    rebuilt = [_rebuilt(study, of_all) for study in asked]
    sources = {each.source.name for each in rebuilt}
    task = audit.Task()
    found = []
    for path, own in rows.items():
        said = audit.of_claims(all_claims, own)
        for each in (*audit.contradictions(own, task), *said):
            found += [(path, each)] if each.study in sources else []
    judged = claims.judge(all_claims, rebuilt, [each for _, each in found])
    panels = {(s.name, group.id): s.panel(group) for s in studies for group in s.groups}
    return {
        "table": _first_page(judged),
        "detail": _one_by_one(judged, panels),
        "audit": _audit(found, task),
    }


def _rebuilt(study: Study, published: list[Published]) -> Rebuilt:
    means = {key: row.mean for key, row in study.rows.items() if row.mean is not None}
    source = Source(study.study["published"], published)
    about, claimed = study.study, study.study.get("claims", ())
    return Rebuilt(study.name, about["tolerance"], source, tuple(study.groups), means, claimed)


# ---------------------------------------------------------------- the first page


def _first_page(judged: list[Judged]) -> dict:
    notes, counts = Notes(), Counter(each.verdict for each in judged)
    told = listed([f"{counts[name]} {name}" for name in words.CLAIM_VERDICTS if counts[name]])
    return make_table(
        "t-claims",
        "What the sources claim",
        [("", ["Source", "Claim"]), ("", ["Published", "Reproduced", "Verdict"])],
        [_claim_row(each, notes) for each in judged],
        caption=f"{count(len(judged), 'claim')}: {told}. Numbers are ratios, each named under "
        "“Claims, one by one”, of scores differences in percentage points: mean ± standard "
        "deviation over restarts of pairs that took turns, or over paired seeds (how many)."
        if judged
        else "",
        notes=notes,
        empty="The sources of this report make no claim that is known.",
    )


def _claim_row(each: Judged, notes: Notes) -> list[Cell]:
    tested = {c.study for c in each.comparisons if c.verdict != words.UNTESTED}
    # Of several studies, those that could test it; else the first, for the published number.
    shown = tested or {c.study for c in each.comparisons[:1]}
    comparisons = [c for c in each.comparisons if c.study in shown]
    names = list(map(_model, comparisons)), _labels(comparisons)
    points = _is_of_points(each)
    published = _several(*names, [c.published for c in comparisons], points)
    if tested:
        found = _several(*names, [c.measured for c in comparisons], points)
        outcome = Cell(found, link=f"{DETAIL}-h")
    else:
        outcome = Cell(each.reason)
    return [
        Cell(each.claim.study),
        Cell(printable(each.claim.claim)),
        Cell(published) if published else absent("no number"),
        outcome,
        _verdict(each.verdict, notes.mark(each.reason, FIRM * each.firm) if tested else []),
    ]


def _is_of_points(each: Judged) -> bool:
    return each.claim.test is not None and each.claim.test.is_of_differences


def _several(models: list[str], names: list[str], values: list[Value], points: bool) -> str:
    """``swin 1.30, resnet50 1.44``; of many numbers the range of each model."""
    have = [each for each in zip(models, names, values, strict=True) if each[2] is not None]
    if len(have) <= LISTED or any(isinstance(value, str) for *_, value in have):
        return ", ".join(f"{name} {_text(value, points)}" for _, name, value in have)
    by_model: dict[str, list[float]] = {}
    for model, _, value in have:
        number = value.mean if isinstance(value, Estimate) else value
        by_model.setdefault(model, []).append(number)
    return ", ".join(f"{model} {_range(each, points)}" for model, each in by_model.items())


def _range(numbers: list[float], points: bool) -> str:
    return joined_ends(_text(end, points) for end in (min(numbers), max(numbers)))


def _text(value: Value, points: bool) -> str:
    """A ratio, or points; of several seeds with its spread, or their range, and how many."""
    if isinstance(value, str):
        return value
    if isinstance(value, Estimate):
        spread = spread_text(value, 2 if points else _places(value), 100.0 if points else 1.0)
        return f"{spread}{POINTS * points} ({value.n})"
    return f"{fixed(100 * value, 2)}{POINTS}" if points else ratio_text(value)


def _places(value: Estimate) -> int:
    return decimals([value.mean], "x", [value.std])


def _verdict(verdict: str, marks: Sequence[str]) -> Cell:
    return Cell(verdict, tone=TONES.get(verdict, "plain"), verdict=verdict, marks=marks)


def _labels(comparisons: list[Comparison]) -> list[str]:
    """What tells the comparisons of a claim apart, in as few words as will do."""
    ways: list[Callable[[Comparison], str]] = [
        _model,
        lambda each: f"{_model(each)} {_variant(each, 0)}",
        lambda each: f"{_model(each)} {_variant(each, 1)}",
        lambda each: f"{_model(each)} {_variant(each, 0)} over {_variant(each, 1)}",
        lambda each: f"{each.study}: {_compared(each)}",
    ]
    labels = [list(map(way, comparisons)) for way in ways]
    return next((each for each in labels if len(set(each)) == len(each)), labels[-1])


def _model(each: Comparison) -> str:
    if each.group is not None:
        model = each.group.model
        if isinstance(each.published, float):
            return model
        return f"{model} on {hardware_text(each.group.hardware)}"  # whose word it is
    return " over ".join(ratio.over.model for ratio in each.ratios)


def _variant(each: Comparison, side: int) -> str:
    if each.group is not None:
        return each.group.variant
    return " and ".join((ratio.over, ratio.under)[side].variant for ratio in each.ratios)


def _compared(each: Comparison) -> str:
    """In words: ``swin: eager over ddp``."""
    if each.group is not None:
        return f"{_model(each)}, {each.group.variant}"
    return ", over ".join(
        f"{ratio.over.model}: {ratio.over.variant} over {ratio.under.variant}"
        for ratio in each.ratios
    )


# ---------------------------------------------------------------- one by one


def _one_by_one(judged: list[Judged], panels: Panels) -> dict:
    notes = Notes()
    rows = [
        _comparison_row(each, comparison, panels, notes)
        for each in judged
        for comparison in each.comparisons
    ]
    columns = ["Test", "Published", "Reproduced", "95 % interval", "Published lies", "Verdict"]
    return make_table(
        DETAIL,
        "Claims, one by one",
        [("", ["Claim", "Study", "Compared"]), ("", columns)],
        rows,
        caption="A metric of the first over that of the second, restart by restart of pairs that "
        "took turns, or seed by seed; of scores, the first less the second. A claim holds where "
        "every comparison that could be made holds, and does not where one of them is clearly "
        "against it; where the published number lies decides nothing.",
        notes=notes,
        empty="No claim of these sources has a test.",
    )


def _comparison_row(judged: Judged, each: Comparison, panels: Panels, notes: Notes) -> list[Cell]:
    test, points = judged.claim.test, _is_of_points(judged)
    keys = [judged.name, each.study, _compared(each) or ABSENT]
    margin = f" within {test.margin:g}" if test.margin else ""
    op = OPS[test.op].format(margin if test.op == "within_margin" else mapping_text(test.value))
    over = f" over {label(test.against)}" if test.against else ""
    row = [*map(Cell, keys), Cell(f"{label(test.metric)}{over}: {op}")]
    published = absent("no number") if each.published is None else _cell(each.published, points)
    why = [*each.reasons, f"scaled: {', '.join(each.scaled)}" if each.scaled else ""]
    row.append(published)
    if each.measured is None:
        row.append(Cell("; ".join(each.reasons), span=3))
        why = []
    else:
        group = each.group or each.ratios[0].over
        row.append(replace(_cell(each.measured, points), link=panels[each.study, group.id]))
        row.append(_interval(each.measured, points))
        beside = each.beside
        why.append(beside.says if beside else "")
        row.append(Cell(beside.lies) if beside else absent("nothing to compare"))
    return [*row, _verdict(each.verdict, notes.mark(*why, printable(judged.claim.note or "")))]


def _cell(value: Value, points: bool) -> Cell:
    sort = value.mean if isinstance(value, Estimate) else value
    return Cell(_text(value, points), sort=None if isinstance(value, str) else sort)


def _interval(measured: Estimate | str, points: bool) -> Cell:
    if isinstance(measured, str):
        return absent("does not apply")
    if not points:
        return interval_cell(measured, _places(measured))
    ends = {"ci_low": 100 * measured.ci_low, "ci_high": 100 * measured.ci_high}
    return interval_cell(replace(measured, **ends), 2)


# ---------------------------------------------------------------- published alone


def _audit(found: list[tuple[Path, audit.Contradiction]], task: audit.Task) -> dict:
    rows = [
        [
            Cell(printable(finding.study)),
            Cell(finding.check),
            Cell(finding.sure),
            Cell(printable(finding.says)),
            Cell(f"{path.name}, {_lines(finding.lines)}"),
        ]
        for path, finding in found
    ]
    return make_table(
        "t-audit",
        "What the published numbers alone contradict",
        [("", ["Source", "Check"]), ("", ["How sure", "Finding", "Where"])],
        rows,
        caption="Arithmetic alone, without training: a question to the authors and no verdict. "
        "Certain: one of the numbers is wrong, whatever was run; likely: it takes another clock, "
        "other work or a run that is not printed; weak: it may be chance. "
        f"Taken for granted: {task.classes} classes, {task.train_samples:,} training samples, and "
        "a test set with as many samples of each class.",
        empty="Nothing: the published numbers agree with each other.",
    )


def _lines(lines: tuple[int, ...]) -> str:
    shown = list(map(str, lines[:LISTED])) + ["..."] * (len(lines) > LISTED)
    return f"line {shown[0]}" if len(shown) == 1 else f"lines {', '.join(shown)}"
