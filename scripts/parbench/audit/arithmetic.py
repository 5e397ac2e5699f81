"""Findings of the audit, units and ranges of metrics, and checks of devices, times and ratios.
Every check expects values in their metric's own unit.
"""

from __future__ import annotations

import enum
import itertools
import math
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from parbench.plan.published import Published
from parbench.words import count

TIMES = ("train_seconds", "total_seconds", "epoch_seconds")
RATE = "samples_per_second"
# Ratios that a source prints, and the metrics they are computed from, in order of preference: time
# before over time after, or throughput after over before.
RATIOS: dict[str, tuple[tuple[str, ...], ...]] = {
    "speedup": (TIMES, (RATE,)),
    "throughput_ratio": ((RATE,),),
    "parallel_efficiency": (TIMES, (RATE,)),
}
FASTER = "faster than its devices"
OTHER_DEVICES = "another number of devices"
PROMISED = "promised above its devices"
# Checks whose findings say that no run on the source's devices gives a number; findings of all
# others say that numbers contradict each other.
NO_RUN_GIVES = (FASTER, OTHER_DEVICES, PROMISED)
ALIKE = 1.05  # repeated runs or a larger cache may explain a factor up to this
# Throughput may exclude the start or the end of an epoch, but not a fifth of the time.
EPOCHS_WITHIN = 1.2


class Certainty(enum.StrEnum):
    """How certain a finding is; docs/audit.md says what each word means."""

    CERTAIN = "certain"
    LIKELY = "likely"
    WEAK = "weak"


@dataclass(frozen=True)
class DatasetAssumptions:
    """What is assumed of the dataset: the numbers of ``classes`` and ``train_samples``, and whether
    the test set is ``balanced``: all classes have the same number of samples.

    ``compared``: the lines and metrics of the values that a check has compared with another value,
    or with their number of devices.
    """

    classes: int = 10
    train_samples: int = 50_000
    balanced: bool = True
    compared: set[tuple[int, str]] = field(default_factory=set, compare=False)

    def compares(self, *rows: Published) -> None:
        """Record that a check compares ``rows`` with each other."""
        self.compared.update((row.line, row.metric) for row in rows)


@dataclass(frozen=True)
class Contradiction:
    """Numbers that cannot all be true, or hardly can; ``lines``: their lines in the file; ``part``:
    the name of the claim that they contradict, and the number of its part."""

    check: str
    certainty: Certainty
    study: str
    says: str
    lines: tuple[int, ...]
    part: tuple[str, int] | None = None


def against(
    check: str, certainty: Certainty, rows: Iterable[Published], says: str
) -> Contradiction:
    """Return the contradiction between ``rows``, whose first names the study."""
    rows = list(rows)
    lines = tuple(dict.fromkeys(row.line for row in rows))
    return Contradiction(check, certainty, rows[0].study, says, lines)


Rows = Collection[Published]
Found = Iterator[Contradiction]


def of_metrics(rows: Rows, *metrics: str) -> list[Published]:
    """Return the ``rows`` whose metric is one of ``metrics``."""
    return [row for row in rows if row.metric in metrics]


