"""Make the report: plans, tables and metrics -> report.json -> an HTML file and a PDF.

``collect`` formats every number and draws every figure, once; render.py only lays out
report.json, so that they cannot differ. No byte depends on when or on which machine they run.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TypedDict

from parbench.equivalence.certificate import Certificates
from parbench.files import write_json
from parbench.plan.published import rows as published_rows
from parbench.reporting import certificates, claim_tables, glossary, in_turns, panels, sections
from parbench.reporting.render import render_html
from parbench.reporting.same_cells import same_cells
from parbench.reporting.study_results import StudyResults
from parbench.reporting.table import TableEntry
from parbench.reporting.text import listed
from parbench.verdicts import claims_json
from parbench.verdicts.claims_json import ClaimsFile


class ReportFile(TypedDict):
    """The content of report.json: all that the report shows, formatted.

    ``timestamp``: seconds since 1970.
    """

    title: str
    timestamp: int
    summary: sections.SummaryEntry
    claims: claim_tables.ClaimsSection | None
    turns: str
    studies: list[sections.StudySection]
    groups: list[panels.GroupPanel]
    machines: TableEntry | None
    equivalence: certificates.CertificatesSection | None
    environments: list[panels.EnvironmentPanel]
    unfinished: panels.UnfinishedEntry | None
    evidence: sections.EvidenceEntry | None
    terms: list[glossary.TermEntry]


class Collected(ReportFile):
    """The content of report.json, and that of claims.json as ``judged``."""

    judged: ClaimsFile


def collect(
    plans: list[Path],
    tables: list[Path],
    cells: Path,
    certified: list[Path] | None = None,
    claimed: Sequence[Path] = (),
    published: list[Path] | None = None,
    unfinished: bool = False,
) -> Collected:
    """Return all that the report shows, formatted; ParbenchError for missing input.

    ``tables`` are in the order of ``plans``. Plans of evidence bring their own cells and
    certificates. Claims need ``claimed`` (YAML files) and ``published`` (CSV files).
    ``unfinished``: the run stopped before its end.
    """
    proofs = Certificates(certified) if certified is not None else None
    pairs = zip(plans, tables, strict=True)
    studies = [StudyResults(plan, table, cells, proofs) for plan, table in pairs]
    environments = panels.environments(studies)
    claims, judged = claim_tables.section(studies, claimed, published or [])
    claiming = {each.study for each in judged}
    sources = {each.study.published for each in studies} | {each.claim.study for each in judged}
    rows = (row for path in published or () for row in published_rows(path))
    printed = [row.hardware for row in rows if row.study in sources]
    made: Collected = {
        "title": f"parbench: {_names(studies)}",
        "timestamp": timestamp(studies),
        "summary": sections.summary(studies, printed),
        "claims": claims,
        "turns": in_turns.headline(
            (each for each in studies if each.name not in claiming),
            where=" in the studies without claims" * bool(claiming),
        ),
        "studies": [sections.study_section(study, environments) for study in studies],
        "groups": panels.group_panels(studies, environments),
        "machines": same_cells(studies),
        "equivalence": certificates.section(studies),
        "environments": list(environments.values()),
        "unfinished": panels.unfinished(studies, unfinished),
        "evidence": sections.evidence(studies),
        "terms": [],
        "judged": claims_json.record(judged),
    }
    return {**made, "terms": glossary.used(render_html(made))}


def _names(studies: list[StudyResults]) -> str:
    """Return the names of up to three studies, else their number."""
    names = [study.name for study in studies]
    return listed(names) if len(names) <= 3 else f"{len(names)} studies"


def timestamp(studies: list[StudyResults]) -> int:
    """Return the PDF's date: the last run's end in seconds since 1970; 0 without runs."""
    ends = [run.finished for study in studies for run in study.runs.all.values()]
    return int(datetime.fromisoformat(max(ends)).timestamp()) if ends else 0


def write(
    out: Path,
    plans: list[Path],
    tables: list[Path],
    cells: Path,
    certified: list[Path] | None = None,
    claimed: Sequence[Path] = (),
    published: list[Path] | None = None,
    unfinished: bool = False,
) -> None:
    """Write ``collect`` of the same arguments to ``out``, and its claims.json beside it."""
    data = collect(plans, tables, cells, certified, claimed, published, unfinished)
    write_json(out.with_name("claims.json"), data["judged"])
    write_json(out, {key: value for key, value in data.items() if key != "judged"})
