"""The sources' claims with their verdicts, and contradictions among the published numbers."""

from __future__ import annotations

import itertools
import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from parbench.plan.published import Published
from parbench.plan.published import claims as read_claims
from parbench.plan.published import rows as read_rows
from parbench.printable import printable
from parbench.reporting import claim_figure
from parbench.reporting.claim_figure import Block, Line
from parbench.reporting.study import Study
from parbench.reporting.table import Notes, TableCell, absent, interval_cell, make_table
from parbench.reporting.text import (
    ABSENT,
    count,
    decimals,
    fixed,
    hardware_text,
    label,
    listed,
    mapping_text,
    ratio_text,
    spread_text,
)
from parbench.verdicts import audit, claims, words
from parbench.verdicts.claims import Judged
from parbench.verdicts.comparisons import Comparison, Rebuilt
from parbench.verdicts.groups import Group
from parbench.verdicts.published import PublishedSource
from parbench.verdicts.series import Series

TONES = {words.HOLDS: "good", words.FAILS: "bad"}
OPS = {
    ">": "more than {}",
    "<": "less than {}",
    "within_margin": "equal{}",
    "report": "told, not judged",
    "largest": "the largest is told, not judged",
    "equal": "1, in every run",
}
LISTED = 4  # most lines of a file that a finding names
DETAIL = "t-claims-each"
POINTS = " points"

Value = float | str | Series | None
Panels = dict[tuple[str, str], str | None]  # anchors, by study and group


def section(studies: list[Study], claimed: Path | None, published: list[Path]) -> dict | None:
    """Return the claims, their comparisons one by one, and the audit of the same sources.

    None without ``claimed``, ``published`` or a study that has a source or claims.
    """
    relevant = [study for study in studies if study.has_source or study.study.get("claims")]
    if claimed is None or not published or not relevant:
        return None
    rows_by_path = {path: read_rows(path) for path in published}
    all_rows = list(itertools.chain.from_iterable(rows_by_path.values()))
    all_claims = read_claims(claimed)
    rebuilt = [_rebuilt(study, all_rows) for study in relevant]
    sources = {each.source.name for each in rebuilt}
    granted = audit.Granted()
    findings = []
    for path, rows in rows_by_path.items():
        of_claims = audit.of_claims(all_claims, rows, granted)
        for finding in (*audit.contradictions(rows, granted), *of_claims):
            findings += [(path, finding)] if finding.study in sources else []
    judged = claims.judge(all_claims, rebuilt, [finding for _, finding in findings])
    panels = {(s.name, group.id): s.panel(group) for s in studies for group in s.groups}
    return {
        "sentence": _headline(judged),
        **_first_page(dict(enumerate(judged, 1))),
        "detail": _one_by_one(judged, panels),
        "audit": _audit(findings, granted),
        "terminal": list(_on_a_terminal(judged)),
    }


def _rebuilt(study: Study, published: list[Published]) -> Rebuilt:
    means = {key: row.mean for key, row in study.rows.items() if row.mean is not None}
    source = PublishedSource(study.study["published"], published)
    definition, claimed = study.study, study.study.get("claims", ())
    return Rebuilt(study.name, definition["tolerance"], source, tuple(study.groups), means, claimed)


# ---------------------------------------------------------------- the first page


