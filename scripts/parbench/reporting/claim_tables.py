"""The sources' claims with their verdicts, and contradictions among the published numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypedDict

from parbench.audit import checks
from parbench.plan.published import Published
from parbench.plan.published import claims as read_claims
from parbench.plan.published import rows as read_rows
from parbench.printable import printable
from parbench.reporting import claim_figure, claim_headline, glossary
from parbench.reporting.claim_figure import ClaimBlock, ClaimLine
from parbench.reporting.drawing import FigureEntry
from parbench.reporting.study_results import StudyResults
from parbench.reporting.table import Notes, TableCell, TableEntry, absent, interval_cell, make_table
from parbench.reporting.text import (
    ABSENT,
    decimals,
    fixed,
    hardware_text,
    label,
    machine_text,
    spread_text,
)
from parbench.verdicts import claims, terms
from parbench.verdicts.claims import Judged, JudgedPart
from parbench.verdicts.claims_json import range_text
from parbench.verdicts.comparisons import ClaimBasis, Comparison, Ratio
from parbench.verdicts.groups import Group, machines_of
from parbench.verdicts.matching import PublishedSource
from parbench.verdicts.ratios import ratio_text
from parbench.verdicts.sequential import Series

TONES = {
    **dict.fromkeys((terms.HOLDS, terms.AS_CLAIMED, terms.AS_PUBLISHED), "good"),
    **dict.fromkeys((terms.HOLDS_IN_DIRECTION, terms.HOLDS_IN_PART), "warn"),
    **dict.fromkeys((terms.FAILS, *terms.AGAINST_SOURCE, *terms.REFUTED), "bad"),
}
OPS = {">": "above {}", "<": "below {}", "same": "the same{}", "report": "reported, not judged"}
SHORT = (terms.UNDECIDED, terms.REPORTED)  # for these, the matrix shows only the sentence
LISTED = 4  # most lines of a file that a finding names
DETAIL = "t-claims-each"
RULED_OUT_BUT = "{}; here {}"
POINTS = " points"
MOST_PLACES = 5


class FirstPage(TypedDict):
    """A figure of the claims with numbers, and a table of the others."""

    figure: FigureEntry
    table: TableEntry


class ClaimsSection(FirstPage):
    """The report's section on claims; ``terminal``: rows of the summary at the end of a run."""

    sentence: str
    matrix: TableEntry | None
    detail: TableEntry
    audit: TableEntry
    terminal: list[list[str]]


Value = float | tuple[float, ...] | Series
Panels = dict[tuple[str, str], str | None]  # anchors, by study and group


def section(
    studies: list[StudyResults], claimed: Sequence[Path], published: list[Path]
) -> tuple[ClaimsSection | None, list[Judged]]:
    """Return the section with the claims, their comparisons one by one, and the audit of the
    studies' sources and of those whose claims they test; and the claims as records.

    None, and no records, without ``claimed``, ``published`` or a study that has a source or claims.
    """
    relevant = [study for study in studies if study.has_source or study.study.claims]
    if not claimed or not published or not relevant:
        return None, []
    rows_by_path = {path: read_rows(path) for path in published}
    all_rows = list(itertools.chain.from_iterable(rows_by_path.values()))
    all_claims = read_claims(*claimed)
    bases = [_claim_basis(study, all_rows) for study in relevant]
    assumptions = checks.DatasetAssumptions()
    findings = [
        (path, finding)
        for path, rows in rows_by_path.items()
        for finding in checks.findings(rows, all_claims, assumptions)
    ]
    judged = claims.judge(all_claims, bases, [finding for _, finding in findings])
    sources = {each.source.name for each in bases} | {each.claim.study for each in judged}
    known = {name for name, claim in all_claims.items() if claim.study in sources}
    others = known.difference(each.name for each in judged)
    panels = {(s.name, group.id): s.panel(group) for s in studies for group in s.groups}
    first_page = _first_page(dict(enumerate(judged, 1)))
    made: ClaimsSection = {
        "sentence": claim_headline.headline(judged, len(others)),
        "matrix": _matrix(judged, studies),
        "figure": first_page["figure"],
        "table": first_page["table"],
        "detail": _one_by_one(judged, panels),
        "audit": _audit([each for each in findings if each[1].study in sources], assumptions),
        "terminal": list(_on_a_terminal(judged)),
    }
    return made, judged


