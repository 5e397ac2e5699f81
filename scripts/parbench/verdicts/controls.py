"""What a pair shows about its variant, given the A/A pairs of its kind: those of equal sides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from parbench.verdicts.groups import Group, Kind
from parbench.verdicts.pairs import Compared


@dataclass(frozen=True)
class TimedPair:
    """``group`` compared in turns with ``baseline``, in training or in predicting."""

    group: Group
    baseline: Group
    kind: Kind = "training"

    @property
    def compared(self) -> Compared:
        """The comparison, by restart."""
        return self.group.in_turns.of(self.kind)[self.baseline.id]

    @property
    def variant(self) -> str:
        """The variant's name, and whether it predicts."""
        return self.group.variant + ", predicting" * (self.kind == "predicting")

    @property
    def is_of_equal_sides(self) -> bool:
        """Whether it compares a group with itself (A/A)."""
        return self.group is self.baseline

    def reading(self, groups: Iterable[Group], share: float) -> str:
        """Return whether the variant is faster than its baseline, slower, or equal within
        ``share``; or why that is not known. For an A/A pair, whether it is equal.

        ``groups``: those whose A/A pairs count for it. Empty without restarts.
        """
        if not self.compared.restarts:
            return ""
        if self.is_of_equal_sides:
            return self.compared.equal_reading
        if why := bias_of_controls(groups, (self.group, self.baseline), self.kind):
            return f"void: {why}"
        if (self.compared.series.ci_low or 0) > self.group.most_by_devices(self.baseline):
            return "above the bound: suspect the clock"
        return self.compared.reading(share)


def timed_pairs(groups: Mapping[str, Group]) -> Iterator[TimedPair]:
    """Yield all pairs of training and of predicting, given the ``groups`` by id."""
    kinds: tuple[Kind, ...] = ("training", "predicting")
    for group in groups.values():
        for kind in kinds:
            yield from (TimedPair(group, groups[one], kind) for one in group.in_turns.of(kind))


def control_pairs(
    groups: Iterable[Group], sides: tuple[Group, Group], kind: Kind
) -> list[tuple[Group, Compared]]:
    """Return the A/A pairs of the kind of a pair of ``sides``: those that measure the same
    (``kind``: training, its energy or predicting) on the same kind and number of devices, threads
    and nodes as one of ``sides``."""

    devices_of_sides = set(map(_devices, sides))
    found: list[tuple[Group, Compared]] = []
    for group in groups:
        equal = group.in_turns.of(kind).get(group.id)
        if equal is not None and _devices(group) in devices_of_sides:
            found.append((group, equal))
    return found


def _devices(group: Group) -> tuple[str, int, int, int]:
    hardware = group.hardware
    return hardware.device, hardware.devices, hardware.threads, hardware.nodes


def sides_without_controls(
    groups: Iterable[Group], sides: tuple[Group, Group], kind: Kind
) -> list[Group]:
    """Return the ``sides`` of a pair on whose devices no A/A pair measures the same (``kind``)."""
    known = {_devices(group) for group, _ in control_pairs(groups, sides, kind)}
    return [side for side in sides if _devices(side) not in known]


def pairs_without_controls(groups: Mapping[str, Group]) -> Iterator[tuple[TimedPair, Group]]:
    """Yield the pairs of ``groups``, by id, each with a side on whose devices no A/A pair measures
    the same."""
    for pair in timed_pairs(groups):
        sides = sides_without_controls(groups.values(), (pair.group, pair.baseline), pair.kind)
        yield from ((pair, side) for side in sides)


def bias_of_controls(groups: Iterable[Group], sides: tuple[Group, Group], kind: Kind) -> str:
    """Return why a pair decides nothing: an A/A pair of its kind is biased; empty if none is."""
    for group, equal in control_pairs(groups, sides, kind):
        if equal.biased:
            return f"the A/A pair on {group.describe_hardware()} is biased: {equal.numbers}"
    return ""
