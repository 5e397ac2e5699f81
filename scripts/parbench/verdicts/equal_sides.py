"""A/A: pairs of two equal sides, which show whether taking turns favours one (docs/verdicts.md)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from parbench.verdicts import sequential
from parbench.verdicts.groups import Group
from parbench.verdicts.series import Series
from parbench.verdicts.words import SAME

ALPHA = 0.01  # at which a harness is called biased
MARGIN = 0.05


@dataclass(frozen=True)
class EqualSides:
    """What the equal sides of a group showed."""

    group: Group

    @property
    def series(self) -> Series:
        """By restart."""
        return self.group.pairs[self.group.id].series

    @property
    def biased(self) -> bool:
        """Whether they differ."""
        found = self.series.interval(ALPHA)
        return found is not None and (found.low > 0 or found.high < 0)

    @property
    def said(self) -> str:
        """``1.002 [0.990, 1.014] of 4 restarts: equal within 5 %``."""
        measured, found = self.series.estimate(), self.series.interval()
        if found is None:
            return f"not checked: {measured.too_few}"
        ends = f"{measured.mean:.3f} [{measured.ci_low:.3f}, {measured.ci_high:.3f}]"
        same = sequential.within(found, sequential.ratio_margin(MARGIN)) == SAME
        word = f"equal within {MARGIN:.0%}" if same else "not checked: too wide"
        word = "biased: what it is to tell is void" if self.biased else word
        return f"{ends} of {measured.n} restarts: {word}"


def equal_sides(groups: Iterable[Group]) -> list[EqualSides]:
    """Those of ``groups`` that were compared with themselves."""
    return [EqualSides(group) for group in groups if group.id in group.pairs]


def biased(groups: Iterable[Group], compared: Iterable[Group]) -> str:
    """Why pairs of ``compared`` tell nothing: equal sides on as many devices differ; else empty."""
    places = {(group.hardware.device, group.devices) for group in compared}
    for each in equal_sides(groups):
        if each.biased and (each.group.hardware.device, each.group.devices) in places:
            return f"equal sides differ on {each.group.describe_hardware()}: {each.said}"
    return ""
