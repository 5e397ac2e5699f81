"""What published numbers say against themselves, and against what their source says in words:
arithmetic alone, of any paper, without training.

Reads a file in the form of studies/published/published_results.csv and prints what cannot all be
true: docs/audit.md says which columns it needs and how each check reckons.
"""

from __future__ import annotations

import argparse
import itertools
import math
import re
import textwrap
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from parbench.errors import ParbenchError
from parbench.plan import published
from parbench.plan.published import Cells, Claim, ClaimTest, Published
from parbench.verdicts.selection import Configuration, across_models

TIMES = ("train_seconds", "total_seconds")
# Ratios that a source prints, and the metrics they are made of: time before over time after, or
# throughput after over before.
RATIOS = {"speedup": TIMES, "throughput_ratio": ("samples_per_second",)}
# Throughput may leave out the start of an epoch, or its end: not a fifth of the time.
EPOCHS_WITHIN = 1.2
DIGITS = 3  # with fewer, two accuracies are equal now and then


@dataclass(frozen=True)
class Task:
    """What the numbers are of: ``classes`` and ``train_samples``, and whether each class has as
    many test samples as any other.
    """

    classes: int = 10
    train_samples: int = 50_000
    balanced: bool = True


@dataclass(frozen=True)
class Contradiction:
    """Something that cannot be, or hardly: ``lines`` are those of the file that say so."""

    check: str
    study: str
    says: str
    lines: tuple[int, ...]


def _against(check: str, rows: Iterable[Published], says: str) -> Contradiction:
    """What ``rows`` say; the first names the study."""
    rows = list(rows)
    return Contradiction(check, rows[0].study, says, tuple(dict.fromkeys(r.line for r in rows)))


Rows = Collection[Published]
Found = Iterator[Contradiction]


def _of(rows: Rows, *metrics: str) -> list[Published]:
    return [row for row in rows if row.metric in metrics]


