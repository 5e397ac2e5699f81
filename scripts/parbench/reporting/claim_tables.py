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
from parbench.reporting.table import Cell, Notes, absent, band_cell, interval_cell, make_table
from parbench.reporting.text import (
    ABSENT,
    count,
    decimals,
    hardware_text,
    joined_ends,
    label,
    listed,
    mapping_text,
    ratio_text,
    spread_text,
)
from parbench.verdicts import audit, claims, words
from parbench.verdicts.claims import Comparison, Judged, Rebuilt
from parbench.verdicts.estimates import Estimate
from parbench.verdicts.published import Source

TONES = {words.HOLDS: "good", words.FAILS: "bad"}
OPS = {
    ">": "more than {}",
    "<": "less than {}",
    "within_noise": "1, within noise",
    "report": "told, not judged",
    "largest": "the largest is told, not judged",
    "equal": "1, in every run",
}
LISTED = 4  # comparisons that the first page names one by one
DETAIL = "t-claims-each"
FIRM = "firm: it would stand also if every claim of this report were tested as one"

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
        "“Claims, one by one”: mean ± standard deviation over restarts of pairs that took turns, "
        "or over paired seeds (how many)."
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
    published = _several(*names, [c.published for c in comparisons])
    if tested:
        outcome = Cell(_several(*names, [c.measured for c in comparisons]), link=f"{DETAIL}-h")
    else:
        outcome = Cell(each.reason)
    return [
        Cell(each.claim.study),
        Cell(printable(each.claim.claim)),
        Cell(published) if published else absent("no number"),
        outcome,
        _verdict(each.verdict, notes.mark(each.reason, FIRM * each.firm) if tested else []),
    ]


def _several(models: list[str], names: list[str], values: list[Value]) -> str:
    """``swin 1.30, resnet50 1.44``; of many numbers the range of each model."""
    have = [each for each in zip(models, names, values, strict=True) if each[2] is not None]
    if len(have) <= LISTED or any(isinstance(value, str) for *_, value in have):
        return ", ".join(f"{name} {_text(value)}" for _, name, value in have)
    by_model: dict[str, list[float]] = {}
    for model, _, value in have:
        number = value.mean if isinstance(value, Estimate) else value
        by_model.setdefault(model, []).append(number)
    return ", ".join(f"{model} {_range(numbers)}" for model, numbers in by_model.items())


def _range(numbers: list[float]) -> str:
    return joined_ends(map(ratio_text, (min(numbers), max(numbers))))


def _text(value: Value) -> str:
    """A ratio; of several seeds with its spread, or their range, and how many they are."""
    if not isinstance(value, Estimate):
        return value if isinstance(value, str) else ratio_text(value)
    return f"{spread_text(value, _places(value))} ({value.n})"


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
    columns = ["Test", "Published", "Reproduced", "95 % interval", "Noise", "Verdict"]
    return make_table(
        DETAIL,
        "Claims, one by one",
        [("", ["Claim", "Study", "Compared"]), ("", columns)],
        rows,
        caption="A metric of the first over that of the second, restart by restart of pairs that "
        "took turns, or seed by seed. “Noise” is where a ratio of 1 lies by chance, or what counts "
        "as 1. A claim holds where every comparison that "
        "could be made holds, and does not where one of them is clearly against it.",
        notes=notes,
        empty="No claim of these sources has a test.",
    )


def _comparison_row(judged: Judged, each: Comparison, panels: Panels, notes: Notes) -> list[Cell]:
    test = judged.claim.test
    keys = [judged.name, each.study, _compared(each) or ABSENT]
    op = OPS[test.op].format(mapping_text(test.value))
    over = f" over {label(test.against)}" if test.against else ""
    row = [*map(Cell, keys), Cell(f"{label(test.metric)}{over}: {op}")]
    row.append(absent("no number") if each.published is None else _cell(each.published))
    why = [*each.reasons, f"scaled: {', '.join(each.scaled)}" if each.scaled else ""]
    if each.measured is None:
        row.append(Cell("; ".join(each.reasons), span=3))
        why = []
    else:
        group = each.group or each.ratios[0].over
        row.append(replace(_cell(each.measured), link=panels[each.study, group.id]))
        row += _chance(each)
    return [*row, _verdict(each.verdict, notes.mark(*why, printable(judged.claim.note or "")))]


def _cell(value: Value) -> Cell:
    sort = value.mean if isinstance(value, Estimate) else value
    return Cell(_text(value), sort=None if isinstance(value, str) else sort)


def _chance(each: Comparison) -> list[Cell]:
    """The interval of what was measured, and where a ratio of 1 lies by chance."""
    if isinstance(each.measured, str):
        return [absent("does not apply")] * 2
    even = each.band == claims.EVEN
    noise = absent("none beside the interval") if even else band_cell(each.band)
    return [interval_cell(each.measured, _places(each.measured)), noise]


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
