"""Numbers over seeds or restarts, as tables and reports show them (docs/verdicts.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from parbench.verdicts.words import too_few


@dataclass(frozen=True)
class Estimate:
    """Numbers over ``n`` seeds, or ``of`` restarts of pairs; NaN where there are too few."""

    n: int
    mean: float = math.nan
    std: float = math.nan
    ci_low: float = math.nan
    ci_high: float = math.nan
    min: float = math.nan
    max: float = math.nan
    of: str = "seeds"

    @property
    def too_few(self) -> str:
        """Why they decide nothing; empty where they are enough."""
        return too_few(self.n, self.of)

    @property
    def seeds(self) -> int:
        """How many there are."""
        return self.n
