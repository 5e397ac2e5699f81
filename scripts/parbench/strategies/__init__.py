"""Strategies, one file each, loaded by name: how a cell uses its devices.

A cell goes in, an instance of its strategy comes out: the plan asks it about the cell, each rank
trains with it. _base.py says what a strategy may define.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parbench import models

if TYPE_CHECKING:
    from parbench.cell import Cell
    from parbench.strategies._base import Strategy


def names() -> list[str]:
    """The strategies that there are: the files of this folder."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))


def load(name: str) -> type[Strategy]:
    """The class of the strategy ``name``."""
    return importlib.import_module(f"parbench.strategies.{name}").Strategy


def of(cell: Cell) -> Strategy:
    """The strategy of ``cell``."""
    return load(cell.strategy.name)(cell)


def said(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Of all ``options`` of the strategy ``name`` those that stand in a cell."""
    stated = load(name).OPTIONS
    return {
        key: value
        for key, value in options.items()
        if not (stated[key].get("implied") and value == stated[key]["default"])
    }


def image(strategy: str, model: str) -> str:
    """The recipe containers/<name>.def of the image that a model runs in by a strategy."""
    of = load(strategy)
    return of.TEXT_IMAGE if models.vocabulary(model) else of.IMAGE
