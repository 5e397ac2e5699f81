"""Find contradictions between published numbers, and between them and their source's claims.

Works for any paper, only by arithmetic and without training: reads a file in the form of
studies/published/published_results.csv and prints what cannot all be true. docs/audit.md says which
columns it needs and how each check works.
"""

from __future__ import annotations

import itertools
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from parbench.audit import arithmetic, printed_table, score_rules
from parbench.audit.arithmetic import (
    Certainty,
    Contradiction,
    DatasetAssumptions,
    Found,
    Rows,
    against,
)
from parbench.errors import ParbenchError
from parbench.plan import published
from parbench.plan.published import Claim, ClaimTest, Published
from parbench.plan.selection import Configuration, contrasted
from parbench.words import count

CHECKS = (
    arithmetic.faster_than_its_devices,
    arithmetic.slower_on_more_devices,
    arithmetic.printed_above_devices,
    arithmetic.minutes_kept_as_seconds,
    arithmetic.another_number_of_devices,
    arithmetic.ratio_of_its_numbers,
    arithmetic.efficiency,
    arithmetic.stated_epochs,
    score_rules.conflicting_values,
    score_rules.equal_values,
    score_rules.balanced,
    score_rules.f1,
    score_rules.operators,
)


def contradictions(rows: Rows, assumptions: DatasetAssumptions) -> list[Contradiction]:
    """Return all findings in the order of the file; impossible values are not checked further."""
    results = list(map(arithmetic.converted, rows))
    sound = [result for result in results if isinstance(result, Published)]
    findings = [result for result in results if isinstance(result, Contradiction)]
    findings += [finding for check in CHECKS for finding in check(sound, assumptions)]
    return sorted(findings, key=lambda finding: (finding.lines[0], finding.check))


def findings(
    rows: Rows, claims: Mapping[str, Claim], assumptions: DatasetAssumptions
) -> list[Contradiction]:
    """Return what ``rows`` contradict: each other, then ``claims`` of their sources."""
    return [*contradictions(rows, assumptions), *of_claims(claims, rows, assumptions)]


# ---------------------------------------------------------------- what a source says in words


def of_claims(
    claims: Mapping[str, Claim], rows: Rows, assumptions: DatasetAssumptions
) -> list[Contradiction]:
    """Return the contradictions between a source's own numbers and its ``claims``."""
    findings: list[Contradiction] = []
    for name, claim in claims.items():
        of_study = [row for row in rows if row.study == claim.study]
        for number, test in enumerate(claim.tests if of_study else ()):
            if test.numerator:
                part, of_metric = (name, number), arithmetic.of_metrics(of_study, test.metric)
                findings += denied_by_its_numbers(part, test, of_metric, assumptions)
                findings += promised_above_devices(part, test, claim.study, of_metric)
    return findings


@dataclass(frozen=True)
class OwnRatio:
    """Two published values and their ratio or difference; ``by``: the division or subtraction."""

    over: Published
    under: Published
    by: Callable[[float, float], float]

    @property
    def ends(self) -> tuple[float, float, float]:
        """The ratio or difference: the least that rounding allows, as printed, and the most."""
        over, under = self.over, self.under
        least, most = self.by(over.least, under.most), self.by(over.most, under.least)
        return least, self.by(over.value, under.value), most

    @property
    def configurations(self) -> tuple[Configuration, Configuration]:
        """The configurations of both sides."""
        return Configuration.of_row(self.over), Configuration.of_row(self.under)


def denied_by_its_numbers(
    part: tuple[str, int], test: ClaimTest, rows: Rows, assumptions: DatasetAssumptions
) -> Found:
    """Apply a part of a claim to the source's own numbers; yield a finding if all contradict it."""
    if test.op not in (">", "<"):
        return
    none = 0.0 if test.is_of_differences else 1.0
    rows_of_all: list[Published] = []
    messages: list[str] = []
    denied: list[bool] = []
    kind, between = ("difference", "less") if test.is_of_differences else ("ratio", "over")
    for ratio, *others in contrasted(test, list(_own_ratios(test, rows))):
        assumptions.compares(
            *(side for each in (ratio, *others) for side in (each.over, each.under))
        )
        least, printed, most = ratio.ends
        for other in others:
            least, printed, most = map(ratio.by, (least, printed, most), reversed(other.ends))
        denied.append(most <= none if test.op == ">" else least >= none)
        beside = "".join(f", over that of {other.over.model}" for other in others)
        messages.append(f"{printed:.3g} of {ratio.over} {between} {ratio.under}{beside}")
        rows_of_all += [
            row for own_ratio in (ratio, *others) for row in (own_ratio.over, own_ratio.under)
        ]
    if denied and all(denied):
        shown = "; ".join(messages[:3]) + ", and more" * (len(messages) > 3)
        says = (
            f"{part[0]} claims a {kind} of {test.metric} {test.op} {none:g}; the source's own "
            f"numbers give {shown}"
        )
        found = against("denied by its own numbers", Certainty.CERTAIN, rows_of_all, says)
        yield replace(found, part=part)


