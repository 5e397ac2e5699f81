"""What a comparison can at most show."""

from __future__ import annotations

import math

from parbench.verdicts.groups import Group


def most(fast: Group, slow: Group) -> float:
    """How many times faster ``fast`` can at most be, which has more devices than ``slow``: by their
    number, by its pipeline or, of models side by side, by the longest of them; else infinite."""
    more, few = (each.devices * each.hardware.threads for each in (fast, slow))
    if more <= few or fast.hardware.device != slow.hardware.device:
        return math.inf
    compared = fast.pairs.get(slow.id) if fast.members else None
    bounds = [more / few, fast.work.pipeline_bound, compared.bound if compared else None]
    return min(each for each in bounds if each is not None)
