"""Profile training steps by operator, including the optimizer's step, but no inference."""

from __future__ import annotations

from contextlib import AbstractContextManager

from parbench.measure.profiling import none, operators


class Profile(operators.Profile):
    """Record as ``operators`` does, but no inference, to compare with a published training step."""

    def phase(self, name: str) -> AbstractContextManager:
        """Profile training steps only."""
        return none.NOTHING if name == "inference" else super().phase(name)
