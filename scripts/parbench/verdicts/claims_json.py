"""results/claims.json: every claim, part and comparison with its verdict, as numbers and words.

rules/schemas/judged.schema.yaml describes every key. The terminal (`parbench claims`) and JUnit
read it; the report's pages are made from the same records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypedDict
from xml.etree import ElementTree

from parbench import by_schema
from parbench.errors import ParbenchError
from parbench.files import read_record
from parbench.plan.published import in_words
from parbench.verdicts import terms
from parbench.verdicts.claims import NOT_DECIDED, Judged, JudgedPart
from parbench.verdicts.comparisons import Comparison
from parbench.verdicts.sequential import Series
from parbench.words import nearest

SCHEMA_VERSION = 4
FAILED = (terms.FAILS, *terms.AGAINST_SOURCE)
OPEN = (None, math.inf)  # what ends an open range


class SeriesEntry(TypedDict):
    """The ratios or differences of a comparison: each by its seed or restart, and their mean.

    ``of``: what each value comes from: `seeds` or `restarts`.
    """

    of: str
    values: dict[str, float]
    mean: float | None
    low: float | None
    high: float | None


class ComparisonEntry(TypedDict):
    """A comparison of cells: what was published, what was measured, and the answers."""

    groups: list[list[str]]
    cells: list[str]
    measured_over: list[str]
    direction: str
    size: str | None
    published: str | list[float | None] | None
    measured: SeriesEntry | str | None
    bound: float | None
    reasons: list[str]


class PartEntry(TypedDict):
    """A part of a claim: its test, with selections of cells as they are stated, and its answers."""

    metric: str
    numerator: Mapping[str, object] | None
    denominator: Mapping[str, object] | None
    about: Mapping[str, object] | None
    contrast: Sequence[Mapping[str, object]] | None
    op: str
    direction: str
    size: str | None
    against_source: str | None
    obstacles: list[str]
    comparisons: list[ComparisonEntry]


class ClaimEntry(TypedDict):
    """A claim with its verdict by one study."""

    name: str
    source: str
    study: str
    claim: str
    verdict: str
    sentence: str
    sentence_with_reason: str
    reason: str
    weakness: str
    grade: str
    machines: list[str]
    parts: list[PartEntry]


class ClaimsFile(TypedDict):
    """The content of results/claims.json."""

    schema_version: int
    claims: list[ClaimEntry]


def record(judged: Collection[Judged]) -> ClaimsFile:
    """Return the content of results/claims.json for ``judged``."""
    return {"schema_version": SCHEMA_VERSION, "claims": list(map(_claim, judged))}


def _claim(judged: Judged) -> ClaimEntry:
    return {
        "name": judged.name,
        "source": judged.claim.study,
        "study": judged.study,
        "claim": judged.claim.claim,
        "verdict": judged.verdict,
        "sentence": judged.sentence,
        "sentence_with_reason": judged.sentence_with_reason,
        "reason": judged.reason,
        "weakness": judged.weakness,
        "grade": judged.grade,
        "machines": list(judged.machines),
        "parts": list(map(part, judged.parts)),
    }


def part(judged: JudgedPart) -> PartEntry:
    """Return a part of a claim with its answers and comparisons."""
    test = judged.test
    return {
        "metric": test.metric,
        "numerator": test.numerator and test.numerator.stated(),
        "denominator": test.denominator and test.denominator.stated(),
        "about": test.about and test.about.stated(),
        "contrast": [cells.stated() for cells in test.contrast] if test.contrast else None,
        "op": test.op,
        "direction": judged.direction,
        "size": judged.size or None,
        "against_source": judged.against_source or None,
        "obstacles": [each for each in judged.obstacles if each],
        "comparisons": list(map(_comparison, judged.comparisons)),
    }


def _comparison(each: Comparison) -> ComparisonEntry:
    measured: SeriesEntry | str | None = each.measured and _series(each.measured)
    published: str | list[float | None] = _ends(each.published)
    if each.largest is not None:
        measured, published = each.largest.measured, each.largest.published or published
    groups = [[ratio.over.id, ratio.under.id] for ratio in each.ratios]
    return {
        "groups": groups or ([[each.group.id]] if each.group else []),
        "cells": sorted({cell for ratio in each.ratios if ratio.pair for cell in ratio.pair.cells}),
        "measured_over": [ratio.pair.measured_over for ratio in each.ratios if ratio.pair],
        "direction": each.verdict,
        "size": each.size or None,
        "published": published,
        "measured": measured,
        "bound": each.bound,
        "reasons": list(each.reasons),
    }


def _ends(published: tuple[float, ...]) -> list[float | None]:
    """Return a number, or the ends of a range; JSON has no infinity."""
    return [None if math.isinf(end) else end for end in published]


def _series(measured: Series) -> SeriesEntry:
    return {
        "of": measured.of,
        "values": dict(zip(map(str, measured.values), measured.points, strict=True)),
        "mean": measured.mean,
        "low": measured.ci_low,
        "high": measured.ci_high,
    }


def junit(made: ClaimsFile) -> str:
    """Return ``made``, the content of results/claims.json, as JUnit XML: what holds has passed,
    what does not hold, or what its source rules out, has failed, and all else is skipped with its
    reason."""
    claims = made["claims"]
    failed = sum(claim["verdict"] in FAILED for claim in claims)
    passed = sum(claim["verdict"] == terms.HOLDS for claim in claims)
    suite = ElementTree.Element(
        "testsuite",
        name="claims",
        tests=str(len(claims)),
        failures=str(failed),
        skipped=str(len(claims) - failed - passed),
    )
    for claim in claims:
        case = ElementTree.SubElement(
            suite, "testcase", classname=claim["study"], name=claim["name"]
        )
        message = claim["sentence_with_reason"]
        if claim["verdict"] in FAILED:
            ElementTree.SubElement(case, "failure", message=message)
        elif claim["verdict"] != terms.HOLDS:
            ElementTree.SubElement(case, "skipped", message=message)
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def shown(claim: ClaimEntry) -> list[str]:
    """Return a claim of results/claims.json as lines of text that fit on one screen."""
    weakness = claim["weakness"]
    weak = "" if weakness == NOT_DECIDED else f", not firm ({weakness})"
    firm = weak if weakness else ", firm"
    machines = ", ".join(claim["machines"]) or "no machine"
    lines = [
        f"{claim['name']} (of {claim['source']}): {claim['claim']}",
        f"  {claim['sentence_with_reason']}{firm}",
        f"  tested by {claim['study']}, {claim['grade']}, {machines}",
    ]
    for each in claim["parts"]:
        ruled_out = f"{each['against_source']}; here " if each["against_source"] else ""
        answer = ", ".join(filter(None, (each["direction"], each["size"])))
        lines.append(f"  - {heading(each)}: {ruled_out}{answer}")
        lines += [f"      {_numbers(made)}{_because(made)}" for made in each["comparisons"]]
    return lines


def heading(made: PartEntry) -> str:
    """Return what a part is about: its metric, and the cells that it names."""
    sides = (made["about"], made["numerator"], made["denominator"])
    about, over, under = (in_words(side or {}) for side in sides)
    ratio = f"{over} over {under}" if over else ""
    contrast = " against ".join(map(in_words, made["contrast"] or ()))
    return "; ".join(filter(None, (made["metric"], about, ratio, contrast)))


def _numbers(each: ComparisonEntry) -> str:
    groups = ", over ".join(" over ".join(ids) for ids in each["groups"]) or "no cells"
    measured = each["measured"]
    published = each["published"]
    text = f"{groups}: "
    if isinstance(measured, dict):
        text += f"{measured['mean']:.3g}" if measured["mean"] is not None else "no mean"
        if measured["low"] is not None:
            text += f" ({measured['low']:.3g} to {measured['high']:.3g})"
        text += f" of {len(measured['values'])} {measured['of']}"
        text += "".join(f" over {time}" for time in dict.fromkeys(each["measured_over"]) if time)
    elif measured:
        text += measured
    else:
        text += "not measured"
    if published:
        word = published if isinstance(published, str) else range_text(published, "{:g}".format)
        text += f", published {word}"
    return text if each["bound"] is None else f"{text}, bound here {each['bound']:.3g}"


def range_text(ends: Sequence[float | None], text: Callable[[float], str]) -> str:
    """Return a number, or a range whose upper end may be open, as text: ``1.8 to 2``, or ``1.8 or
    more``. ``text`` formats one number."""
    shown = " to ".join(text(end) for end in ends if end not in OPEN)
    return f"{shown} or more" if ends[-1] in OPEN else shown


def _because(each: ComparisonEntry) -> str:
    return f"; {each['reasons'][-1]}" if each["reasons"] else ""


def read(path: Path) -> ClaimsFile:
    """Read results/claims.json. Raises ParbenchError."""
    if not path.exists():
        other = Path("results/unfinished/claims.json")
        hint = f"; --data {other} reads the run that stopped" if other.exists() else ""
        raise ParbenchError(f"{path}: no such file; parbench report writes it{hint}")
    made: ClaimsFile = read_record(path, "claims")
    by_schema.check(made, "judged", str(path), "parbench report writes it again")
    return made


def find(made: ClaimsFile, name: str, path: Path) -> list[ClaimEntry]:
    """Return the claims named ``name``, one per study, of ``made``, which ``path`` holds. Raises
    ParbenchError if there is none."""
    if found := [claim for claim in made["claims"] if claim["name"] == name]:
        return found
    hint = nearest(name, {claim["name"] for claim in made["claims"]})
    raise ParbenchError(f"{path}: no claim {name!r}{hint}")
