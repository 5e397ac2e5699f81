"""What a pair says of its variant, given the pairs of two equal sides (A/A) that vouch for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from parbench.verdicts.groups import Group
from parbench.verdicts.pairs import Compared


@dataclass(frozen=True)
class TimedPair:
    """``group`` compared in turns with ``baseline``; ``turns``: the attribute of a group that holds
    such pairs: of training, or of predicting."""

    group: Group
    baseline: Group
    turns: str = "pairs"

    @property
    def compared(self) -> Compared:
        """Its restarts."""
        return getattr(self.group, self.turns)[self.baseline.id]

    @property
    def variant(self) -> str:
        """The variant's name, and whether it predicts."""
        return self.group.variant + ", predicting" * (self.turns == "predicting")

    @property
    def is_of_equal_sides(self) -> bool:
        """Whether it compares a group with itself (A/A)."""
        return self.group is self.baseline

    def reading(self, groups: Iterable[Group], share: float) -> str:
        """Return whether the variant is faster than its baseline, slower, or equal within
        ``share``; or why that is not known. Of equal sides, whether they are.

        ``groups``: those whose equal sides vouch for it. Empty without restarts.
        """
        if not self.compared.restarts:
            return ""
        if self.is_of_equal_sides:
            return self.compared.equal_reading
        if why := void(groups, (self.group, self.baseline), self.turns):
            return f"void: {why}"
        if (self.compared.series.ci_low or 0) > self.group.most_by_devices(self.baseline):
            return "above the bound: suspect the clock"
        return self.compared.reading(share)


def timed_pairs(groups: Mapping[str, Group]) -> Iterator[TimedPair]:
    """Yield all pairs of training and of predicting, given the ``groups`` by id."""
    for group in groups.values():
        for turns in ("pairs", "predicting"):
            yield from (TimedPair(group, groups[one], turns) for one in getattr(group, turns))


def vouching(
    groups: Iterable[Group], sides: tuple[Group, Group], turns: str
) -> list[tuple[Group, Compared]]:
    """Return the pairs of two equal sides (A/A) that vouch for a pair of ``sides``: of its own
    kind, which is training, its energy or inference (``turns``, an attribute of a group), the kind
    of device, and as many of them with as many threads and nodes as one of its sides."""

    def kind(group: Group) -> tuple:
        hardware = group.hardware
        return hardware.device, hardware.devices, hardware.threads, hardware.nodes

    kinds = set(map(kind, sides))
    found = []
    for group in groups:
        equal = getattr(group, turns).get(group.id)
        if equal is not None and kind(group) in kinds:
            found.append((group, equal))
    return found


def void(groups: Iterable[Group], sides: tuple[Group, Group], turns: str) -> str:
    """Return why a pair is void, because equal sides of its kind differ; else empty."""
    for group, equal in vouching(groups, sides, turns):
        if equal.biased:
            return f"equal sides differ on {group.describe_hardware()}: {equal.equality}"
    return ""
