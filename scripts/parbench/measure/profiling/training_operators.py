"""Operators that take the time in steps of training alone, the optimizer's step among them."""

from __future__ import annotations

from contextlib import AbstractContextManager

from parbench.measure.profiling import none, operators


class Profile(operators.Profile):
    """As that of ``operators``, without inference: what stands beside a published training step."""

    def phase(self, name: str) -> AbstractContextManager:
        """Of steps alone."""
        return none.NOTHING if name == "inference" else super().phase(name)
