"""Make pages of docs/ from other files: studies, metrics, terms, and what was measured.

PYTHONPATH=scripts python -m parbench.reporting.pages  # from the project's folder

The last page needs results/evidence, which `snakemake reports/evidence.html` writes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from parbench.exits import run_main
from parbench.files import read_json, write_atomically
from parbench.plan import config_files, places
from parbench.reporting import glossary
from parbench.reporting.text import heading
from parbench.runs.metrics import METRICS
from parbench.runs.operator_metrics import DESCRIPTIONS, OPERATOR_METRICS
from parbench.verdicts.terms import NOT_TESTED

if TYPE_CHECKING:
    from parbench.reporting.report import ReportFile
    from parbench.reporting.table import TableEntry
    from parbench.verdicts.claims_json import ClaimEntry, ClaimsFile

STUDIES = Path("docs/studies.md")
METRICS_PAGE = Path("docs/verdicts.md")
TERMS_PAGE = Path("docs/architecture.md")  # and METRICS_PAGE has those of verdicts
MEASURED = Path("docs/measured.md")
EVIDENCE = places.RESULTS / "evidence"
# This module writes what a page has between one of the first of these lines and the last.
STUDIES_BEGIN = "<!-- made from studies/*.yaml by parbench.reporting.pages -->"
METRICS_BEGIN = "<!-- made from runs/metrics.py by parbench.reporting.pages -->"
TERMS_BEGIN = "<!-- {} made from reporting/glossary.py by parbench.reporting.pages -->"
END = "<!-- end -->"
# Columns of the report's table of pairs that the page shows.
SHOWN = ("Model", "Variant", "Against", "Times as fast", "Restarts", "Reading")


def with_studies(page: str) -> str:
    """Return the text of docs/studies.md with the table of the project's studies as they are."""
    rows = []
    for name in sorted(path.stem for path in (places.ROOT / places.STUDIES).glob("*.yaml")):
        study = config_files.study(name)
        link = f"[`{name}`](../{places.STUDIES}/{name}.yaml)"
        rows.append([link, study.title, study.needs or ""])
    return _with(page, STUDIES_BEGIN, _table(["study", "what it compares", "needs"], rows))


def with_metrics(page: str) -> str:
    """Return the text of docs/verdicts.md with the table of all metrics as they are."""
    rows = []
    for metric in METRICS.values():
        conditions = {
            "only in tables that name it": metric.only_where_named,
            "no row on CPU": metric.gpus_only,
        }
        notes = [text for text, holds in conditions.items() if holds]
        definition = "; ".join([metric.description, *notes])
        rows.append([f"`{metric.name}`", heading(metric.name, metric.unit), definition])
    for name, phrase in OPERATOR_METRICS.items():
        shown = f"{phrase} of the operator (s)"
        rows.append([f"`{name}:` and an operator", shown, DESCRIPTIONS[name]])
    return _with(page, METRICS_BEGIN, _table(["metric", "in the report", "definition"], rows))


def with_terms(page: str) -> str:
    """Return the text of docs/architecture.md or docs/verdicts.md with its tables of terms as they
    are."""
    for name, table in glossary.TABLES.items():
        rows = ([term.name, term.meaning] for term in table)
        page = _with(page, TERMS_BEGIN.format(name), _table(["term", "meaning"], rows))
    return page


def _with(page: str, begin: str, lines: Iterable[str]) -> str:
    """Return ``page`` with ``lines`` between the line ``begin`` and the next END."""
    text = "\n".join([begin, *lines, END])
    return re.sub(f"{re.escape(begin)}.*?{re.escape(END)}", lambda _: text, page, flags=re.S)


def measured(evidence: Path) -> str:
    """Return docs/measured.md, made from the report of all files of evidence in the folder
    ``evidence``, as rules/evidence.smk writes it."""
    report: ReportFile = read_json(evidence / "report.json")
    judged: ClaimsFile = read_json(evidence / "claims.json")
    claims = judged["claims"]
    lines = [
        "# What was measured",
        "",
        "Made from `reports/evidence/*.json` by `parbench.reporting.pages`; do not edit it "
        "([evidence.md](evidence.md) says how it is renewed). Each section is a file of "
        "evidence: the claims that it decides by the current rules, and every comparison in turns, "
        "with its 95 % interval and the ratio of each restart ([verdicts.md](verdicts.md)). In "
        "brackets after a machine is a digest of its CPU model, cores, memory and GPU models. "
        "`gpipe-1-1` has one stage on each of two devices, and `gpipe-2` both on one; `c4` is 4 "
        "micro-batches, of which `always` recomputes the activations of all, `except-last` of all "
        "but the last, and `never` of none. All other numbers, such as accuracies and memory, are "
        "in `reports/evidence.html`, which `snakemake reports/evidence.html` makes without "
        "training. Conclusions from these numbers are in [findings.md](findings.md).",
        "",
    ]
    for section in report["studies"]:
        name = section["name"]
        facts = dict(section["facts"])
        lines += [
            f"## {name}",
            "",
            f"{section['title']}. {facts['Machine']}; {facts['Software']}; groups: "
            f"{facts['Groups']}.",
            "",
            *_claims([claim for claim in claims if claim["study"] == name]),
        ]
        for table in section["tables"]:
            if table["title"] == "Compared in turns":
                lines += [*_in_turns(table), ""]
    return "\n".join(lines).rstrip() + "\n"


def _claims(claims: Sequence[ClaimEntry]) -> Iterator[str]:
    """Yield a table of those ``claims`` that were tested, and how many were not."""
    tested = [claim for claim in claims if claim["verdict"] != NOT_TESTED]
    if tested:
        rows = ([claim["claim"], claim["sentence_with_reason"]] for claim in tested)
        yield from (*_table(["claim", "verdict"], rows), "")
    if claims:
        verdicts = Counter(claim["verdict"] for claim in claims)
        counts = ", ".join(f"{verdict} {number}" for verdict, number in verdicts.items())
        yield from (f"Claims: {counts}.", "")


def _in_turns(table: TableEntry) -> Iterator[str]:
    """Yield the report's table of pairs with the columns that are SHOWN."""
    heads = [name for head in table["heads"] for name in head["columns"]]
    rows = []
    for row in table["rows"]:
        texts = [text for cell in row for text in [cell["text"]] + [""] * (cell.get("span", 1) - 1)]
        rows.append([text for head, text in zip(heads, texts, strict=True) if head in SHOWN])
    return _table([head for head in heads if head in SHOWN], rows)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table in Markdown."""
    for row in (heads, ["---"] * len(heads), *rows):
        yield f"| {' | '.join(_escaped(text) for text in row)} |"


def _escaped(text: str) -> str:
    return re.sub(r"([|<])", r"\\\1", text.replace("\n", " "))


def main() -> None:
    """Write the pages, docs/measured.md only if its input exists."""
    places.require_root("parbench.reporting.pages")
    for path, renew in (
        (STUDIES, with_studies),
        (METRICS_PAGE, with_metrics),
        (METRICS_PAGE, with_terms),
        (TERMS_PAGE, with_terms),
    ):
        write_atomically(path, renew(path.read_text(encoding="utf-8")))
    if (EVIDENCE / "report.json").exists():
        write_atomically(MEASURED, measured(EVIDENCE))
    else:
        print(f"{MEASURED} is not changed: `snakemake reports/evidence.html` makes its input")


if __name__ == "__main__":
    run_main(main)
