"""The words for statuses and verdicts, of numbers and of claims alike, and how many values a
verdict needs (docs/verdicts.md)."""

from __future__ import annotations

OK = "ok"
# What a failed run is called in the status column and in sentences.
FAILURES = {"out_of_memory": "out of memory", "diverged": "diverged"}

# Size: how what was measured here compares with the published number. Of a ratio, or difference,
# "smaller" is closer to no effect.
AS_PUBLISHED = "as published"
SMALLER, LARGER = "smaller than published", "larger than published"
NOT_TOLD_APART = "not told apart from published"
SIZES = (AS_PUBLISHED, SMALLER, LARGER, NOT_TOLD_APART)
CANNOT_BE_SHOWN = "cannot be shown here"  # beyond what the devices here can give

# Direction: how what was measured here compares with what is claimed of it.
AS_CLAIMED = "as claimed"
OPPOSITE = "opposite"
NO_DIFFERENCE = "no difference"
DIFFERENT = "different"  # where the source claims that two are the same
REFUTED = (OPPOSITE, NO_DIFFERENCE, DIFFERENT)
UNDECIDED = "undecided"
DIRECTIONS = (AS_CLAIMED, *REFUTED, UNDECIDED)

# Why nothing is judged.
REPORTED = "reported"  # the source asks, and claims nothing
IMPOSSIBLE = "impossible as stated"  # beyond what the source's own devices can give
CONTRADICTED = "contradicted by its source"  # by its own numbers
FAILED_HERE = "failed here"
NO_PAIR = "no pair"
NOT_COMPARABLE = "not comparable"
NOT_RUN = "not run"
NOT_MEASURED = "not measured"
NO_CELLS = "no cells"  # the study has none that a part of a claim is about
NO_PUBLISHED_VALUE = "no published value"
AGAINST_SOURCE = (IMPOSSIBLE, CONTRADICTED)  # whatever is measured
UNJUDGED = (FAILED_HERE, NO_PAIR, NOT_COMPARABLE, NOT_RUN, NOT_MEASURED)

# Of a table's numbers, in the order of a report's summary.
VERDICTS = (*SIZES, OPPOSITE, UNDECIDED, NOT_COMPARABLE, NOT_RUN, NOT_MEASURED, NO_PUBLISHED_VALUE)
JUDGED = (*SIZES, OPPOSITE, UNDECIDED)

# Of a claim.
HOLDS = "holds"
HOLDS_IN_DIRECTION = "holds in direction"
HOLDS_IN_PART = "holds in part"
FAILS = "does not hold"
NOT_TESTED = "not tested here"
CLAIM_VERDICTS = (
    HOLDS,
    HOLDS_IN_DIRECTION,
    HOLDS_IN_PART,
    FAILS,
    IMPOSSIBLE,
    CONTRADICTED,
    UNDECIDED,
    REPORTED,
    NOT_TESTED,
)

# How close what was measured is to what the source measured.
SAME_CONFIGURATION = "same configuration"
OTHER_HARDWARE = "other hardware"
SCALED_COPY = "scaled copy"
GRADES = (SAME_CONFIGURATION, OTHER_HARDWARE, SCALED_COPY)

TOO_CLOSE = "too close to call"  # used if a verdict would take too long

FEWEST = 4  # seeds or restarts; fewer decide nothing, and only their range is shown
SHARED = "shared: other cells ran at the same time on such hardware, perhaps on this machine"
LEAST_SECONDS = 2.0  # of training that a rate needs
SHORT = f"short: timed over less than {LEAST_SECONDS:g} s of steps"
SHARED_CELL = "shared its machine"
SHARED_NODES = "shared: others' jobs may have run on its nodes at the same time"
NO_VALUES = "no seed or restart that both have"
NOT_REACHED = "not reached"  # begins the reason about seeds below the published accuracy


def too_few(number: int, of: str = "seeds") -> str:
    """Return why ``number`` seeds or restarts decide nothing; empty if they are enough."""
    counted = f"{number} {of if number != 1 else of.rstrip('s')}"
    return f"{counted}, but at least {FEWEST} are needed" if number < FEWEST else ""
