"""Groups on several devices against the same on one: the gain, and the serial fraction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass

from parbench.verdicts.groups import Group
from parbench.verdicts.series import Series

STRONG, WEAK = "strong", "weak"
WITH_BATCH = ("global_batch", "min_tail", "steps", "evaluation_batch")  # may vary with the batch


def karp_flatt(speedup: float, devices: int) -> float:
    """Return the serial fraction of Amdahl's law for a measured speedup (Karp and Flatt 1990)."""
    return (devices / speedup - 1) / (devices - 1)


def gustafson(speedup: float, devices: int) -> float:
    """Return the serial fraction for a scaled speedup (Gustafson 1988)."""
    return (devices - speedup) / (devices - 1)


SERIAL: dict[str, Callable[[float, int], float]] = {STRONG: karp_flatt, WEAK: gustafson}


@dataclass(frozen=True)
class Measure:
    """A number with the ends of its interval or, if there are too few values, of their range."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, series: Series) -> Measure:
        """Return the mean of ``series`` with its ends."""
        ends = (series.min, series.max) if series.too_few else (series.ci_low, series.ci_high)
        return cls(series.mean, *ends)


@dataclass(frozen=True)
class Scaled:
    """A group on several devices with its baseline on one: ``kind`` is strong if their global
    batches are equal, weak if their batches per device are."""

    group: Group
    baseline: Group
    kind: str

    @property
    def measured(self) -> bool:
        """Whether a pair compared the two."""
        pair = self.group.pairs.get(self.baseline.id)
        return pair is not None and bool(pair.restarts)

    @property
    def gain(self) -> Measure:
        """The ratio of samples per second; in strong scaling, the speedup."""
        return Measure.of(self.group.pairs[self.baseline.id].series)

    @property
    def serial(self) -> Measure:
        """The serial fraction; the ends of its interval follow from those of the gain."""
        fraction, gain = SERIAL[self.kind], self.gain
        return Measure(
            *(
                fraction(speedup, self.group.devices)
                for speedup in (gain.value, gain.high, gain.low)
            )
        )


def scaled(group: Group, groups: Mapping[str, Group]) -> Scaled | None:
    """Return ``group`` with its baseline from ``groups``; None if they differ in more than the
    number of devices, or the strategy says that its speedup means something else."""
    baseline = groups.get(group.baseline or "")
    if baseline is None or group.devices == 1 or baseline.devices > 1:
        return None
    if _apart(group) != _apart(baseline) or "speedup" in group.comparable:
        return None
    kinds = {baseline.batch: STRONG, baseline.batch * group.devices: WEAK}
    kind = kinds.get(group.batch)
    return Scaled(group, baseline, kind) if kind else None


def several(groups: Iterable[Group], known: Mapping[str, Group]) -> list[Scaled]:
    """Return those of ``groups`` that make curves: of models on more than one number of devices,
    where numbers on several nodes count only if measured."""
    points = [point for point in (scaled(group, known) for group in groups) if point]
    devices_by_model: dict[str, set[int]] = {}
    for point in points:
        if point.measured or point.group.hardware.nodes == 1:
            devices_by_model.setdefault(point.group.model, set()).add(point.group.devices)
    return [point for point in points if len(devices_by_model.get(point.group.model, ())) > 1]


def _apart(group: Group) -> list:
    """Return what must be equal for two groups to be compared."""
    settings = asdict(group.training)
    fixed = {key: value for key, value in settings.items() if key not in WITH_BATCH}
    hardware = group.hardware
    return [
        fixed,
        group.dataset,
        group.model_options,
        hardware.device,
        hardware.threads,
        hardware.gpu_model,
    ]