def grouped(rows: Rows, key: Callable[[Published], Hashable]) -> Iterable[list[Published]]:
    """Return the rows grouped by ``key``, in the order of the file."""
    groups: dict[Hashable, list[Published]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups.values()


def by_configuration(rows: Rows) -> Iterator[dict[str, Published]]:
    """Yield the rows of each configuration, by metric."""
    for group in grouped(rows, lambda row: row.configuration):
        yield {row.metric: row for row in group}


# ---------------------------------------------------------------- units

SECONDS = {
    "ms": 0.001,
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
}
RATES = {f"/{unit}": 1 / size for unit, size in SECONDS.items()}
NUMBERS = {
    **dict.fromkeys(("1", "fraction", "ratio", "times", "x", "×"), 1.0),
    **dict.fromkeys(("%", "percent"), 0.01),
}


@dataclass(frozen=True)
class Quantity:
    """The quantity that metrics measure whose names match the pattern ``names``.

    ``sizes``: each unit expressed in ``unit``. Values are above 0, or may be 0 if ``may_be_zero``.
    """

    names: str
    what: str
    unit: str
    sizes: Mapping[str, float]
    most: float = math.inf
    may_be_zero: bool = False
    is_timed: bool = False  # a time or a rate of a run, not of one of its operators

    def size(self, unit: str) -> float | None:
        """Return ``unit`` in units of ``self.unit``: 1 if empty, None if of another quantity."""
        return self.sizes.get(re.sub(r".*(/|\bper )\s*", "/", unit.lower())) if unit else 1.0


SCORES = r"\w*(accuracy|precision|recall|specificity|f1)(_macro|_micro|_weighted)?"
QUANTITIES = (  # the first match counts
    Quantity(r"\w+_per_second", "a rate", "1/s", RATES, is_timed=True),
    Quantity(r"operator_\w+_seconds:.*", "a time", "s", SECONDS, may_be_zero=True),
    Quantity(r"\w*seconds\w*", "a time", "s", SECONDS, is_timed=True),
    Quantity(SCORES, "a score", "fraction", NUMBERS, most=1.0, may_be_zero=True),
    Quantity(r"speedup|\w+_ratio|\w+_efficiency", "a ratio", "ratio", NUMBERS),
)


def quantity_of(metric: str) -> Quantity | None:
    """Return the quantity that a metric measures; None if no check covers the metric."""
    return next((each for each in QUANTITIES if re.fullmatch(each.names, metric)), None)


def converted(row: Published) -> Published | Contradiction:
    """Return ``row`` in its metric's own unit, with an empty ``published_value`` filled in from its
    value; or a Contradiction if its unit is wrong, or its value out of range or not as printed.
    """
    # No more digits than a float has, since the last digit says how exact the value is.
    changes = {"published_value": row.published_value or f"{row.value:.15g}"}
    quantity = quantity_of(row.metric)
    if quantity is None:
        return row.model_copy(update=changes)
    size = quantity.size(row.unit)
    if size is None:
        says = f"{row}: {row.metric} is {quantity.what}, but its unit is {row.unit!r}"
        return against("another unit", Certainty.LIKELY, [row], says)
    value, size_printed = row.value * size, row.published_unit and quantity.size(row.published_unit)
    if size_printed and row.published_value:
        printed = float(row.published_value) * size_printed
        if not math.isclose(value, printed, rel_tol=0.01):
            says = (
                f"{row}: {row.metric} is kept as {row.shown}, but {row.published_value} "
                f"{row.published_unit} is printed, which is {printed:g} {quantity.unit}"
            )
            return against("another unit", Certainty.CERTAIN, [row], says)
    if not (0 < value <= quantity.most or (quantity.may_be_zero and value == 0)):
        bounds = "at least 0" if quantity.may_be_zero else "above 0"
        bounds += f" and at most {quantity.most:g}" if math.isfinite(quantity.most) else ""
        says = f"{row}: {row.metric} is {row.shown}, but {quantity.what} is {bounds}"
        return against("outside its range", Certainty.CERTAIN, [row], says)
    if size != 1:
        changes |= {"value": value, "unit": quantity.unit}
    return row.model_copy(update=changes)


# ---------------------------------------------------------------- devices and times


@dataclass(frozen=True)
class Faster:
    """Two values of one metric, on ``few`` devices and on ``many``.

    ``ratio``: how many times as fast ``many`` is; ``least`` and ``most``: what rounding allows.
    """

    few: Published
    many: Published
    ratio: float
    least: float
    most: float

    @property
    def bound(self) -> float:
        """The largest ratio that the devices allow."""
        return self.many.devices / self.few.devices

    @property
    def kept_as_seconds(self) -> Published | None:
        """Of two times, the one that is plausible only if it is in minutes; None if neither."""
        if self.few.metric not in TIMES:
            return None
        if self.ratio > 2 * self.bound and 1 / 3 <= self.ratio / 60 <= self.bound:
            return self.many
        if self.ratio < 0.1 and 1 / 3 <= self.ratio * 60 <= self.bound:
            return self.few
        return None


def _faster(rows: Rows) -> Iterator[Faster]:
    """Yield all pairs of ``rows`` that share metric and setting and differ in devices."""
    for group in grouped(rows, lambda row: (row.metric, row.setting)):
        for few, many in itertools.permutations(group, 2):
            if few.devices < many.devices:
                slow, quick = (few, many) if few.metric in TIMES else (many, few)
                most = slow.most / quick.least if quick.least > 0 else math.inf
                ratio, least = slow.value / quick.value, slow.least / quick.most
                yield Faster(few, many, ratio, least, most)


def _alike(one: Published, other: Published) -> bool:
    """Return whether two rows have the same strategy with the same options."""
    return (one.strategy, one.options) == (other.strategy, other.options)


def _bounded(rows: Rows) -> Iterator[Faster]:
    """Yield the pairs whose devices bound the ratio: both of one strategy, or one of eager training
    if the setting has it, since another strategy on few devices may just be slow.
    """
    eager_settings = {row.setting for row in rows if row.strategy == "eager"}
    for pair in _faster(rows):
        few, many = pair.few, pair.many
        if _alike(few, many) or few.strategy == "eager" or few.setting not in eager_settings:
            yield pair


def faster_than_its_devices(rows: Rows, assumptions: DatasetAssumptions) -> Found:
    """Yield the pairs in which n times the devices are more than n times as fast."""
    for pair in _bounded(of_metrics(rows, *TIMES, RATE)):
        few, many = pair.few, pair.many
        assumptions.compares(few, many)
        if pair.least > pair.bound and pair.kept_as_seconds is None:
            says = (
                f"{many}: {few.shown} to {many.shown} is a factor of {pair.ratio:.3g}, but "
                f"{many.devices} devices instead of {few.devices} allow at most {pair.bound:g}"
            )
            certainty = Certainty.LIKELY if pair.ratio > ALIKE * pair.bound else Certainty.WEAK
            yield against(FASTER, certainty, (few, many), says)


def slower_on_more_devices(rows: Rows, assumptions: DatasetAssumptions) -> Found:
    """Yield the pairs of one strategy, or with eager training, in which more devices are slower,
    even when every rounding favors the paper."""
    for pair in _faster(of_metrics(rows, *TIMES, RATE)):
        few, many = pair.few, pair.many
        if not (few.strategy == "eager" or _alike(few, many)):
            continue
        if pair.most < 1 and pair.kept_as_seconds is None:
            says = (
                f"{many}: {few.shown} to {many.shown}, {pair.ratio:.3g} times as fast on "
                f"{many.devices} devices instead of {few.devices}"
            )
            yield against("slower on more devices", Certainty.WEAK, (few, many), says)


def printed_above_devices(rows: Rows, assumptions: DatasetAssumptions) -> Found:
    """Yield printed speedups above the number of devices, and efficiencies above 1. A speedup is
    only a weak finding if its model has several settings: the baseline may be in another one.
    """
    for row in of_metrics(rows, *RATIOS):
        is_efficiency = row.metric == "parallel_efficiency"
        if row.devices == 1 and not is_efficiency:  # against other hardware or another precision
            continue
        assumptions.compares(row)
        most = 1 if is_efficiency else row.devices
        if row.least > most:
            settings = {other.setting for other in rows if other.setting[:2] == row.setting[:2]}
            alone = is_efficiency or len(settings) == 1
            certainty = Certainty.LIKELY if alone and row.value > ALIKE * most else Certainty.WEAK
            says = (
                f"{row}: a printed {row.metric} of {row.value:g}, but "
                f"{count(row.devices, 'device')} allow{'s' * (row.devices == 1)} at most {most}"
            )
            yield against(FASTER, certainty, [row], says)


def minutes_kept_as_seconds(rows: Rows, assumptions: DatasetAssumptions) -> Found:
    """Yield times about 60 times too short compared with those on other numbers of devices."""
    for pair in _faster(of_metrics(rows, *TIMES)):
        short = pair.kept_as_seconds
        if short is not None:
            other = pair.few if short is pair.many else pair.many
            says = f"{short}: {short.shown}, but {other.shown} for {other}; minutes would fit"
            yield against("minutes kept as seconds", Certainty.LIKELY, (short, other), says)


def another_number_of_devices(rows: Rows, assumptions: DatasetAssumptions) -> Found:
    """Yield pairs too fast for the smaller number of devices that a row's note states."""
    for pair in _bounded(of_metrics(rows, *TIMES)):
        few, many = pair.few, pair.many
        assumptions.compares(few, many)
        match = re.search(r"\b(\d{1,6}) (?:GPU|CPU|device|accelerator)s?\b", many.note)
        devices = int(match[1]) if match else many.devices
        if match and few.devices < devices < many.devices and pair.least > devices / few.devices:
            says = (
                f"{many}: the source also says {match[0]}; {few.shown} to {many.shown} is "
                f"a factor of {pair.ratio:.3g}, and {devices} instead of {few.devices} allow at "
                f"most {devices / few.devices:g}"
            )
            yield against(OTHER_DEVICES, Certainty.LIKELY, (few, many), says)


def _on_each(row: Published) -> float | None:
    """Return the batch on each device; None if the source states no number."""
    return int(row.batch_size) / row.devices if row.batch_size.isdecimal() else None


def _made(row: Published, rows: Rows) -> list[Faster]:
    """Return the pairs that a printed ratio may come from: ``row`` and any on fewer devices, with
    the same batch over all devices (strong scaling) or on each (weak scaling)."""
    same_setting = [other for other in rows if other.setting == row.setting]
    if (batch := _on_each(row)) is not None:
        fewer = (each for each in rows if each.devices < row.devices and _on_each(each) == batch)
        as_large = (each.model_copy(update={"batch_size": row.batch_size}) for each in fewer)
        same_setting += [each for each in as_large if each.setting == row.setting]
    layout = row.devices, row.strategy
    for metrics in RATIOS[row.metric]:
        pairs = _faster(of_metrics(same_setting, *metrics))
        candidates = [pair for pair in pairs if (pair.many.devices, pair.many.strategy) == layout]
        if candidates:
            return candidates
    return []


def ratio_of_its_numbers(rows: Rows, assumptions: DatasetAssumptions) -> Found:
    """Yield printed ratios that no two printed times give or, without times, no two throughputs.
    An efficiency without a printed speedup must be such a ratio divided by that of the devices.
    """
    with_speedup = {speedup.configuration for speedup in of_metrics(rows, "speedup")}
    for row in of_metrics(rows, *RATIOS):
        is_efficiency = row.metric == "parallel_efficiency"
        if is_efficiency and row.configuration in with_speedup:
            continue  # see `efficiency`
        pairs = _made(row, rows)
        ratios = [pair.ratio / pair.bound if is_efficiency else pair.ratio for pair in pairs]
        # The times are rounded, too, and some sources divide rounded times.
        tolerance = {"rel_tol": 0.01, "abs_tol": 2 * row.rounding}
        assumptions.compares(*(side for pair in pairs for side in (row, pair.few, pair.many)))
        if pairs and not any(math.isclose(ratio, row.value, **tolerance) for ratio in ratios):
            shown = " or ".join(f"{ratio:.3g}" for ratio in ratios)
            yield against(
                "a ratio of other numbers",
                Certainty.LIKELY,
                (row, *(side for pair in pairs for side in (pair.few, pair.many))),
                f"{row}: {row.metric} {row.value:g} is printed; its numbers give {shown}",
            )


def efficiency(rows: Rows, assumptions: DatasetAssumptions) -> Found:
    """Yield parallel efficiencies that are not the printed speedup over the number of devices.

    Where the speedup is over several devices b, the efficiency is b times as high: that is no
    contradiction where the source has rows of b devices, and a likely one where it has none.
    """
    for row in of_metrics(rows, "parallel_efficiency"):
        speedups = [s for s in of_metrics(rows, "speedup") if s.configuration == row.configuration]
        assumptions.compares(*(each for speedup in speedups for each in (row, speedup)))
        baselines = {each for speedup in speedups for each in _baselines(row, speedup)}
        printed = {other.devices for other in rows if other.setting == row.setting}
        if speedups and not baselines & (printed | {1}):
            quotients = " and ".join(
                f"{speedup.value:g} / {row.devices} is {speedup.value / row.devices:.3g}"
                for speedup in speedups
            )
            says = f"{row}: parallel efficiency {row.value:g} is printed, but {quotients}"
            if baselines:
                says += f"; over {min(baselines)} devices it would be right, but no row has so many"
            certainty = Certainty.LIKELY if baselines else Certainty.CERTAIN
            yield against("an efficiency of another speedup", certainty, (row, *speedups), says)


def _baselines(row: Published, speedup: Published) -> set[int]:
    """Return the numbers of devices over which ``speedup`` makes the efficiency of ``row``."""
    each = speedup.value / row.devices
    slack = row.rounding + speedup.rounding * row.value / speedup.value
    first, last = math.ceil((row.value - slack) / each), math.floor((row.value + slack) / each)
    return set(range(max(1, first), min(row.devices, last) + 1))


def stated_epochs(rows: Rows, assumptions: DatasetAssumptions) -> Found:
    """Yield contradictions to the epochs stated in notes: throughput times training time must give
    that many training sets, and training must take that many times an epoch's seconds, not less
    and not much more.
    """
    for by_metric in by_configuration(rows):
        notes = "; ".join(row.note for row in by_metric.values())
        stated = re.search(r"\b(\d{1,6})[ -]epochs?\b", notes)
        epochs = int(stated[1]) if stated else 0
        time, rate = by_metric.get("train_seconds"), by_metric.get(RATE)
        if not epochs:
            continue
        if time and rate:
            samples, due = time.value * rate.value, epochs * assumptions.train_samples
            assumptions.compares(*(time, rate) if samples else ())
            if not 1 / EPOCHS_WITHIN <= samples / due <= EPOCHS_WITHIN:
                says = (
                    f"{time}: {rate.shown} for {time.shown} are {samples:,.0f} samples, "
                    f"{samples / assumptions.train_samples:.1f} epochs of "
                    f"{assumptions.train_samples:,}; {epochs} are stated"
                )
                yield against("throughput times time", Certainty.LIKELY, (time, rate), says)
        time, epoch = time or by_metric.get("total_seconds"), by_metric.get("epoch_seconds")
        # Without a row for it, a note may say ``42 s per epoch`` or ``0.7 min/epoch``.
        match = re.search(r"\b(\d{1,9}(?:\.\d+)?) ?(s|min)\w* ?(?:/|per |an |each )epoch", notes)
        seconds = epoch.value if epoch else float(match[1]) * SECONDS[match[2]] if match else 0.0
        due = epochs * seconds
        assumptions.compares(*filter(None, (time, epoch)) if time and due else ())
        if time and due and (time.most * ALIKE < due or time.least > EPOCHS_WITHIN * due):
            says = (
                f"{time}: {count(epochs, 'epoch')} of {seconds:g} s take{'s' * (epochs == 1)} "
                f"{due:g} s, not {time.shown}"
            )
            contradicting = [time, epoch] if epoch else [time]
            yield against("epochs times seconds", Certainty.LIKELY, contradicting, says)
