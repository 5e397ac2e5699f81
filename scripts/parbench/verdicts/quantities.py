"""What a published metric measures, by its name: its units, and within what its values lie."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from parbench.plan.published import Published
from parbench.verdicts.arithmetic import Contradiction, Sure, against

SECONDS = {
    "ms": 0.001,
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
}
RATES = {f"/{unit}": 1 / size for unit, size in SECONDS.items()}
NUMBERS = {
    **dict.fromkeys(("1", "fraction", "ratio", "times", "x"), 1.0),
    **dict.fromkeys(("%", "percent"), 0.01),
}


@dataclass(frozen=True)
class Quantity:
    """What the metrics measure whose names match ``names``.

    ``sizes``: of other units in ``unit``. Values lie above 0, or from 0 on where ``may_be_zero``.
    """

    names: str
    what: str
    unit: str
    sizes: Mapping[str, float]
    most: float = math.inf
    may_be_zero: bool = False

    def size(self, unit: str) -> float | None:
        """Of ``unit``, empty for the quantity's own; None where it measures something else."""
        return self.sizes.get(re.sub(r".*(/|\bper )\s*", "/", unit.lower())) if unit else 1.0

    @property
    def bounds(self) -> str:
        """Within what a value lies, in words."""
        least = "at least 0" if self.may_be_zero else "above 0"
        return least if self.most == math.inf else f"{least} and at most {self.most:g}"

    def holds(self, value: float) -> bool:
        """Whether ``value`` can be."""
        return 0 < value <= self.most or (self.may_be_zero and value == 0)


SCORES = r"\w*(accuracy|precision|recall|specificity|f1)(_macro|_micro|_weighted)?"
QUANTITIES = (  # the first whose names match
    Quantity(r"\w+_per_second", "a rate", "1/s", RATES),
    Quantity(r"operator_\w+_seconds:.*", "a time", "s", SECONDS, may_be_zero=True),
    Quantity(r"\w*seconds\w*", "a time", "s", SECONDS),
    Quantity(SCORES, "a score", "fraction", NUMBERS, most=1.0, may_be_zero=True),
    Quantity(r"speedup|\w+_ratio|\w+_efficiency", "a ratio", "ratio", NUMBERS),
)


def _quantity(row: Published) -> Quantity | None:
    return next((each for each in QUANTITIES if re.fullmatch(each.names, row.metric)), None)


def misread(row: Published) -> Contradiction | None:
    """A value in another unit than its metric's, than the printed one, or that cannot be."""
    quantity = _quantity(row)
    if quantity is None:
        return None
    size = quantity.size(row.unit)
    if size is None:
        says = f"{row}: {row.metric} is {quantity.what}, but its unit is {row.unit!r}"
        return against("another unit", Sure.LIKELY, [row], says)
    size_printed = row.published_unit and quantity.size(row.published_unit)
    if size_printed and re.fullmatch(r"-?\d+(\.\d+)?", row.published_value):
        printed = float(row.published_value) * size_printed
        if not math.isclose(row.value * size, printed, rel_tol=0.01):
            says = (
                f"{row}: {row.metric} is kept as {row.shown}, but {row.published_value} "
                f"{row.published_unit} is printed, which is {printed:g} {quantity.unit}"
            )
            return against("another unit", Sure.CERTAIN, [row], says)
    if not quantity.holds(row.value * size):
        says = f"{row}: {row.metric} is {row.shown}, but {quantity.what} is {quantity.bounds}"
        return against("outside its range", Sure.CERTAIN, [row], says)
    return None


def converted(row: Published) -> Published:
    """``row`` in its metric's own unit, with digits of its value where none are printed."""
    quantity = _quantity(row)
    size = quantity.size(row.unit) if quantity else 1.0
    own = {"published_value": row.published_value or f"{row.value:g}"}
    if size != 1:
        own |= {"value": row.value * size, "unit": quantity.unit}
    return row.model_copy(update=own)
