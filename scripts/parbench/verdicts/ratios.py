"""Ratios in words, the same on a terminal and in the report."""

from __future__ import annotations

from parbench.verdicts.rows import Row
from parbench.verdicts.sequential import Series


def ratio_text(value: float, places: int = 2) -> str:
    """Format a ratio with ``places`` decimals, or with two significant digits if it is small."""
    return f"{value:,.{places}f}" if abs(value) >= 0.095 or value == 0 else f"{value:.2g}"


def with_interval(found: Series | Row, instead: str = "", places: int = 2) -> str:
    """Return a mean ratio with its interval, ``1.09 (0.98 to 1.21)``, or with ``instead`` if there
    is no interval; empty without a mean."""
    if found.mean is None:
        return ""
    ends = (found.ci_low, found.ci_high)
    interval = " to ".join(ratio_text(end, places) for end in ends if end is not None) or instead
    return f"{ratio_text(found.mean, places)} ({interval})".removesuffix(" ()")
