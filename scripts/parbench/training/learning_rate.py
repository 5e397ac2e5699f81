"""Compute the peak learning rate of a cell, without torch, since the plan needs it, too."""

from __future__ import annotations

from parbench.cell import Training

# By rule: the peak rate, from the configured rate and the data-parallel size.
RULES = {
    "fixed": lambda stated, ranks: stated,
    "linear": lambda stated, ranks: stated * ranks,
}


def peak(training: Training, ranks: int) -> float:
    """Return the peak learning rate for ``ranks`` processes that share each global batch."""
    return RULES[training.learning_rate_rule](training.learning_rate, ranks)