def _first_page(numbered: dict[int, Judged]) -> dict:
    """Return the figure, with parts per source for ratios and differences, and other claims."""
    by_source: dict[tuple[str, bool], list[tuple[int, Judged]]] = {}
    for number, each in numbered.items():
        by_source.setdefault((each.claim.study, _is_of_points(each)), []).append((number, each))
    numbers_drawn, parts = set(), []
    sources = list(dict.fromkeys(source for source, _ in by_source))
    ordered = sorted(by_source.items(), key=lambda item: (sources.index(item[0][0]), item[0][1]))
    for (source, points), source_claims in ordered:
        names = list(dict.fromkeys(c.study for _, each in source_claims for c in each.comparisons))
        letters = dict(zip(names, string.ascii_uppercase, strict=False)) if len(names) > 1 else {}
        blocks = [_block(number, each, letters, points) for number, each in source_claims]
        blocks = [block for block in blocks if block.lines]
        numbers_drawn |= {block.number for block in blocks}
        if blocks:
            head = [source + ", scores" * points]
            head += [f"{letter} {name}" for name, letter in letters.items()]
            parts.append(claim_figure.part(head, blocks, points))
    return {
        "figure": {
            "id": "f-claims",
            "title": "What the sources claim, and what was found here",
            "caption": claim_figure.CAPTION,
            "columns": 1,
            "parts": [claim_figure.key(), *parts] if parts else [],
        },
        "table": make_table(
            "t-claims",
            "Claims that no number answers",
            [("", ["No.", "Source", "Claim"]), ("", ["What came out here", "Verdict"])],
            [_told_row(n, each) for n, each in numbered.items() if n not in numbers_drawn],
            empty="None.",
        ),
    }


def _headline(judged: list[Judged]) -> str:
    """Count the claims by verdict; say what the others lack."""
    if not judged:
        return "The sources of this report make no claim that is known."
    counts = Counter(each.verdict for each in judged)
    totals = [f"{n} {_says(word, n)}" for word in words.CLAIM_VERDICTS[:-1] if (n := counts[word])]
    tested = len(judged) - counts[words.UNTESTED]
    text = (
        f"{tested} of {count(len(judged), 'claim')} can be tested here: {listed(totals) or 'none'}."
    )
    lacks = Counter(_lacks(each)[0] for each in judged if each.verdict == words.UNTESTED)
    if lacks:
        text += f" Of the others: {'; '.join(f'{why} ({n})' for why, n in lacks.items())}."
    if any(comparison.scaled for each in judged for comparison in each.comparisons):
        text += " What is measured here is smaller than what the sources measured."
    return text


def _says(verdict: str, number: int) -> str:
    """Return the verb: ``holds`` for 1, ``hold`` for 2."""
    singular, plural = {
        words.HOLDS: ("holds", "hold"),
        words.FAILS: ("does not", "do not"),
        words.UNDECIDED: ("is undecided", "are undecided"),
        words.REPORTED: ("is told and not judged", "are told and not judged"),
    }[verdict]
    return singular if number == 1 else plural


def _lacks(each: Judged) -> tuple[str, str]:
    """Return what a claim that cannot be tested lacks, in short and in full."""
    reasons = [r.removeprefix(f"{c.study} has ") for c in each.comparisons for r in c.reasons]
    text = "; ".join(dict.fromkeys(reasons)) or each.reason
    return re.split("[:;]", re.sub(r" \(.*?\)", "", text))[0], text


def _block(number: int, each: Judged, letters: dict[str, str], points: bool) -> Block:
    """Return a claim as drawn; ``letters`` mark the studies where there are several."""
    lines = []
    for study in dict.fromkeys(c.study for c in each.comparisons):
        comparisons = [c for c in each.comparisons if c.study == study and claim_figure.shown(c)]
        labels = (f"{letters.get(study, '')} {text}".strip() for text in _labels(comparisons))
        lines += map(Line, labels, comparisons, [_spoken(c, points) for c in comparisons])
    return Block(number, each, _test(each) if lines else "", tuple(lines))


def _spoken(each: Comparison, points: bool) -> str:
    text = f"{each.verdict}, {_text(each.measured.mean, points)}"
    interval = _interval(each.measured, points)
    text += f" ({interval.text})" if not interval.spoken else ""
    return text + (
        f", published {_text(each.published, points)}" if each.published is not None else ""
    )


