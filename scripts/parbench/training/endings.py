"""Exceptions that end a training early."""

from __future__ import annotations


class Diverged(Exception):
    """The loss is not finite."""


class CompanionDiverged(Diverged):
    """A model that trained at the same time diverged."""


class Stopped(Exception):
    """The launcher asked to stop; a checkpoint was written."""
