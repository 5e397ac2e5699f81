"""The words for statuses and verdicts, and how many values those take (docs/verdicts.md)."""

from __future__ import annotations

OK = "ok"
NOT_RUN = "not run"
# What a failed run is called in the status column and in sentences.
FAILURES = {"out_of_memory": "out of memory", "diverged": "diverged"}

REPRODUCED = "reproduced"
NOT_REPRODUCED = "not reproduced"
SUSPICIOUS = "better than published (suspicious)"
NOT_COMPARABLE = "not comparable"
# Where a published ratio lies.
INSIDE, ABOVE, BELOW = "inside the interval", "above the interval", "below the interval"
UNDECIDED = "undecided"
NOT_MEASURED = "not measured"
NO_PUBLISHED_VALUE = "no published value"
# In the order of a report's summary.
VERDICTS = (
    REPRODUCED,
    INSIDE,
    ABOVE,
    BELOW,
    NOT_REPRODUCED,
    SUSPICIOUS,
    NOT_COMPARABLE,
    UNDECIDED,
    NOT_RUN,
    NOT_MEASURED,
    NO_PUBLISHED_VALUE,
)

# Verdicts on claims.
HOLDS = "holds"
FAILS = "does not hold"
REPORTED = "reported"
UNTESTED = "cannot be tested here"
CLAIM_VERDICTS = (HOLDS, FAILS, UNDECIDED, REPORTED, UNTESTED)

TOO_CLOSE = "too close to call"  # said if a verdict would take too long

# Verdicts of certificates.
EQUAL, DIFFERS = "equal", "differs"

FEWEST = 4  # seeds or restarts; of fewer only the range is shown, and they decide nothing
SHARED = "shared: other cells ran at the same time on such a machine"
SHARED_NODES = "shared: others' jobs may have run on its nodes at the same time"
NO_VALUES = "no seed or restart that both have"
NOT_REACHED = "not reached"  # begins the reason about seeds below the published accuracy


def too_few(number: int, of: str = "seeds") -> str:
    """Return why ``number`` seeds or restarts decide nothing; empty if they are enough."""
    counted = f"{number} {of if number != 1 else of.rstrip('s')}"
    return f"{counted}, and {FEWEST} are the fewest" if number < FEWEST else ""
