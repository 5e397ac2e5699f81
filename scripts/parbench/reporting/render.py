"""Render report.json as HTML and as PDF: both only lay it out, so that they cannot differ."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

TEMPLATES = Path(__file__).resolve().parents[3] / "reports"


def page(template: str, data: Mapping[str, object]) -> str:
    """Return ``data`` as one HTML file without external references.

    Raises jinja2.UndefinedError if ``data`` lacks a value.
    """
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = (TEMPLATES / "table.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template(template).render(
        **data,
        style=Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),  # noqa: S704
        script=Markup(script),  # noqa: S704
        script_digest=digest,
    )


def render_html(data: Mapping[str, object]) -> str:
    """Return the report as HTML."""
    return page("template.html.j2", data)


def render_pdf(data: dict) -> bytes:
    """Return the report as PDF: the same content, laid out by Typst, tagged (PDF/UA-1)."""
    import matplotlib
    import typst

    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"  # DejaVu: more scripts and signs
    compiler = typst.Compiler(
        input=(TEMPLATES / "template.typ").read_bytes(),
        # The stub wrongly requires the type of ``input``, which is bytes.
        font_paths=[str(fonts)],  # pyright: ignore[reportArgumentType]
        ignore_system_fonts=True,  # the same bytes on every machine
        sys_inputs={"data": json.dumps(data, ensure_ascii=False)},
    )
    pdf = compiler.compile(format="pdf", pdf_standards=["ua-1"], timestamp=data["timestamp"])
    assert isinstance(pdf, bytes)
    return pdf