def _own_ratios(test: ClaimTest, rows: Rows) -> Iterator[OwnRatio]:
    """Yield the ratios that a claim's test compares, of rows that agree in all else."""

    def unnamed(row: Published) -> tuple[object, ...]:
        batch = "" if "batch_size" in test.named else row.batch_size
        options = Configuration.of_row(row).options.items()
        rest = sorted(each for each in options if each[0] not in test.named_options)
        way = row.strategy, tuple(rest), row.nodes, row.devices, row.devices_per_node
        return (
            row.model,
            row.hardware,
            row.precision,
            batch,
            () if test.may_differ_in_devices else way,
        )

    by = _difference if test.is_of_differences else _ratio
    overs, unders = (
        [row for row in rows if Configuration.of_row(row).is_side(side, test)]
        for side in test.sides
    )
    for over, under in itertools.product(overs, unders):
        if over.line != under.line and unnamed(over) == unnamed(under) and under.value:
            yield OwnRatio(over, under, by)


def _difference(over: float, under: float) -> float:
    return over - under


def _ratio(over: float, under: float) -> float:
    return over / under


def promised_above_devices(part: tuple[str, int], test: ClaimTest, study: str, rows: Rows) -> Found:
    """Yield a claimed ratio beyond what the source's own devices allow, whoever measured it."""
    sizes = [size if size >= 1 else 1 / size for size in test.sizes]
    if test.is_of_differences or not sizes or min(sizes) <= test.most:
        return
    lines = tuple(
        row.line
        for row in rows
        if any(Configuration.of_row(row).is_side(side, test) for side in test.sides)
    )
    says = (
        f"{part[0]} claims a factor of {' to '.join(f'{size:.3g}' for size in sorted(sizes))} by "
        f"{test.metric}; the source's own devices allow at most {test.most:g}"
    )
    if test.bound is not None and test.note:
        says += f": {test.note}"
    yield Contradiction(arithmetic.PROMISED, Certainty.LIKELY, study, says, lines, part)


def coverage(rows: Rows, assumptions: DatasetAssumptions) -> str:
    """Return how many of the ``rows`` the checks have compared with others, and what happened to
    the rest; to be called when all checks have ended."""
    compared = sum((row.line, row.metric) in assumptions.compared for row in rows)
    unknown = Counter(row.metric for row in rows if arithmetic.quantity_of(row.metric) is None)
    unread = [
        row
        for row in rows
        if row.metric in unknown and (row.line, row.metric) not in assumptions.compared
    ]
    were, their = ("was", "its") if len(rows) == 1 else ("were", "their")
    number = count(len(rows), "value")
    text = f"{compared} of {number} {were} compared with others or with {their} devices"
    if alone := len(rows) - compared - len(unread):
        text += f"; of {alone} only unit and range were checked, as nothing compares with them"
    if unread:
        names = sorted({row.metric for row in unread})
        shown = ", ".join(names[:5]) + ", ..." * (len(names) > 5)
        text += f"; no check covers {len(unread)} ({shown})"
    return text


# ---------------------------------------------------------------- the program


def show(found: Iterable[Contradiction]) -> str:
    """Return the findings as text for a terminal, by study, with their lines in the file."""
    parts: list[str] = []
    by_study = sorted(found, key=lambda finding: finding.study)
    for study, group in itertools.groupby(by_study, key=lambda finding: finding.study):
        parts.append(study)
        for finding in group:
            lines = ", ".join(map(str, finding.lines[:6])) + (", ..." * (len(finding.lines) > 6))
            where = f"line{'s' * (len(finding.lines) != 1)} {lines}"
            text = f"{finding.check} ({finding.certainty}): {finding.says} ({where})"
            parts += textwrap.wrap(text, 100, initial_indent="  - ", subsequent_indent="    ")
    return "\n".join(parts)


def audit(
    file: Path,
    assumptions: DatasetAssumptions,
    columns: str | None = None,
    given: str | None = None,
) -> None:
    """Print the findings about the numbers in ``file``: published values, one per row, or a table
    as printed, with the meaning of its ``columns`` and what none of them states (``given``)."""
    if given and not columns:
        raise ParbenchError("--given belongs to --columns; add it, or leave this out")
    if columns:
        words = printed_table.mapped(columns), printed_table.mapped(given or "", "--given")
        printed = printed_table.read(file, *words)
    else:
        hint = "of a table as printed, map the columns with --columns"
        printed = printed_table.Printed(published.rows(file, hint))
    rows, path = printed.rows, file.with_name("claims.yaml")
    found = findings(rows, published.claims(path) if path.is_file() else {}, assumptions)
    if found:
        print(show(found))
    count_by_certainty = Counter(finding.certainty for finding in found)
    counts = ", ".join(f"{count_by_certainty[word]} {word}" for word in Certainty)
    balance = "balanced" if assumptions.balanced else "not balanced"
    print(f"{count(len(rows), 'value')}, {count(len(found), 'finding')}: {counts}")
    print(textwrap.fill(coverage(rows, assumptions), 100))
    for note in printed.notes:
        print(note)
    print(
        f"Assumed: {assumptions.classes} classes, "
        f"{count(assumptions.train_samples, 'training sample')}, a test set that is {balance}"
    )
