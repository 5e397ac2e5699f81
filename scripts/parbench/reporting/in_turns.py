"""The table of a study's pairs: ratios by restart, disturbed pairs of slices, bound and reading."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from parbench.reporting.paper_tables import (
    VERDICT,
    columns_of,
    context,
    published_cell,
    verdict_cell,
)
from parbench.reporting.scaling import Scaled, several
from parbench.reporting.study_results import ONCE, StudyResults
from parbench.reporting.table import Notes, TableCell, TableEntry, absent, make_table, number
from parbench.reporting.text import fixed, listed
from parbench.verdicts.claims import KINDS
from parbench.verdicts.controls import TimedPair, pairs_without_controls, timed_pairs
from parbench.verdicts.groups import Group
from parbench.verdicts.pairs import LEAST_PAIRS, Compared, using_disturbed
from parbench.verdicts.ratios import ratio_text, with_interval
from parbench.verdicts.sequential import Series
from parbench.verdicts.terms import NOT_MEASURED

KEYS = ["Model", "Variant", "Against"]
COLUMNS = ["Times as fast", "Restarts", "Measured over", "Pairs of slices", "Bound"]
FEW = 3  # comparisons, each of which the first page then shows
PIPELINE_BOUND = (
    "The bound of a pipeline of n devices that fills and drains with each batch of "
    "m equal micro-batches is m·n/(m + n − 1) times the speed of one device."
)


def in_turns_table(study: StudyResults) -> TableEntry | None:
    """Return the table of pairs, with the ratio of each restart; None without pairs."""
    notes = Notes(ONCE)
    pairs = list(timed_pairs(study.by_id))
    if not pairs:
        return None
    groups = [pair.group for pair in pairs]
    judged = [
        column
        for column in ("Published", VERDICT)
        if column in columns_of(study, groups, "speedup")
    ]
    scaled_by_group = {
        scaled.group.id: scaled for scaled in several(study.own, study.by_id) if scaled.measured
    }
    fraction = ["Serial fraction"] if scaled_by_group else []
    pipelines = any(group.work.pipeline_bound for group in groups)
    return make_table(
        f"t-turns-{study.name}",
        "Compared in turns",
        [("", KEYS), ("", [*COLUMNS, *fraction, *judged, "Reading"])],
        [_row(study, pair, scaled_by_group, judged, notes) for pair in pairs],
        caption="Both sides of a pair took turns on the same devices in each of several restarts. "
        "A disturbed pair of slices is measured again and left out, or used if fewer than "
        f"{LEAST_PAIRS} others remain in its restart. Other programs' load can slow the side with "
        "more cores more. The interval takes restarts as values around one mean: where a few are "
        "much slower than the rest, or they drift, it errs more often (“Restarts of pairs” lists "
        "them). In parentheses: the ratio with all disturbed pairs of slices, and the 95 % "
        "interval. The bound of a speedup is the ratio of cores or GPUs; there is none for the "
        "same number of devices, another precision or a compiled side."
        + f" {PIPELINE_BOUND}"
        * pipelines,
        context=context(groups),
        notes=notes,
    )


def headline(studies: Iterable[StudyResults], where: str = "") -> str:
    """Return what the pairs of ``studies`` show: each one if they are few, else how many show what;
    whether A/A pairs were equal, and which are missing. Empty without pairs. ``where``: words for
    these studies."""
    shown: list[str] = []
    readings, equal = Counter[str](), Counter[str]()
    studies = [study for study in studies if study.pairs]
    for study in studies:
        name = f"{study.name}, " * (len(studies) > 1)
        for pair in timed_pairs(study.by_id):
            reading = pair.reading(study.groups, study.study.tolerance.relative)
            reading = reading or "; ".join(pair.compared.reasons) or NOT_MEASURED
            if pair.is_of_equal_sides:
                equal[reading] += 1
                continue
            sides = (
                f"{name}{pair.group.model}, {pair.variant} {_times_as_fast(pair.compared.series)}"
            )
            shown.append(f"{sides} {pair.baseline.variant}: {reading}")
            readings[reading.partition(":")[0] if pair.compared.restarts else NOT_MEASURED] += 1
    counts = [f"{number} {reading}" for reading, number in readings.most_common()]
    of_many = [f"of {len(shown)}, {listed(counts)}"] if len(shown) > FEW else shown
    of_equal = [f"{reading} ({number})" for reading, number in equal.items()]
    of_equal += _missing_controls(studies)
    sentences = [("Compared in turns", of_many), ("A/A pairs", of_equal)]
    return " ".join(
        f"{opening}{where}: {'; '.join(texts)}." for opening, texts in sentences if texts
    )


def _missing_controls(studies: Collection[StudyResults]) -> list[str]:
    """Return words for the devices on which pairs have restarts and no A/A pair exists."""
    missing = dict.fromkeys(
        f"of {KINDS[pair.kind]} on {side.describe_hardware()}"
        + f" in {study.name}" * (len(studies) > 1)
        for study in studies
        for pair, side in pairs_without_controls(study.by_id)
        if pair.compared.restarts
    )
    why = "so that no reading of a pair with such a side is firm"
    return [f"none {listed(list(missing))}, {why}"] if missing else []


def _times_as_fast(series: Series) -> str:
    """Return a ratio as the words between its two sides. One without an interval means nothing, so
    it is left out."""
    if series.ci_low is None:
        return "beside"
    return f"{with_interval(series)} times as fast as"


def _row(
    study: StudyResults,
    pair: TimedPair,
    serial: Mapping[str, Scaled],
    judged: list[str],
    notes: Notes,
) -> list[TableCell]:
    group, compared = pair.group, pair.compared
    keys = [TableCell(text) for text in (group.model, pair.variant, pair.baseline.variant)]
    # Only this pair gives the study's speedup; other pairs serve claims.
    is_speedup = pair.kind == "training" and pair.baseline.id == group.baseline
    bound = group.most_by_devices(pair.baseline)
    row = study.row(group, "speedup") if is_speedup else None
    if not compared.restarts:
        reason = "; ".join(compared.reasons) or NOT_MEASURED
        return [*keys, TableCell(reason, span=len(COLUMNS) + bool(serial) + len(judged) + 1)]
    restarts, series = compared.restarts, compared.series
    mean = series.known_mean
    values = ", ".join(ratio_text(math.exp(restart.value)) for restart in restarts)
    ratio_of_all = math.exp(sum(restart.of_all for restart in restarts) / len(restarts))
    pairs, disturbed = sum(r.slice_pairs for r in restarts), sum(r.disturbed for r in restarts)
    disturbed_text = f", {disturbed} disturbed ({ratio_text(ratio_of_all)})" if disturbed else ""
    disturbed_text += f"; {used}" if (used := using_disturbed(restarts)) else ""
    if row:
        marks = notes.mark_all(row.reason)
    else:
        marks = notes.mark(*compared.reasons, *_uncertified(study, compared))
    cells = {"Published": published_cell(row, "x"), VERDICT: verdict_cell(row, group)}
    return [
        *keys,
        TableCell(with_interval(series, series.too_few), mean, link=study.panel(group)),
        TableCell("; ".join(filter(None, (values, compared.drift)))),
        TableCell(compared.measured_over, sort=compared.sessions),
        TableCell(f"{pairs}{disturbed_text}", sort=pairs),
        absent("no bound") if math.isinf(bound) else _bound_cell(group, bound, compared),
        *([_serial_cell(serial.get(group.id) if is_speedup else None)] if serial else []),
        *(cells[column] for column in judged),
        TableCell(pair.reading(study.groups, study.study.tolerance.relative)).marked(marks),
    ]


def _uncertified(study: StudyResults, compared: Compared) -> list[str]:
    """Return why some side of a comparison is not certified, each reason once."""
    if study.proofs is None:
        return []
    runs = (study.runs.pairs[cell] for cell in compared.cells if cell in study.runs.pairs)
    return study.proofs.problems(each for run in runs for each in run.trained)


def _bound_cell(group: Group, most: float, compared: Compared) -> TableCell:
    pipeline = group.work.pipeline_bound
    text = f"{most:g}×" + (f", pipeline {ratio_text(pipeline)}×" if pipeline else "")
    # Models side by side are also bounded by the sum of their times over the longest.
    text += f"; given the models' own times, {ratio_text(compared.bound)}×" if group.members else ""
    return number(most, text)


def _serial_cell(scaled: Scaled | None) -> TableCell:
    if scaled is None:
        return absent("nothing was scaled")
    fraction = scaled.serial
    ends = " to ".join(fixed(end, 2) for end in (fraction.low, fraction.high))
    return number(fraction.value, f"{fixed(fraction.value, 2)} ({ends})")
