"""A drawn figure as an SVG that may stand in a page with others, and as an image in a PDF."""

from __future__ import annotations

import hashlib
import io
import re
import warnings
import xml.etree.ElementTree as ElementTree
from typing import Any

from parbench.reporting.text import anchor

INK = "#010203"  # becomes currentColor, so that a figure is read in the dark and on paper
SVG = "http://www.w3.org/2000/svg"
HREF = "{http://www.w3.org/1999/xlink}href"


def svg_part(figure: Any, name: str, alt: str) -> dict:
    """{"svg", "alt"} of a matplotlib ``figure``: text as text, ids made unique by ``name``."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": name}), warnings.catch_warnings():
        # Text stays text: the reader's fonts draw it, whatever DejaVu lacks.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    root = ElementTree.fromstring(buffer.getvalue())  # noqa: S314  (our own)
    prefix = anchor("svg", hashlib.sha256(name.encode()).hexdigest()[:8])
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith("}metadata") or child.tag == f"{{{SVG}}}style":
                parent.remove(child)
    used = set(re.findall(r"url\(#([^)]+)\)", buffer.getvalue().decode()))
    used |= {element.get(HREF, "")[1:] for element in root.iter()}
    # Numbered as they appear: matplotlib's own ids hash coordinates whose last bits may differ.
    named = [name for element in root.iter() if (name := element.get("id")) in used]
    ids = {name: f"{prefix}-{number}" for number, name in enumerate(dict.fromkeys(named))}
    for element in root.iter():
        _tidy(element, ids)
    root.set("fill", INK)
    root.set("font-family", "Libertinus Serif, DejaVu Sans, sans-serif")
    root.set("stroke-linejoin", "round")
    root.set("stroke-linecap", "butt")
    root.set("role", "img")
    root.set("aria-labelledby", f"{prefix}-t {prefix}-d")
    for tag, text in (("desc", alt), ("title", f"Figure: {name}")):
        element = ElementTree.Element(f"{{{SVG}}}{tag}", {"id": f"{prefix}-{tag[0]}"})
        element.text = text
        root.insert(0, element)
    ElementTree.register_namespace("", SVG)
    svg = ElementTree.tostring(root, encoding="unicode").replace(INK, "currentColor")
    return {"svg": re.sub(r">\s+<", "><", svg), "alt": alt}


def inline(svg: str) -> str:
    """An SVG of `svg_part` for a place inside HTML, where its namespace is understood."""
    return svg.replace(f' xmlns="{SVG}"', "")


def _tidy(element: ElementTree.Element, ids: dict[str, str]) -> None:
    """Unique ids, short numbers, text without a font of its own, no group without a purpose."""
    name = element.attrib.pop("id", None)
    if name in ids:
        element.set("id", ids[name])
    link = element.attrib.pop(HREF, None)
    if link is not None:
        element.set("href", f"#{ids[link[1:]]}")
    for key in ("d", "transform", "x", "y", "width", "height", "points"):
        if key in element.attrib:
            text = re.sub(r"-?\d+\.\d+", _rounded, element.get(key))
            element.set(key, re.sub(r"\s+", " ", text).strip())
    if re.match(r"rotate\(-?0 ", element.get("transform", "")):
        del element.attrib["transform"]
    for key in ("style", "clip-path"):
        if key in element.attrib:
            text = re.sub(r"font-family: [^;]+(; )?", "", element.get(key)).replace(": ", ":")
            if element.tag == f"{{{SVG}}}text":
                text = text.replace(f"; fill:{INK}", "")  # as the whole figure has
            text = re.sub(r"url\(#([^)]+)\)", lambda match: f"url(#{ids[match[1]]})", text)
            element.set(key, text)
    for place, child in enumerate(list(element)):
        while child.tag == f"{{{SVG}}}g" and not child.attrib.keys() - {"id"} and len(child) == 1:
            if child.get("id") in ids.values() or child.get("id") in ids:
                break
            element[place] = child = child[0]


def _rounded(match: re.Match) -> str:
    return f"{float(match[0]):.1f}".removesuffix(".0")
