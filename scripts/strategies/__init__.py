"""Strategies, one file each, loaded by name: how a cell uses its devices.

A strategy file states, without importing torch (the workflow reads it when it is parsed),

- ``OPTIONS``: a JSON schema (with a default) for each option that a study may set,
- ``processes(cell)``: training processes on a node,
- ``beside(cell)``: names of further models that train at the same time in processes of their own,
- ``shares(cell)``: ranks, over all nodes, that divide each global batch among them,
- ``parts(cell)``: pieces into which one global batch is divided (shares x micro-batches),
- ``stages(cell)``: stages into which the model is cut,
- ``batch_norm(cell)``: over what BatchNorm normalises, in words,
- ``pipeline_bound(cell)``: what a pipeline may at most speed up by, or None,
- ``launcher(cell, python, node)``: the beginning of its command, up to the script, on its only
  node or on ``node`` (a Node) of several,
- ``check(cell)``: sentences about options that contradict each other or the hardware,
- ``unavailable(cell, software)``: why it cannot run here although the devices are there, or None,
- ``certified()``: (devices, options) of what scripts/equivalence.py compares with eager training,
  those options that differ from their defaults,
- ``notes(cell)``: what a reader must know beside a number, by metric,

and a class ``Strategy`` for the processes that train: setup, wrap, reduce, close. Eager training is
a strategy too, and the one that the others derive from.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class Node:
    """One of the ``count`` nodes of a cell.

    ``address`` and ``port`` are the first node's, where all meet; ``interface``, over which they
    are reached, is this node's own.
    """

    rank: int
    count: int
    address: str
    port: int
    interface: str


def load(name: str) -> ModuleType:
    """The module of the strategy ``name``."""
    return importlib.import_module(f"strategies.{name}")
