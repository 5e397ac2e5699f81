"""The section on certificates: which computations proved equivalent to eager training."""

from __future__ import annotations

from typing import TypedDict

from parbench.equivalence.certificate import DIFFERS, EQUAL, QUANTITIES, Certificates, summary
from parbench.reporting.study_results import StudyResults
from parbench.reporting.table import TableCell, TableEntry, count_cell, make_table
from parbench.runs.records import Trained

CAPTION = (
    "Each strategy is compared with eager training, in small models, on one batch of 23 images and "
    "a last one of 3. What differs in float32 is tried on two more batches, and counts as equal if "
    "it is equal on one of them. "
    "The error is the largest of any tensor, relative to eager's tensor in norm, over all options "
    "and devices that cells use; in bfloat16, also the share of matrix products computed in "
    "float32. In models with BatchNorm, it is frozen unless it is synchronized."
)
TONES = {EQUAL: "good", DIFFERS: "bad"}


class CertificatesSection(TypedDict):
    """The report's section on equivalence: all certificates' rows, and their digests by number."""

    table: TableEntry
    digests: list[list[str]]


def section(studies: list[StudyResults]) -> CertificatesSection | None:
    """Return all certificates' rows in one table, and their digests; None without certificates."""
    if all(study.proofs is None for study in studies):
        return None
    by_digest = {
        certificate["digest"]: (place, study, certificate)
        for study in studies
        if study.proofs is not None
        for place, certificate in study.proofs.all.items()
    }
    rows = [
        _row(f"C{number}", texts)
        for number, (_, _, certificate) in enumerate(by_digest.values(), 1)
        for texts in summary(certificate["rows"])
    ]
    heads = [
        ("", ["Model", "Strategy"]),
        ("", ["Arithmetic", "BatchNorm", "Configurations"]),
        ("Worst error", [quantity.capitalize() for quantity in QUANTITIES]),
        ("", ["Allowed error", "Verdict", "Certificate"]),
    ]
    return {
        "table": make_table(
            "t-equivalence", "Equivalence", heads, rows, caption=CAPTION, empty="No certificate."
        ),
        "digests": [
            [f"C{number}", f"{_where(place, study)}: {digest}"]
            for number, (digest, (place, study, _)) in enumerate(by_digest.items(), 1)
        ],
    }


def _where(place: str, study: StudyResults) -> str:
    """Return an image's label, or the host; for evidence, also the machine."""
    return place if study.evidence is None else f"{place}, {study.evidence.machine}"


def _row(where: str, texts: list[str]) -> list[TableCell]:
    *keys, configurations = texts[:5]
    tone = TONES.get(texts[-1], "plain")
    cells = [*map(TableCell, keys), count_cell(int(configurations)), *map(TableCell, texts[5:-1])]
    return [*cells, TableCell(texts[-1], tone=tone), TableCell(where)]


def fact(certificates: Certificates | None, trained: Trained) -> list[list[str]]:
    """Return the facts row on a cell's certificate, or why it has none."""
    if certificates is None:
        return []
    if (problem := certificates.problem(trained)) is not None:
        return [["equivalence", problem]]
    return [["equivalence", f"equal to eager training: certificate {certificates.digest(trained)}"]]
