"""The sources' claims with their verdicts, and what the published numbers alone contradict."""

from __future__ import annotations

import itertools
import string
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from parbench.plan.published import Published
from parbench.plan.published import claims as read_claims
from parbench.plan.published import rows as read_rows
from parbench.printable import printable
from parbench.reporting import claim_figure
from parbench.reporting.claim_figure import Block, Line
from parbench.reporting.study import Study
from parbench.reporting.table import Cell, Notes, absent, band_cell, interval_cell, make_table
from parbench.reporting.text import (
    count,
    decimals,
    hardware_text,
    label,
    listed,
    mapping_text,
    ratio_text,
    spread_text,
)
from parbench.verdicts import audit, claims, words
from parbench.verdicts.claims import Comparison, Judged, Rebuilt
from parbench.verdicts.estimates import Estimate
from parbench.verdicts.groups import Group
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
LISTED = 4  # lines of a file that a finding names
DETAIL = "t-claims-each"

Value = float | str | Estimate | None
Panels = dict[tuple[str, str], str | None]  # by study and group


def section(studies: list[Study], claimed: Path | None, published: list[Path]) -> dict | None:
    """The table of claims, its comparisons one by one, and the audit of the same sources.

    None without ``claimed`` or without a study that has a source.
    """
    with_source = [study for study in studies if study.has_source]
    if claimed is None or not published or not with_source:
        return None
    rows = {path: read_rows(path) for path in published}
    of_all = list(itertools.chain.from_iterable(rows.values()))
    all_claims = read_claims(claimed)
    rebuilt: dict[str, list[Rebuilt]] = {}
    for study in with_source:
        rebuilt.setdefault(study.study["published"], []).append(_rebuilt(study, of_all))
    task = audit.Task()
    found = []
    for path, own in rows.items():
        said = audit.of_claims(all_claims, own)
        for each in (*audit.contradictions(own, task), *said):
            found += [(path, each)] if each.study in rebuilt else []
    judged = claims.judge(all_claims, rebuilt, [each for _, each in found])
    panels = {(s.name, group.id): s.panel(group) for s in studies for group in s.groups}
    numbered = dict(enumerate(judged, 1))
    blocks = {n: _block(n, each, rebuilt[each.claim.study]) for n, each in numbered.items()}
    drawn = {number: block for number, block in blocks.items() if block.lines}
    by_source: dict[str, list[Block]] = {}
    for block in drawn.values():
        by_source.setdefault(block.judged.claim.study, []).append(block)
    parts = [
        claim_figure.part(_named(source, rebuilt[source]), each)
        for source, each in by_source.items()
    ]
    return {
        "sentence": _headline(judged),
        "figure": {
            "id": "f-claims",
            "title": "What the sources claim, and what came out here",
            "caption": claim_figure.CAPTION,
            "columns": 1,
            "parts": [claim_figure.key(), *parts] if parts else [],
        },
        "table": _told(numbered, drawn),
        "detail": _one_by_one(numbered, panels),
        "audit": _audit(found, task),
    }


def _rebuilt(study: Study, published: list[Published]) -> Rebuilt:
    means = {key: row.mean for key, row in study.rows.items() if row.mean is not None}
    source = Source(study.study["published"], published)
    return Rebuilt(study.name, study.study["tolerance"], source, tuple(study.groups), means)


# ---------------------------------------------------------------- the first page


def _headline(judged: list[Judged]) -> str:
    """What claims can be judged, and what the others lack."""
    if not judged:
        return "The sources of this report make no claim that is known."
    counts = Counter(each.verdict for each in judged)
    told = [f"{n} {_says(word, n)}" for word in words.CLAIM_VERDICTS[:-1] if (n := counts[word])]
    tested = len(judged) - counts[words.UNTESTED]
    text = (
        f"{tested} of {count(len(judged), 'claim')} can be tested here: {listed(told) or 'none'}."
    )
    lacks = Counter(_lacks(each)[0] for each in judged if each.verdict == words.UNTESTED)
    if lacks:
        text += f" Of the others: {'; '.join(f'{why} ({n})' for why, n in lacks.items())}."
    return text


def _says(verdict: str, number: int) -> str:
    """``1 holds``, ``2 do not hold``."""
    one, several = {
        words.HOLDS: ("holds", "hold"),
        words.FAILS: ("does not", "do not"),
        words.UNDECIDED: ("is undecided", "are undecided"),
        words.REPORTED: ("is told and not judged", "are told and not judged"),
    }[verdict]
    return one if number == 1 else several


