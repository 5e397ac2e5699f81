"""The learning rate that a cell is trained with, by its rule.

Without torch: the loop uses it, and the plan tells it to the report.
"""

from __future__ import annotations

from parbench.cell import Training

# What a stated rate becomes with so many data-parallel ranks.
RULES = {
    "fixed": lambda stated, ranks: stated,
    "linear": lambda stated, ranks: stated * ranks,
}


def peak(training: Training, ranks: int) -> float:
    """The peak learning rate of ``ranks`` processes that share each global batch."""
    return RULES[training.learning_rate_rule](training.learning_rate, ranks)
