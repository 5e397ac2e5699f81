"""The first page and the section of a study, assembled from tables, figures and facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypedDict

from parbench.reporting.drawing import FigureEntry
from parbench.reporting.figures import figures
from parbench.reporting.in_turns import in_turns_table
from parbench.reporting.lines import SPREAD
from parbench.reporting.operator_section import operators_table, training_operators_table
from parbench.reporting.panels import Environments, cells_table, restarts_table
from parbench.reporting.paper_tables import (
    counted_verdicts,
    paper_table,
    time_to_accuracy,
)
from parbench.reporting.phase_section import phases_table
from parbench.reporting.study_results import StudyResults
from parbench.reporting.table import TableCell, TableEntry, count_cell, make_table
from parbench.reporting.text import (
    ABSENT,
    anchor,
    counted,
    date_time,
    deployment_text,
    listed,
    machine_text,
    mapping_text,
    settings_pairs,
    short_machine_text,
    software_text,
)
from parbench.reporting.work import work_table
from parbench.runs.records import PairRun
from parbench.verdicts.terms import JUDGED, NOT_COMPARABLE, NOT_MEASURED, NOT_RUN, VERDICTS
from parbench.words import count

LACKS = {
    NOT_COMPARABLE: "were published for other data, settings or hardware",
    NOT_RUN: "were not run",
    NOT_MEASURED: "not measured",
}


class SummaryEntry(TypedDict):
    """The report's first page; ``where``: the machines, and the devices of the sources."""

    sentence: str
    where: str
    facts: list[list[str]]
    table: TableEntry


class CitationEntry(TypedDict):
    """A study's source."""

    text: str
    url: str | None


class StudySection(TypedDict):
    """The report's section on a study."""

    id: str
    name: str
    title: str
    description: str
    citation: CitationEntry | None
    facts: list[list[str]]
    differences: list[str]
    tables: list[TableEntry]
    figures: list[FigureEntry]
    cells: TableEntry
    restarts: TableEntry | None


class EvidenceEntry(TypedDict):
    """The report's sentence on evidence."""

    sentence: str


def summary(studies: list[StudyResults], printed: Iterable[str] = ()) -> SummaryEntry:
    """Return the first page: comparable numbers; machines, stacks, dates; a row per study.

    ``printed``: the devices that the sources of numbers and claims name.
    """
    return {
        "sentence": _headline(studies),
        "where": _where(studies, list(dict.fromkeys(printed))),
        "facts": _facts(studies),
        "table": _study_table(studies),
    }


def study_section(study: StudyResults, known: Environments) -> StudySection:
    """Return the report's section on a study; ``known``: the report's environments."""
    about = study.study
    tables = [paper_table(study, index, table) for index, table in enumerate(study.tables, 1)]
    makers = (in_turns_table, time_to_accuracy, operators_table, training_operators_table)
    tables += filter(None, (make(study) for make in (*makers, phases_table)))
    tables += [work_table(study)]
    return {
        "id": anchor("study", study.name),
        "name": study.name,
        "title": about.title,
        "description": about.description,
        "citation": about.citation and {"text": about.citation.text, "url": about.citation.url},
        "facts": [
            ["Dataset", about.dataset],
            ["Groups", _groups([study])],
            ["Machine", _several(_machines(study))],
            ["Software", _software(study)],
            ["Reproduced", f"mean {SPREAD} (how many)"],
            ["All numbers", str(study.table_path)],
            *(
                [name, _settings(settings)]
                for name, settings in (("Settings", about.settings), ("Assumed", about.assumed))
                if settings
            ),
            *(
                [["Tolerance", mapping_text(about.tolerance.model_dump())]]
                if study.has_source
                else []
            ),
        ],
        "differences": study.differences() if study.has_source or about.claims else [],
        "tables": tables,
        "figures": figures(study),
        "cells": cells_table(study, known),
        "restarts": restarts_table(study, known),
    }


def _settings(settings: Mapping[str, object]) -> str:
    """Return one line that merges variants with equal settings, without ``profile``."""
    variants_by_setting: dict[str, list[str]] = {}
    for name, value in settings_pairs(settings):
        key, _, variant = name.partition(" of ")
        if key != "profile":
            variants_by_setting.setdefault(f"{key} {value}", []).extend(
                [variant] if variant else []
            )
    return "; ".join(
        f"{setting} ({', '.join(variants)})" if variants else setting
        for setting, variants in variants_by_setting.items()
    )


def _software(study: StudyResults) -> str:
    where = deployment_text(study.deployment)
    return f"{software_text(study.stack, study.deployment).removeprefix('the ')}, in {where}"


def _groups(studies: list[StudyResults]) -> str:
    """Return how many groups with cells of their own have which status, and how many combine them:
    ``11: 10 ok and 1 not run; 2 more combine groups of several models``."""
    states = Counter(group.short_status for study in studies for group in study.own)
    combining = sum(len(study.groups) - len(study.own) for study in studies)
    verb = "combines" if combining == 1 else "combine"
    more = f"; {combining} more {verb} groups of several models" if combining else ""
    return f"{states.total()}: {counted(states)}{more}" if states else "none"