def _claim_basis(study: StudyResults, published: list[Published]) -> ClaimBasis:
    means = {key: row.mean for key, row in study.rows.items() if row.mean is not None}
    source = PublishedSource(study.study.published, published)
    return ClaimBasis(study.name, study.study, source, tuple(study.groups), means)


# ---------------------------------------------------------------- the first page


def _matrix(judged: list[Judged], studies: list[StudyResults]) -> TableEntry | None:
    """Return the table of claims by machine and grade, with which a report on evidence begins; None
    for any other report whose claims all have the same machine and grade."""
    described = {
        run.environment.machine.fingerprint: machine_text(run.environment.machine)
        for study in studies
        for run in study.runs.all.values()
    }

    machines_by_study = {study.name: machines_of(study.groups) for study in studies}

    def place(each: Judged) -> str:
        names = each.machines or machines_by_study[each.study]
        machines = "; ".join(described.get(name, name) for name in names)
        return f"{machines}: {each.grade}"

    columns = sorted({place(each) for each in judged if each.machines})
    if len(columns) < (1 if any(study.evidence for study in studies) else 2):
        return None
    fields: dict[str, dict[str, list[Judged]]] = {}
    for each in judged:
        fields.setdefault(each.name, {}).setdefault(place(each), []).append(each)
    rows = []
    for by_place in fields.values():
        claim = next(iter(by_place.values()))[0].claim
        row = [TableCell(printable(f"{claim.study}: {claim.claim}"))]
        # What only the audit judges, or no cell could answer, belongs to no machine.
        anywhere = [each for group in by_place.values() for each in group if not each.machines]
        for column in columns:
            if found := by_place.get(column, anywhere):
                texts = (
                    e.sentence if e.verdict in SHORT else e.sentence_with_reason for e in found
                )
                text = "; ".join(dict.fromkeys(texts))
                verdicts = {each.verdict for each in found}
                row.append(_verdict(verdicts.pop() if len(verdicts) == 1 else "", (), text))
            else:
                row.append(TableCell(terms.NO_CELLS, tone="muted"))
        rows.append(row)
    return make_table(
        "t-matrix",
        "Where it holds: claims by machine and grade",
        [("", ["Claim"]), ("", columns)],
        rows,
        caption="Cells of two machines, or of two scales, are never judged together. "
        + " ".join(map(glossary.sentence, glossary.GRADES)),
        empty="No claim.",
    )


def _first_page(numbered: dict[int, Judged]) -> FirstPage:
    """Return the figure, with parts per study for ratios and differences, and other claims."""
    by_study: dict[tuple[str, bool], list[tuple[int, Judged, list[JudgedPart]]]] = {}
    for number, each in numbered.items():
        for points in (False, True):
            own = [part for part in each.parts if part.test.is_of_differences == points]
            if any(c.measured is not None for part in own for c in part.comparisons):
                by_study.setdefault((each.study, points), []).append((number, each, own))
    drawn, figures = list[ClaimBlock](), []
    studies = list(dict.fromkeys(study for study, _ in by_study))
    for (study, points), claims_of_it in sorted(
        by_study.items(), key=lambda item: (studies.index(item[0][0]), item[0][1])
    ):
        blocks = [_block(number, each, own, points) for number, each, own in claims_of_it]
        drawn += blocks
        figures += claim_figure.parts(study + ", scores" * points, blocks, points)
    in_figure = {block.number for block in drawn}
    return {
        "figure": {
            "id": "f-claims",
            "title": "What the sources claim, and what was found here",
            "caption": claim_figure.CAPTION,
            "columns": 1,
            "parts": [claim_figure.key(drawn), *figures] if figures else [],
        },
        "table": make_table(
            "t-claims",
            "Claims without a measured number to draw",
            [("", ["No.", "Study", "Claim"]), ("", ["Result here", "Verdict"])],
            [_reported_row(n, each) for n, each in numbered.items() if n not in in_figure],
            empty="None.",
        ),
    }


