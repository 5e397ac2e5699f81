"""Time by operator in training steps only, including the optimizer's step."""

from __future__ import annotations

from contextlib import AbstractContextManager

from parbench.measure.profiling import none, operators


class Profile(operators.Profile):
    """Like ``operators``, without inference, for comparison with a published training step."""

    def phase(self, name: str) -> AbstractContextManager:
        """Profile training steps only."""
        return none.NOTHING if name == "inference" else super().phase(name)
