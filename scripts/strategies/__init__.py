"""Strategies, one file each, loaded by name: how a cell uses its devices.

A strategy file states, without importing torch (the workflow reads it when it is parsed),

- ``OPTIONS``: a JSON schema (with a default) for each option that a study may set,
- ``processes(cell)``: training processes on a node,
- ``parts(cell)``: pieces into which one global batch is divided (ranks x micro-batches),
- ``stages(cell)``: stages into which the model is cut,
- ``launcher(cell, python)``: the beginning of its command, up to the script,
- ``check(cell)``: sentences about options that contradict each other or the hardware,
- ``unavailable(cell)``: why this machine cannot run it although it has the devices, or None,
- ``notes(cell)``: what a reader must know beside a number, by metric,

and a class ``Strategy`` for the processes that train: setup, wrap, reduce, close. Eager training is
a strategy too, and the one that the others derive from.
"""

from __future__ import annotations

import importlib
from types import ModuleType


def load(name: str) -> ModuleType:
    """The module of the strategy ``name``."""
    return importlib.import_module(f"strategies.{name}")