def _block(number: int, each: Judged, parts: list[JudgedPart], points: bool) -> ClaimBlock:
    """Return a claim as drawn, with the comparisons of ``parts`` that have numbers."""
    drawn = [
        (part, c, c.measured) for part in parts for c in part.comparisons if c.measured is not None
    ]
    labels = _labels([c for _, c, _ in drawn])
    lines = [
        ClaimLine(label, part, c, series, _alt_text(c, series, points))
        for label, (part, c, series) in zip(labels, drawn, strict=True)
    ]
    return ClaimBlock(number, each, _test(parts), tuple(lines))


def _alt_text(each: Comparison, series: Series, points: bool) -> str:
    text = f"{_answers(each)}, {_text(series.known_mean, points)}"
    interval = _interval(series, points)
    text += f" ({interval.text})" if not interval.read_aloud else ""
    return text + (f", published {_text(each.published, points)}" if each.published else "")


def _answers(each: Comparison) -> str:
    """Return both answers: ``as claimed, smaller than published``."""
    return ", ".join(filter(None, (each.verdict, each.size)))


def _test(parts: list[JudgedPart]) -> str:
    """Return what is tested in words: ``Training time, eager over horovod: above 1``."""
    test = parts[0].test
    metrics = " or ".join(dict.fromkeys(label(part.test.metric) for part in parts))
    none = "0" if test.is_of_differences else "1"
    margin = f" within {test.margin:g}" if test.margin else ""
    ops = dict.fromkeys(
        OPS[part.test.op].format(margin if part.test.op == "same" else none) for part in parts
    )
    sides = [
        " or ".join(
            dict.fromkeys(
                pair[n].variant for part in parts for c in part.comparisons for pair in _sides(c)
            )
        )
        for n in (0, 1)
    ]
    names = (
        side if side.count(" or ") < 3 else str(selection)
        for side, selection in zip(sides, test.sides, strict=True)
    )
    separator = " less " if test.is_of_differences else " over "
    return f"{metrics}, {separator.join(names)}: {' or '.join(ops)}"


def _sides(each: Comparison) -> list[tuple[Group, Group]]:
    return [(ratio.over, ratio.under) for ratio in each.ratios]


def _reported_row(number: int, each: Judged) -> list[TableCell]:
    found = [(c, c.largest.measured) for c in each.comparisons if c.largest]
    measured = [f"{_model(c)}: {name}" for c, name in found if name]
    untested = each.verdict == terms.NOT_TESTED
    lacks = claim_headline.why_untested(each) if untested else each.reason
    return [
        TableCell(str(number), sort=number),
        TableCell(each.study),
        TableCell(printable(each.claim.claim)),
        TableCell("; ".join(measured) or lacks),
        _verdict(each.verdict, (), each.sentence),
    ]


def _text(value: Value, points: bool) -> str:
    """Format a ratio, or points; a series with spread or range, and number of values."""
    if isinstance(value, Series):
        spread = spread_text(value, 2 if points else _places(value), 100.0 if points else 1.0)
        return f"{spread}{POINTS * points} ({value.seeds})"
    if isinstance(value, tuple):
        return range_text(value, partial(_text, points=points))
    return f"{fixed(100 * value, 2)}{POINTS}" if points else ratio_text(value)


def _places(value: Series) -> int:
    """Return the decimals of a ratio: enough that no end of its interval is rounded to 1."""
    places = decimals([value.mean], "x", [value.std])
    ends = [end for end in (value.ci_low, value.ci_high) if end is not None and end != 1]
    while places < MOST_PLACES and any(round(end, places) == 1 for end in ends):
        places += 1
    return places


