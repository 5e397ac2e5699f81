"""How many seeds it takes, and what is said of them (docs/verdicts.md)."""

DECIDE_FROM = 3  # fewer give their range, and decide nothing
TRIM_FROM = 5  # from here on, clocked metrics are averaged without the fastest and the slowest

NOT_REACHED = "not reached"  # so begins what is said of seeds below the published accuracy


def too_few(number: int) -> str:
    """Why ``number`` seeds decide nothing; empty where they are enough."""
    return f"{number} of at least {DECIDE_FROM} seeds" if number < DECIDE_FROM else ""
