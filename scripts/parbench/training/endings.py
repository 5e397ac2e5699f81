"""How a training ends before its last step."""

from __future__ import annotations


class Diverged(Exception):
    """The loss is no longer a number."""


class CompanionDiverged(Diverged):
    """That of a model that trained at the same time: this one was not beside it to the end."""


class Stopped(Exception):
    """The launcher asked for the end; a checkpoint is kept."""
