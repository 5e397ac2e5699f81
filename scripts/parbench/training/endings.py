"""Exceptions that end a training early."""

from __future__ import annotations


class Diverged(Exception):
    """Raised when the loss is not finite."""


class CompanionDiverged(Diverged):
    """Raised when a model that trains at the same time has diverged."""


class Stopped(Exception):
    """Raised when the launcher has asked to stop and a checkpoint is written."""
