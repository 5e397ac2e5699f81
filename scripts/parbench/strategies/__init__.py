"""Strategies, one file each, loaded by name: how a cell uses its devices.

Each cell has an instance of its strategy: the plan asks it about the cell, and each rank trains
with it. _base.py lists what a strategy may define.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from parbench import models

if TYPE_CHECKING:
    from parbench.cell import Cell, Options
    from parbench.strategies._base import Strategy


def names() -> list[str]:
    """Return the names of all strategies: the files of this folder."""
    return sorted(path.stem for path in Path(__file__).parent.glob("[!_]*.py"))


def load(name: str) -> type[Strategy]:
    """Return the class of the strategy ``name``."""
    return importlib.import_module(f"parbench.strategies.{name}").Strategy


def of(cell: Cell) -> Strategy:
    """Return an instance of the strategy of ``cell``."""
    return load(cell.strategy.name)(cell)


def stated_options(name: str, options: Options) -> Options:
    """Return ``options`` of the strategy ``name``, leaving out implied ones at their defaults."""
    return models.without_implied(load(name).OPTIONS, options)


def image(strategy: str, model: str) -> str:
    """Return the name of the image (containers/<name>.def) that runs ``model`` with
    ``strategy``."""
    strategy_class = load(strategy)
    return strategy_class.TEXT_IMAGE if models.vocabulary(model) else strategy_class.IMAGE
