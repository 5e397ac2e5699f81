"""Names of cells and groups: readable, and unique by a digest."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import cast

from parbench import strategies
from parbench.cell import Cell, Pair
from parbench.files import canonical_json, digest
from parbench.identity import settings_of


class CellNames:
    """The names of a group and of its cells: words and a digest of what is measured.

    ``template``: a cell without id and seed; ``parts``: the words of the name; ``prefix``: `s`
    before a seed, `r` before a restart.
    """

    def __init__(self, template: Cell | Pair, parts: Iterable[str], prefix: str = "s") -> None:
        self._name, self._prefix = ".".join(filter(None, parts)).replace("/", "-"), prefix
        # The seed is spliced into the canonical text: hashing 5,000 whole cells would take seconds.
        self._text = canonical_json(settings_of(template.json()))
        self.digest = digest([self._text])[:8]
        self.group = f"{self._name}-{self.digest}"

    @classmethod
    def of(cls, template: Cell) -> CellNames:
        """Return the names for the group of ``template``."""
        model, strategy, hardware = template.model, template.strategy, template.hardware
        return cls(template, (model.name, strategy.name, hardware.name, short_options(template)))

    def cell(self, seed: int) -> str:
        """Return the id of the cell with this seed."""
        return f"{self._name}.{self._prefix}{seed}-{digest([self._text, seed])[:8]}"


def short_options(cell: Cell) -> str:
    """Return the options that differ from their defaults, short enough for a queue listing.

    The result is empty for a program of the user's own: a shortened command line says little.
    """
    if strategies.of(cell).PAIRS_ONLY:
        return ""
    parts: list[str] = []
    schema = strategies.of(cell).OPTIONS
    for key, value in cell.strategy.options.items():
        if value != schema[key].get("default"):
            several = cast(Iterable[object], value if isinstance(value, (list, dict)) else [value])
            text = "-".join(map(str, several))
            parts.append(f"{key}-{text}")
    return re.sub(r"[^A-Za-z0-9_.-]", "", ".".join(parts)[:48]).strip(".")
