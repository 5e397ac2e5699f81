"""A report of constructed studies, as its readers see it."""

from __future__ import annotations

import functools
import io
import json
import re
from pathlib import Path
from typing import Any

import pypdf

from parbench.reporting import render as rendering
from parbench.reporting import report


def collect(*studies: dict[str, Path], **more: Any) -> dict:
    """Return report.json, parsed, of the studies that `constructed.write_study` wrote."""
    plans, tables = ([paths[key] for paths in studies] for key in ("plan", "table"))
    return json.loads(json.dumps(report.collect(plans, tables, studies[0]["cells"], **more)))


def render(data: dict) -> tuple[str, bytes]:
    """Return the HTML and the PDF of report.json."""
    return rendering.render_html(data), rendering.render_pdf(data)


@functools.cache
def pdf_text(pdf: bytes) -> str:
    return "\n".join(page.extract_text() for page in pypdf.PdfReader(io.BytesIO(pdf)).pages)


def squeezed(text: str) -> str:
    """Remove blanks and break opportunities: where a line ends means nothing."""
    return re.sub(r"[\s\u200b]+", "", text)
