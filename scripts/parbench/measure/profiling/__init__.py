"""Instruments that look into a run, one file each, loaded by the name that `profile` gives.

A cell with one is apart from the timed cells: it may be slower, and its times are never judged.
``none`` is an instrument too, and the one that the others derive from.
"""

from __future__ import annotations

import importlib
from types import ModuleType


def load(name: str) -> ModuleType:
    """The module of the instrument ``name``; its class is ``Profile``."""
    return importlib.import_module(f"parbench.measure.profiling.{name}")