def _facts(studies: list[StudyResults]) -> list[list[str]]:
    # By path, since studies may share cells, while each file of evidence has its own runs.
    runs = {
        study.cells_folder / cell: run for study in studies for cell, run in study.runs.all.items()
    }
    restarts = sum(isinstance(run, PairRun) for run in runs.values())
    counts = [count(len(runs) - restarts, "cell")]
    counts += [f"{count(restarts, 'restart')} of pairs"] if restarts else []
    started = min((run.started for run in runs.values()), default="")
    finished = max((run.finished for run in runs.values()), default="")
    environments = [run.environment for run in runs.values()]
    return [
        ["Groups", _groups(studies)],
        ["Measured", listed(counts)],
        ["Machine", _several(machine_text(each.machine) for each in environments)],
        ["Stack", _several(study.stack for study in studies)],
        ["Deployment", _several(deployment_text(study.deployment) for study in studies)],
        ["Runs", f"{date_time(started)} to {date_time(finished)} UTC" if runs else "none"],
        ["Code", _several(each.commit for each in environments)],
    ]


def _several(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts)) or "none"


def _where(studies: list[StudyResults], printed: list[str]) -> str:
    """Return the sentence on the machines that measured, unless that on evidence names them, and on
    the devices that the sources name; empty if nothing is known."""
    machines = (
        run.environment.machine
        for study in studies
        if study.evidence is None
        for run in study.runs.all.values()
    )
    here = listed(list(dict.fromkeys(map(short_machine_text, machines))))
    theirs = f"the sources' numbers come from {listed(printed)}" if printed else ""
    text = "; ".join(filter(None, (f"measured on {here}" if here else "", theirs)))
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _headline(studies: list[StudyResults]) -> str:
    verdicts = sum((counted_verdicts(study) for study in studies), Counter())
    if not verdicts:
        own = [group for study in studies for group in study.own]
        ran = sum(not group.not_run for group in own)
        numbers = "no number in a study's table has a published counterpart"
        return f"{ran} of {count(len(own), 'group')} of cells ran here; {numbers}."
    judged = [name for name in VERDICTS if verdicts[name] and name in JUDGED]
    judged_text = listed([f"{verdicts[name]} {name}" for name in judged])
    total, compared = verdicts.total(), sum(verdicts[name] for name in judged)
    sources = [study.study.published for study in studies if counted_verdicts(study)]
    repeated = len(set(sources)) < len(sources)
    each = " (a source's numbers count once per study that rebuilds it)" if repeated else ""
    text = f"{compared} of {count(total, 'published number')}{each} can be compared"
    text += f": {judged_text}." if judged_text else "."
    rest = listed([f"{verdicts[name]} {lack}" for name, lack in LACKS.items() if verdicts[name]])
    return f"{text} Of the others, {rest}." if rest else text


def _study_table(studies: list[StudyResults]) -> TableEntry:
    counts = [counted_verdicts(study) for study in studies]
    totals = sum(counts, Counter())
    names = [name for name in VERDICTS if totals[name]]
    has_evidence = any(study.evidence for study in studies)
    rows = []
    for study, verdicts in zip(studies, counts, strict=True):
        file, digest = (
            (study.evidence.file, study.evidence.digest[:12])
            if study.evidence
            else (study.name, ABSENT)
        )
        name_cell = TableCell(file, link=anchor("study", study.name))
        digest_cells = [TableCell(digest)] if has_evidence else []
        count_cells = (count_cell(verdicts[name]) for name in names)
        rows.append([name_cell, *digest_cells, count_cell(len(study.runs.alone)), *count_cells])
    columns = [*(["Digest of evidence"] if has_evidence else []), "Cells", *names]
    return make_table(
        "t-studies", "Studies", [("", ["Study"]), ("", columns)], rows, empty="No study."
    )


# ---------------------------------------------------------------- evidence


def evidence(studies: list[StudyResults]) -> EvidenceEntry | None:
    """Return the first page's sentence on evidence; None without evidence."""
    kept = [study for study in studies if study.evidence is not None]
    if not kept:
        return None
    dates = sorted({study.evidence.date for study in kept if study.evidence is not None})
    machines = list(dict.fromkeys(name for study in kept for name in _machines(study)))
    period = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    software = list(dict.fromkeys(software_text(each.stack, each.deployment) for each in kept))
    return {
        "sentence": f"Rendered from {count(len(kept), 'file')} of evidence; nothing was trained "
        f"for it. Measured on {listed(machines)}, {period}, with {listed(software)}.",
    }


def _machines(study: StudyResults) -> list[str]:
    machines = (run.environment.machine for run in study.runs.all.values())
    return list(dict.fromkeys(map(machine_text, machines)))