def _grouped(rows: Rows, key: Callable[[Published], Hashable]) -> Iterable[list[Published]]:
    """The rows with the same ``key`` together, in the order of the file."""
    found: dict[Hashable, list[Published]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found.values()


def _by_configuration(rows: Rows) -> Iterator[dict[str, Published]]:
    """The values of each configuration by metric."""
    for each in _grouped(rows, lambda row: row.configuration):
        yield {row.metric: row for row in each}


@dataclass(frozen=True)
class Faster:
    """Two values of one metric, of few devices and of more.

    ``ratio``: how many times as fast the second is, and at ``least`` is, if rounding was kind.
    """

    few: Published
    many: Published
    ratio: float
    least: float


def _faster(rows: Rows) -> Iterator[Faster]:
    """Each two of ``rows``."""
    for few, many in itertools.permutations(rows, 2):
        if few.devices < many.devices and min(few.value, many.value) > 0:
            slow, quick = (few, many) if few.unit == "s" else (many, few)
            yield Faster(few, many, slow.value / quick.value, slow.least / quick.most)


# ---------------------------------------------------------------- the checks


def faster_than_its_devices(rows: Rows, task: Task) -> Found:
    """n times the devices are at most n times as fast."""
    check = "faster than its devices"
    for metrics in (*((time,) for time in TIMES), RATIOS["throughput_ratio"]):
        for each in _grouped(_of(rows, *metrics), lambda row: row.setting):
            for pair in _faster(each):
                few, many = pair.few, pair.many
                bound = many.devices / few.devices
                if pair.least > bound:
                    says = (
                        f"{many}: {few.shown} to {many.shown} is {pair.ratio:.3g} times, but "
                        f"{many.devices} devices instead of {few.devices} make at most {bound:g}"
                    )
                    yield _against(check, (few, many), says)
    for row in _of(rows, *RATIOS):
        if row.least > row.devices:
            most = f"{row.devices} devices make at most {row.devices}"
            yield _against(
                check, [row], f"{row}: a printed {row.metric} of {row.value:g}, but {most}"
            )


def another_number_of_devices(rows: Rows, task: Task) -> Found:
    """A note that counts other devices than the columns: what the times would be with those."""
    for each in _grouped(_of(rows, *TIMES), lambda row: row.setting):
        for pair in _faster(each):
            few, many = pair.few, pair.many
            counted = re.search(r"\b(\d+) (?:GPU|CPU|device|accelerator)s?\b", many.note)
            told = int(counted[1]) if counted else many.devices
            if few.devices < told < many.devices and pair.least > told / few.devices:
                yield _against(
                    "another number of devices",
                    (few, many),
                    f"{many}: the source also says {counted[0]}; {few.shown} to {many.shown} is "
                    f"{pair.ratio:.3g} times, and {told} instead of {few.devices} make at most "
                    f"{told / few.devices:g}",
                )


def two_values(rows: Rows, task: Task) -> Found:
    """One configuration has one value of a metric."""
    for each in _grouped(rows, lambda row: (row.configuration, row.metric)):
        different = list({row.value: row for row in reversed(each)}.values())[::-1]
        if len(different) > 1:
            values = " and ".join(f"{row.shown} ({row.table})" for row in different)
            says = f"{different[0]}: {different[0].metric} is {values}"
            yield _against("two values for one thing", different, says)


def ratio_of_its_numbers(rows: Rows, task: Task) -> Found:
    """A printed speedup is the ratio of two printed times, where there are any."""
    for row in _of(rows, *RATIOS):
        same = [each for each in _of(rows, *RATIOS[row.metric]) if each.setting == row.setting]
        layout = (row.devices, row.strategy)
        made = [each for each in _faster(same) if (each.many.devices, each.many.strategy) == layout]
        # The times are rounded, too, and some print the ratio of rounded ones.
        near = {"rel_tol": 0.01, "abs_tol": 2 * row.rounding}
        if made and not any(math.isclose(each.ratio, row.value, **near) for each in made):
            told = " or ".join(f"{each.ratio:.3g}" for each in made)
            yield _against(
                "a ratio of other numbers",
                (row, *(each for pair in made for each in (pair.few, pair.many))),
                f"{row}: {row.metric} {row.value:g} is printed; its numbers give {told}",
            )


def efficiency(rows: Rows, task: Task) -> Found:
    """Parallel efficiency is speedup over devices."""
    for row in _of(rows, "parallel_efficiency"):
        speedups = [s for s in _of(rows, "speedup") if s.configuration == row.configuration]
        follows = (
            abs(each.value / row.devices - row.value) <= row.rounding + each.rounding / row.devices
            for each in speedups
        )
        if speedups and not any(follows):
            told = " and ".join(
                f"{each.value:g} / {row.devices} is {each.value / row.devices:.3g}"
                for each in speedups
            )
            says = f"{row}: parallel efficiency {row.value:g} is printed, but {told}"
            yield _against("an efficiency of another speedup", (row, *speedups), says)


def equal_accuracies(rows: Rows, task: Task) -> Found:
    """Different runs do not end with the same accuracy to the last digit."""
    precise = [row for row in _of(rows, "test_accuracy") if row.rounding < 10.0**-DIGITS]
    for each in _grouped(precise, lambda row: (row.study, row.model, row.value)):
        different = [first for first, *_ in _grouped(each, lambda row: row.configuration)]
        if len(different) > 1:
            told = " and of ".join(map(str, different))
            says = f"test accuracy {different[0].value:g} of {told}"
            yield _against("equal to the last digit", different, says)


def scores(rows: Rows, task: Task) -> Found:
    """On a balanced test set macro recall is accuracy, and specificity follows from either.

    Each class has as many samples: the mean of the recalls is the share of hits. Each miss is a
    false positive of one class, among (classes - 1) times as many negatives: macro specificity is
    1 - (1 - recall) / (classes - 1).
    """
    if not task.balanced:
        return
    names = ("test_accuracy", "test_recall_macro", "test_specificity_macro")
    for found in _by_configuration(_of(rows, *names)):
        accuracy, recall, specificity = (found.get(name) for name in names)
        if accuracy and recall and not _agree(accuracy, recall):
            yield _against(
                "recall is accuracy",
                (accuracy, recall),
                f"{accuracy}: accuracy {accuracy.value:g} and macro recall {recall.value:g}, "
                "which are one number on a balanced test set",
            )
        base = recall or accuracy
        if base is None or specificity is None:
            continue
        due = 1 - (1 - base.value) / (task.classes - 1)
        slack = specificity.rounding + base.rounding / (task.classes - 1)
        if abs(specificity.value - due) > 1.01 * slack:
            yield _against(
                "specificity follows from recall",
                (base, specificity),
                f"{base}: macro specificity {specificity.value:g} is printed; {base.metric} "
                f"{base.value:g} of {task.classes} balanced classes makes it {due:.4f}",
            )


def _agree(one: Published, other: Published) -> bool:
    slack = one.rounding + other.rounding
    return abs(one.value - other.value) <= 1.01 * slack  # the last digits of a float


def epochs(rows: Rows, task: Task) -> Found:
    """Throughput times training time is the stated epochs times the training set."""
    for found in _by_configuration(rows):
        time, rate = found.get("train_seconds"), found.get("samples_per_second")
        notes = " ".join(row.note for row in found.values())
        stated = re.search(r"\b(\d+) epochs?\b", notes)
        if time is None or rate is None or stated is None:
            continue
        samples, due = time.value * rate.value, int(stated[1]) * task.train_samples
        if not 1 / EPOCHS_WITHIN <= samples / due <= EPOCHS_WITHIN:
            yield _against(
                "throughput times time",
                (time, rate),
                f"{time}: {rate.shown} for {time.shown} are {samples:,.0f} samples, "
                f"{samples / task.train_samples:.1f} epochs of {task.train_samples:,}; "
                f"{stated[1]} are stated",
            )


def operators(rows: Rows, task: Task) -> Found:
    """Times of operators add up, and those of an accelerator are not the host's."""
    for each in _grouped(rows, lambda row: row.configuration):
        own = [row for row in each if row.metric.startswith("operator_self_seconds:")]
        total, rounding = sum(row.value for row in own), sum(row.rounding for row in own)
        whole = next(iter(_of(each, "profile_self_seconds")), None)
        if whole is not None and total - rounding > whole.most:
            says = (
                f"{whole}: the self times of {len(own)} operators add up to {total:.4g} s, more "
                f"than the {whole.value:g} s of all"
            )
            yield _against("parts and the whole", (whole, *own), says)
        host = [row for row in each if re.search(r"self[- ]cpu", row.note, re.IGNORECASE)]
        if host and host[0].hardware.upper() != "CPU":
            says = (
                f"{host[0]}: {len(host)} times are printed as Self-CPU, which is the host's time "
                "and does not measure the accelerator"
            )
            yield _against("another device's clock", host, says)


CHECKS = (
    faster_than_its_devices,
    another_number_of_devices,
    two_values,
    ratio_of_its_numbers,
    efficiency,
    equal_accuracies,
    scores,
    epochs,
    operators,
)


def contradictions(rows: Rows, task: Task) -> list[Contradiction]:
    """All that the checks find, in the order of the file."""
    found = [each for check in CHECKS for each in check(rows, task)]
    return sorted(found, key=lambda each: (each.lines[0], each.check))


# ---------------------------------------------------------------- what a source says in words


def of_claims(claims: Mapping[str, Claim], rows: Rows) -> list[Contradiction]:
    """What a source's own numbers say against its ``claims``."""
    found = []
    for name, claim in claims.items():
        mine = [row for row in rows if row.study == claim.study]
        if mine and claim.test and claim.test.numerator:
            of_it = _of(mine, claim.test.metric)
            found += denied_by_its_numbers(name, claim, of_it)
            found += promised_above_devices(name, claim, of_it)
    return found


@dataclass(frozen=True)
class OwnRatio:
    """A published value over another; ``least`` and ``most`` are what rounding allows."""

    over: Published
    under: Published

    @property
    def value(self) -> float:
        """As printed."""
        return self.over.value / self.under.value

    @property
    def least(self) -> float:
        """If rounding made it larger."""
        return self.over.least / self.under.most

    @property
    def most(self) -> float:
        """If rounding made it smaller."""
        return self.over.most / self.under.least

    @property
    def model(self) -> str:
        """What is trained."""
        return self.over.model

    @property
    def place(self) -> tuple:
        """What tells it from others of its model."""
        return tuple(
            (*each.way, each.devices_per_node, each.hardware, each.precision, each.batch_size)
            for each in (self.over, self.under)
        )


def denied_by_its_numbers(name: str, claim: Claim, rows: Rows) -> Found:
    """The claim's own test, of the source's own numbers: where it fails, all in one."""
    test = claim.test
    value = test.value
    if value is None or value == "published":  # nothing to be above or below, or what others say
        return
    against, told = [], []
    for ratio, *others in across_models(test, list(_own_ratios(test, rows))):
        least, most, here = ratio.least, ratio.most, ratio.value
        for other in others:
            least, most, here = least / other.most, most / other.least, here / other.value
        if most <= value if test.op == ">" else least >= value:
            beside = "".join(f", over that of {other.model}" for other in others)
            told.append(f"{here:.3g} of {ratio.over} over {ratio.under}{beside}")
            against += [row for each in (ratio, *others) for row in (each.over, each.under)]
    if told:
        shown = "; ".join(told[:3]) + ", and more" * (len(told) > 3)
        yield _against(
            "denied by its own numbers",
            against,
            f"{name} claims a ratio of {test.metric} {test.op} {value:g}; the source's own "
            f"numbers give {shown}",
        )


def _own_ratios(test: ClaimTest, rows: Rows) -> Iterator[OwnRatio]:
    """Of rows that a claim's test compares, alike in all that it does not name."""

    def unnamed(row: Published) -> tuple:
        batch = "" if "batch_size" in test.named else row.batch_size
        way = () if test.is_of_layouts else (*row.way, row.devices_per_node)
        return row.model, row.hardware, row.precision, batch, way

    overs, unders = ([row for row in rows if _chosen(row, side)] for side in test.sides)
    for over, under in itertools.product(overs, unders):
        if over.line != under.line and unnamed(over) == unnamed(under) and under.value:
            yield OwnRatio(over, under)


def _chosen(row: Published, side: Cells) -> bool:
    return Configuration.of_row(row).is_among(side)


def promised_above_devices(name: str, claim: Claim, rows: Rows) -> Found:
    """A speedup of more than the devices, whoever measured it."""
    test, over, under = claim.test, *claim.test.sides
    alone = over.strategy == "eager" or (over.devices == 1 and over.nodes in (None, 1))
    if test.metric not in TIMES or test.op != ">" or not alone or under.devices is None:
        return
    devices = under.devices * (under.nodes or 1)
    stated = claim.published if test.value == "published" else test.value
    parts = stated if isinstance(stated, Mapping) else {"": stated}
    numbers = {of: value for of, value in parts.items() if isinstance(value, int | float)}
    above = [f"{n:g} ({of})" if of else f"{n:g}" for of, n in numbers.items() if n >= devices]
    if above:
        yield Contradiction(
            "promised above its devices",
            claim.study,
            f"{name} asks for more than {', '.join(above)} times on {devices} devices, "
            f"which make at most {devices}",
            tuple(row.line for row in rows if _chosen(row, test.denominator)),
        )


# ---------------------------------------------------------------- the program


def show(found: Iterable[Contradiction]) -> str:
    """For a terminal: by study, with the lines of the file."""
    parts = []
    by_study = sorted(found, key=lambda each: each.study)
    for study, group in itertools.groupby(by_study, key=lambda each: each.study):
        parts.append(study)
        for each in group:
            lines = ", ".join(map(str, each.lines[:6])) + (", ..." * (len(each.lines) > 6))
            text = f"{each.check}: {each.says} (lines {lines})"
            parts += textwrap.wrap(text, 100, initial_indent="  - ", subsequent_indent="    ")
    return "\n".join(parts)


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv", type=Path, help="published values, one a row")
    parser.add_argument("--classes", type=int, default=Task.classes)
    parser.add_argument("--train-samples", type=int, default=Task.train_samples)
    parser.add_argument(
        "--unbalanced", action="store_true", help="test classes differ in size: no check of scores"
    )
    options = parser.parse_args(arguments)
    if options.classes < 2 or options.train_samples < 1:
        raise ParbenchError("--classes must be at least 2, --train-samples at least 1")
    task = Task(options.classes, options.train_samples, not options.unbalanced)
    rows = published.rows(options.csv)
    found = contradictions(rows, task)
    claims = options.csv.with_name("claims.yaml")
    if claims.is_file():
        found += of_claims(published.claims(claims), rows)
    if found:
        print(show(found))
    balance = "balanced" if task.balanced else "not balanced"
    print(
        f"{len(rows)} values, {len(found)} findings (taken for granted: {task.classes} classes, "
        f"{task.train_samples:,} training samples, a test set that is {balance})"
    )
