"""Profilers of a run, one file each, loaded by the name in `profile`.

A profiled cell is kept apart from timed cells: it may be slower, and its times are never judged.
``none`` is the base class of the others.
"""

from __future__ import annotations

import importlib
from types import ModuleType


def load(name: str) -> ModuleType:
    """Return the module of the profiler ``name``; its class is ``Profile``."""
    return importlib.import_module(f"parbench.measure.profiling.{name}")