def _test(judged: Judged) -> str:
    """Return the test in words: ``Training time, eager over horovod: more than 1``."""
    test = judged.claim.test
    margin = f" within {test.margin:g}" if test.margin else ""
    op = OPS[test.op].format(margin if test.op == "within_margin" else mapping_text(test.value))
    if test.op == "equal":
        return f"{label(test.metric)} over {label(test.against)}: {op}"
    sides = [
        " or ".join(
            dict.fromkeys(pair[n].variant for c in judged.comparisons for pair in _sides(c))
        )
        for n in (0, 1)
    ]
    selections = (test.numerator, test.denominator)
    names = (
        side if side.count(" or ") < 3 else str(selection)
        for side, selection in zip(sides, selections, strict=True)
    )
    separator = " less " if test.is_of_differences else " over "
    return f"{label(test.metric)}, {separator.join(names)}: {op}"


def _sides(each: Comparison) -> list[tuple[Group, Group]]:
    return [(ratio.over, ratio.under) for ratio in each.ratios]


def _told_row(number: int, each: Judged) -> list[TableCell]:
    measured = [c for c in each.comparisons if c.measured is not None]
    lacks = _lacks(each)[1] if each.verdict == words.UNTESTED else each.reason
    return [
        TableCell(str(number), sort=number),
        TableCell(each.claim.study),
        TableCell(printable(each.claim.claim)),
        TableCell("; ".join(f"{_model(c)}: {c.measured}" for c in measured) or lacks),
        _verdict(each.verdict, ()),
    ]


def _is_of_points(each: Judged) -> bool:
    return each.claim.test is not None and each.claim.test.is_of_differences


def _text(value: Value, points: bool) -> str:
    """Format a ratio, or points; a series with spread or range, and number of values."""
    if isinstance(value, str):
        return value
    if isinstance(value, Series):
        spread = spread_text(value, 2 if points else _places(value), 100.0 if points else 1.0)
        return f"{spread}{POINTS * points} ({value.seeds})"
    return f"{fixed(100 * value, 2)}{POINTS}" if points else ratio_text(value)


def _places(value: Series) -> int:
    return decimals([value.mean], "x", [value.std])


def _verdict(verdict: str, marks: Sequence[str]) -> TableCell:
    return TableCell(verdict, tone=TONES.get(verdict, "plain"), verdict=verdict, marks=marks)


def _labels(comparisons: list[Comparison]) -> list[str]:
    """Return the shortest labels that tell a claim's comparisons apart."""
    ways: list[Callable[[Comparison], str]] = [
        _model,
        lambda each: f"{_model(each)} {_variant(each, 0)}",
        lambda each: f"{_model(each)} {_variant(each, 1)}",
        lambda each: f"{_model(each)} {_variant(each, 0)} over {_variant(each, 1)}",
        lambda each: f"{each.study}: {_compared(each)}",
    ]
    choices = [list(map(way, comparisons)) for way in ways]
    return next((labels for labels in choices if len(set(labels)) == len(labels)), choices[-1])


def _model(each: Comparison) -> str:
    if each.group is not None:
        model = each.group.model
        if isinstance(each.published, float):
            return model
        return f"{model} on {hardware_text(each.group.hardware)}"  # the largest part depends on it
    return " over ".join(ratio.over.model for ratio in each.ratios)


def _variant(each: Comparison, side: int) -> str:
    if each.group is not None:
        return each.group.variant
    return " and ".join((ratio.over, ratio.under)[side].variant for ratio in each.ratios)


def _compared(each: Comparison) -> str:
    """Return the sides in words: ``swin: eager over ddp``."""
    if each.group is not None:
        return f"{_model(each)}, {each.group.variant}"
    return ", over ".join(
        f"{ratio.over.model}: {ratio.over.variant} over {ratio.under.variant}"
        for ratio in each.ratios
    )


def _on_a_terminal(judged: list[Judged]) -> Iterator[list[str]]:
    """Yield a head, then the fields of each comparison."""
    yield ["claim", "compared", "published", "here", "95 % interval", "bound", "verdict"]
    for claim in judged:
        for each in claim.comparisons:
            numbers = [cell.text for cell in _numbers(each, _is_of_points(claim))]
            bound = ABSENT if each.bound is None else ratio_text(each.bound)
            with_reason = each.verdict in (words.UNDECIDED, words.UNTESTED)
            verdict = f"{each.verdict}: {each.reasons[-1]}" if with_reason else each.verdict
            fields = [claim.name, _compared(each), *numbers, bound, verdict]
            yield list(map(printable, fields))


