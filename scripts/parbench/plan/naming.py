"""Names of cells and groups: readable, and unique by a digest."""

from __future__ import annotations

import re
from collections.abc import Iterable

from parbench import probe, strategies
from parbench.cell import Cell, Pair
from parbench.files import canonical_json, digest


class Named:
    """The names of a group and of its cells: ``words`` and a digest of what is measured.

    ``template`` is a cell without id and seed; a cell's name has its seed after ``turn``.
    """

    def __init__(self, template: Cell | Pair, words: Iterable[str], turn: str = "s") -> None:
        self._name, self._turn = ".".join(filter(None, words)).replace("/", "-"), turn
        # The seed is spliced into the canonical text: hashing 5,000 whole cells would take seconds.
        self._text = canonical_json(identity(template.json()))
        self.digest = digest([self._text])[:8]
        self.group = f"{self._name}-{self.digest}"

    @classmethod
    def of(cls, template: Cell) -> Named:
        """Return the names for the group of ``template``."""
        model, strategy, hardware = template.model, template.strategy, template.hardware
        return cls(template, (model.name, strategy.name, hardware.name, short_options(template)))

    def cell(self, seed: int) -> str:
        """Return the id of the cell with this seed."""
        return f"{self._name}.{self._turn}{seed}-{digest([self._text, seed])[:8]}"


def short_options(cell: Cell) -> str:
    """Return the options that differ from their defaults, short enough for a queue listing; none
    of a program of the user's own, whose command line says little in so few letters."""
    if strategies.of(cell).NOT_ALONE:
        return ""
    parts = []
    schema = strategies.of(cell).OPTIONS
    for key, value in cell.strategy.options.items():
        if value != schema[key].get("default"):
            holds_several = isinstance(value, (list, dict))
            text = "-".join(map(str, value)) if holds_several else str(value)
            parts.append(f"{key}-{text}")
    return re.sub(r"[^A-Za-z0-9_.-]", "", ".".join(parts)[:48]).strip(".")


def identity(cell: dict) -> dict:
    """Return the part of a cell.json that decides its measurement: all but names and `run`."""
    if "sides" in cell:
        sides = {f"side {n}": identity(side) for n, side in enumerate(cell["sides"], 1)}
        return {**sides, "variants": cell["variants"], "inference": cell["inference"]}
    hardware = {key: value for key, value in cell["hardware"].items() if key != "name"}
    model = dict(cell["model"])
    if "pretrained" in model:
        model["pretrained"] = {k: v for k, v in model["pretrained"].items() if k != "weights"}
    decisive_keys = ("strategy", "dataset", "training", "deployment")
    # The deployment of a Python of the user's own tells its packages, and `stack` where it lies.
    decisive_keys += ("stack",) * (not cell["deployment"].startswith(probe.LABEL))
    decisive_keys += ("trained_by",) * ("trained_by" in cell)
    return {**{key: cell[key] for key in decisive_keys}, "model": model, "hardware": hardware}