def _lacks(each: Judged) -> tuple[str, str]:
    """What a claim that can't be tested lacks, and why it would take that."""
    reasons = [reason.removeprefix(f"{c.study} ") for c in each.comparisons for reason in c.reasons]
    text = "; ".join(dict.fromkeys(reasons)) or each.reason
    return text.partition(":")[0], text


def _block(number: int, each: Judged, studies: list[Rebuilt]) -> Block:
    """What is drawn of a claim; of several studies, each is told by its letter."""
    lines = []
    for letter, study in zip(string.ascii_uppercase, studies, strict=False):
        drawn = [c for c in each.comparisons if c.study == study.name and claim_figure.shown(c)]
        before = f"{letter} " if len(studies) > 1 else ""
        labels = (f"{before}{text}" for text in _labels(drawn))
        lines += [Line(text, c) for text, c in zip(labels, drawn, strict=True)]
    return Block(number, each, _test(each) if lines else "", tuple(lines))


def _named(source: str, studies: list[Rebuilt]) -> str:
    """A source, with the letters of its studies where there are several."""
    if len(studies) == 1:
        return source
    named = zip(string.ascii_uppercase, studies, strict=False)
    return f"{source}: {', '.join(f'{letter} {study.name}' for letter, study in named)}"


def _test(judged: Judged) -> str:
    """``Training time, eager over horovod: more than 1``."""
    test = judged.claim.test
    op = OPS[test.op].format(mapping_text(test.value))
    if test.op == "equal":
        return f"{label(test.metric)} over {label(test.against)}: {op}"
    sides = [
        " or ".join(
            dict.fromkeys(pair[n].variant for c in judged.comparisons for pair in _sides(c))
        )
        for n in (0, 1)
    ]
    named = (test.numerator, test.denominator)
    told = (s if s.count(" or ") < 3 else str(n) for s, n in zip(sides, named, strict=True))
    return f"{label(test.metric)}, {' over '.join(told)}: {op}"


def _sides(each: Comparison) -> list[tuple[Group, Group]]:
    return [(ratio.over, ratio.under) for ratio in each.ratios]


def _told(numbered: dict[int, Judged], drawn: Collection[int]) -> dict:
    """The claims without a ratio to draw."""
    return make_table(
        "t-claims",
        "Claims that no ratio answers",
        [("", ["No.", "Source", "Claim"]), ("", ["Published", "What came out here", "Verdict"])],
        [_told_row(n, each) for n, each in numbered.items() if n not in drawn],
        empty="None.",
    )


def _told_row(number: int, each: Judged) -> list[Cell]:
    comparisons = [c for c in each.comparisons if c.verdict != words.UNTESTED]
    outcome = [f"{_model(c)}: {c.measured}" for c in comparisons if c.measured is not None]
    named = [f"{_model(c)}: {_text(c.published)}" for c in each.comparisons if c.published]
    lacks = _lacks(each)[1] if each.verdict == words.UNTESTED else each.reason
    return [
        Cell(str(number), sort=number),
        Cell(each.claim.study),
        Cell(printable(each.claim.claim)),
        Cell("; ".join(named)) if named else absent("no number"),
        Cell("; ".join(outcome) or lacks),
        _verdict(each.verdict, ()),
    ]


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


def _one_by_one(numbered: dict[int, Judged], panels: Panels) -> dict:
    notes = Notes()
    rows = [
        _comparison_row(number, each, comparison, panels, notes)
        for number, each in numbered.items()
        for comparison in each.comparisons
        if comparison.ratios or comparison.group
    ]
    columns = ["Published", "Reproduced", "95 % interval", "Noise", "Verdict"]
    return make_table(
        DETAIL,
        "What each verdict rests on",
        [("", ["No.", "Compared"]), ("", columns)],
        rows,
        caption="By the claim's number above: its metric of the first over that of the second, "
        "restart by restart of pairs that took turns, or seed by seed (how many). “Noise” is where "
        "a ratio of 1 lies by chance, or what counts as 1. A claim holds where every comparison "
        "that could be made holds, and does not where one of them is clearly against it.",
        notes=notes,
        empty="No claim of these sources has a test.",
    )


def _comparison_row(
    number: int, judged: Judged, each: Comparison, panels: Panels, notes: Notes
) -> list[Cell]:
    several = len({c.study for c in judged.comparisons}) > 1
    compared = f"{each.study}, {_compared(each)}" if several else _compared(each)
    row = [Cell(str(number), sort=number), Cell(compared)]
    row.append(absent("no number") if each.published is None else _cell(each.published))
    why = each.reasons
    if each.measured is None:
        row += [absent("nothing to compare")] * 3
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