def _verdict(verdict: str, marks: Sequence[str], text: str = "") -> TableCell:
    return TableCell(
        text or verdict, tone=TONES.get(verdict, "plain"), verdict=verdict, marks=marks
    )


def _labels(comparisons: list[Comparison]) -> list[str]:
    """Return the shortest labels that tell a claim's comparisons apart."""
    ways: list[Callable[[Comparison], str]] = [
        _model,
        lambda each: f"{_model(each)} {_variant(each, 0)}",
        lambda each: f"{_model(each)} {_variant(each, 1)}",
        lambda each: f"{_metric(each)}, {_variant(each, 0)}",
        lambda each: f"{_model(each)} {_variant(each, 0)} over {_variant(each, 1)}",
        lambda each: f"{each.study}: {_compared(each)}",
    ]
    choices = [list(map(way, comparisons)) for way in ways]
    return next((labels for labels in choices if len(set(labels)) == len(labels)), choices[-1])


def _model(each: Comparison) -> str:
    if each.group is not None:
        model = each.group.model
        # The largest component depends on the hardware.
        return f"{model} on {hardware_text(each.group.hardware)}"
    return " over ".join(dict.fromkeys(ratio.over.model for ratio in each.ratios))


def _metric(each: Comparison) -> str:
    return label(each.ratios[0].metric) if each.ratios else ""


def _variant(each: Comparison, side: int) -> str:
    if each.group is not None:
        return each.group.variant
    return " and ".join((ratio.over, ratio.under)[side].variant for ratio in each.ratios)


def _compared(each: Comparison) -> str:
    """Return the sides in words: ``swin: eager over ddp``."""
    if each.group is not None:
        return f"{_model(each)}, {each.group.variant}"
    return ", against ".join(map(_sides_of, each.ratios))


def _sides_of(ratio: Ratio) -> str:
    over, under = ratio.over, ratio.under
    other = f"{under.model} " * (over.model != under.model)
    return f"{over.model}: {over.variant} over {other}{under.variant}"


def _on_a_terminal(judged: list[Judged]) -> Iterator[list[str]]:
    """Yield a head; for each claim its verdict, and the fields of each comparison with cells."""
    yield ["claim", "compared", "published", "here", "95 % interval", "bound", "verdict"]
    for claim in judged:
        yield [claim.name, printable(claim.sentence_with_reason)]
        for part in claim.parts:
            for each in part.comparisons:
                if not (each.ratios or each.group):
                    continue
                numbers = [cell.text for cell in _numbers(each, part.test.is_of_differences)]
                bound = ABSENT if each.bound is None else ratio_text(each.bound)
                verdict = _answers(each)
                if part.against_source:
                    verdict = RULED_OUT_BUT.format(part.against_source, verdict)
                if each.reasons and each.verdict not in (terms.AS_CLAIMED, *terms.REFUTED):
                    verdict += f": {each.reasons[-1]}"
                yield list(map(printable, ["", _compared(each), *numbers, bound, verdict]))


# ---------------------------------------------------------------- one by one


def _one_by_one(judged: list[Judged], panels: Panels) -> TableEntry:
    notes = Notes()
    rows = [
        _comparison_row(number, claim, part, comparison, panels, notes)
        for number, claim in enumerate(judged, 1)
        for part in claim.parts
        for comparison in part.comparisons
    ]
    columns = ["Published", "Reproduced", "95 % interval", "Direction", "Size"]
    return make_table(
        DETAIL,
        "What each verdict is based on",
        [("", ["No.", "Compared"]), ("", columns)],
        rows,
        caption="Claims are numbered as above. Each row is one comparison of one part of a claim: "
        "the metric of the first side over that of the second; for scores, the first minus the "
        "second. Its values come from the restarts of pairs measured in turns, or from seeds "
        "(their number in parentheses). Direction: whether it is above or below, or the same, as "
        "claimed. Size: how large it is here; smaller is closer to no effect than published.",
        notes=notes,
        empty="No claim of these sources has a part that cells can measure.",
    )