# ---------------------------------------------------------------- one by one


def _one_by_one(judged: list[Judged], panels: Panels) -> dict:
    notes = Notes()
    rows = [
        _comparison_row(number, claim, comparison, panels, notes)
        for number, claim in enumerate(judged, 1)
        for comparison in claim.comparisons
        if comparison.ratios or comparison.group
    ]
    columns = ["Published", "Reproduced", "95 % interval", "Published lies", "Verdict"]
    return make_table(
        DETAIL,
        "What each verdict rests on",
        [("", ["No.", "Compared"]), ("", columns)],
        rows,
        caption="Numbered as above: the claim's metric of the first side over that of the "
        "second, by restart of pairs measured in turn, or by seed (their number in "
        "brackets); for scores, the first minus the second. A claim holds if every "
        "comparison that could be made holds, and does not hold if one of them is "
        "clearly against it, or all are. Where the published number lies decides "
        "nothing.",
        notes=notes,
        empty="No claim of these sources has a test.",
    )


def _comparison_row(
    number: int, judged: Judged, each: Comparison, panels: Panels, notes: Notes
) -> list[TableCell]:
    points, reasons = _is_of_points(judged), each.reasons
    several = len({c.study for c in judged.comparisons}) > 1
    compared = f"{each.study}, {_compared(each)}" if several else _compared(each)
    row = [TableCell(str(number), sort=number), TableCell(compared), *_numbers(each, points)]
    if each.measured is not None:
        group = each.group or each.ratios[0].over
        row[3] = replace(row[3], link=panels[each.study, group.id])
    row.append(TableCell(each.position) if each.position else absent("nothing to compare"))
    if each.position == words.NOT_COMPARABLE:
        reasons = (*reasons, each.says)
    return [*row, _verdict(each.verdict, notes.mark(*reasons, printable(judged.claim.note or "")))]


def _numbers(each: Comparison, points: bool) -> list[TableCell]:
    """Return the published and measured values and the interval."""
    published = absent("no number") if each.published is None else _cell(each.published, points)
    if each.measured is None:
        return [published, absent("nothing to compare"), absent("nothing to compare")]
    return [published, _cell(each.measured, points), _interval(each.measured, points)]


def _cell(value: Value, points: bool) -> TableCell:
    sort = value.mean if isinstance(value, Series) else value
    return TableCell(_text(value, points), sort=None if isinstance(value, str) else sort)


def _interval(measured: Series | str, points: bool) -> TableCell:
    if isinstance(measured, str):
        return absent("does not apply")
    return interval_cell(measured, 2, 100) if points else interval_cell(measured, _places(measured))


# ---------------------------------------------------------------- published alone


def _audit(found: list[tuple[Path, audit.Contradiction]], granted: audit.Granted) -> dict:
    rows = [
        [
            TableCell(printable(finding.study)),
            TableCell(finding.check),
            TableCell(finding.sure),
            TableCell(printable(finding.says)),
            TableCell(f"{path.name}, {_lines(finding.lines)}"),
        ]
        for path, finding in found
    ]
    return make_table(
        "t-audit",
        "What the published numbers alone contradict",
        [("", ["Source", "Check"]), ("", ["How sure", "Finding", "Where"])],
        rows,
        caption="By arithmetic alone, without training: questions to the authors, not verdicts. "
        "Certain: one of the numbers is wrong, whatever was run; likely: unless another clock, "
        "other work or a run that is not printed explains it; weak: it may be chance. "
        f"Assumed: {granted.classes} classes, {granted.train_samples:,} training "
        "samples, and a test set with as many samples of each class.",
        empty="Nothing: the published numbers agree with each other.",
    )


def _lines(lines: tuple[int, ...]) -> str:
    shown = list(map(str, lines[:LISTED])) + ["..."] * (len(lines) > LISTED)
    return f"line {shown[0]}" if len(shown) == 1 else f"lines {', '.join(shown)}"