def _comparison_row(
    number: int,
    judged: Judged,
    part: JudgedPart,
    each: Comparison,
    panels: Panels,
    notes: Notes,
) -> list[TableCell]:
    points, reasons = part.test.is_of_differences, each.reasons
    compared = TableCell(f"{each.study}, {_who(part, each)}")
    row = [TableCell(str(number), sort=number), compared, *_numbers(each, points)]
    if each.is_measured:
        group = each.group or each.ratios[0].over
        row[3] = replace(row[3], link=panels[each.study, group.id])
    own = (part.test.note, judged.claim.note, judged.claim.citation)
    all_notes = (*reasons, *(printable(text) for text in own if text))
    marks = notes.mark(*filter(None, all_notes))
    direction = each.obstacle if each.verdict == terms.NOT_MEASURED else each.verdict
    if part.against_source:
        direction = RULED_OUT_BUT.format(part.against_source, direction)
    size = _verdict(each.size, ()) if each.size else absent("no size to compare")
    verdict = part.against_source or each.verdict
    return [*row, _verdict(verdict, marks, direction), size]


def _who(part: JudgedPart, each: Comparison) -> str:
    """Return the metric and what a comparison compares; without cells, what the part is about."""
    test = part.test
    if each.ratios or each.group:
        return f"{label(test.metric)}, {_compared(each)}"
    about = f", {test.about}" if test.about else ""
    sides = "" if test.op == "largest" else f", {test.numerator} over {test.denominator}"
    return f"{label(test.metric)}{sides}{about}"


def _numbers(each: Comparison, points: bool) -> list[TableCell]:
    """Return the published and measured values, or largest components, and the interval."""
    has_cells = each.ratios or each.group
    published, nothing = (
        absent("none" if has_cells else terms.NO_CELLS),
        absent("nothing to compare"),
    )
    if each.published:
        published = TableCell(_text(each.published, points), sort=each.published[0])
    if each.largest is not None:
        if each.largest.published:
            published = TableCell(each.largest.published)
        if each.largest.measured is None:
            return [published, nothing, nothing]
        return [published, TableCell(each.largest.measured), absent("does not apply")]
    if (series := each.measured) is None:
        return [published, nothing, nothing]
    measured = TableCell(_text(series, points), sort=series.mean)
    return [published, measured, _interval(series, points)]


def _interval(measured: Series, points: bool) -> TableCell:
    return interval_cell(measured, 2, 100) if points else interval_cell(measured, _places(measured))


# ---------------------------------------------------------------- published numbers only


def _audit(
    found: list[tuple[Path, checks.Contradiction]], assumptions: checks.DatasetAssumptions
) -> TableEntry:
    rows = [
        [
            TableCell(printable(finding.study)),
            TableCell(finding.check),
            TableCell(finding.certainty),
            TableCell(printable(finding.says)),
            TableCell(f"{path.name}, {_lines(finding.lines)}"),
        ]
        for path, finding in found
    ]
    return make_table(
        "t-audit",
        "Contradictions among the published numbers",
        [("", ["Source", "Check"]), ("", ["How sure", "Finding", "Where"])],
        rows,
        caption="These are questions to the authors. They follow from arithmetic, without "
        "training; a claim that they contradict is judged by that, not by what is measured here. "
        "Certain: a number, or the sentence it contradicts, is wrong, whatever was run. Likely: "
        "one is wrong unless another clock, other work, the same seed with the same arithmetic, or "
        "a run that is not printed explains it. "
        "Weak: it may be chance. "
        f"Assumed: {assumptions.classes} classes, {assumptions.train_samples:,} training "
        "samples, and a test set with as many samples of each class.",
        empty="Nothing: the published numbers agree with each other.",
    )


def _lines(lines: tuple[int, ...]) -> str:
    shown = list(map(str, lines[:LISTED])) + ["..."] * (len(lines) > LISTED)
    return f"line {shown[0]}" if len(shown) == 1 else f"lines {', '.join(shown)}"
