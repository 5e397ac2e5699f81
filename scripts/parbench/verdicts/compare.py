"""Two machines side by side: what two files of evidence say of the same cells.

Groups with the same settings are set beside each other, and else those of the same model and
variant: then it is said what differs, such as the hardware. Seeds are paired. docs/evidence.md says
how to read it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from parbench.errors import ParbenchError
from parbench.files import canonical_json, write_atomically
from parbench.measure.metrics import METRICS, Metric, Run
from parbench.verdicts import evidence, terminal
from parbench.verdicts.estimates import Estimate, estimate
from parbench.verdicts.groups import Group, groups_of, seed
from parbench.verdicts.rows import NUMBERS
from parbench.verdicts.words import NOT_MEASURED, OK, too_few

HEAD = [
    *("model", "variant", "accuracy A", "accuracy B", "B - A"),
    *("time A", "time B", "A / B", "time"),
]
ACCURACY = METRICS["test_accuracy"]
TIMES = METRICS["train_seconds"], METRICS["total_seconds"]  # of one model, of several together
# Where these settings differ it is other work: no number is set against the other.
WORK = ("dataset", "model_options", "pretrained", "training")
OF_ONE = ("mean", "std", "min", "max")  # columns of each side


@dataclass(frozen=True)
class Side:
    """One of the two files: its groups with their runs, those of several models together last."""

    path: Path
    made: Mapping
    groups: tuple[Group, ...]

    @classmethod
    def read(cls, path: Path) -> Side:
        """Read a file of evidence; ParbenchError for what is none."""
        made = evidence.read(path)
        groups = groups_of(evidence.plan(made), evidence.runs(made, path))
        return cls(path, made, tuple(groups.values()))

    @property
    def name(self) -> str:
        """Study, machine, date and software."""
        made, plan = self.made, self.made["plan"]
        words = [made["study"], made["machine"], made["date"], f"stack {plan['stack']}"]
        return ", ".join([*words, f"deployment {plan['deployment']}"])

    def settings(self, group: Group) -> dict[str, Any]:
        """What two groups may differ in."""
        of_model = {each.id: {each.model: each.model_options} for each in self.groups}
        options = group.model_options
        for member in group.members:  # what the models are that it trains together
            options = {**options, **of_model[member]}
        return {
            **{key: self.made["plan"][key] for key in ("stack", "deployment")},
            "hardware": group.describe_hardware(),
            "options": group.options,
            "dataset": asdict(group.dataset),
            "model_options": options,
            "pretrained": group.pretrained,
            "training": asdict(group.training),
        }


@dataclass(frozen=True)
class Pair:
    """Two groups that are set beside each other, and their settings."""

    a: Group
    b: Group
    settings: tuple[Mapping[str, Any], Mapping[str, Any]]

    @property
    def variant(self) -> str:
        """One name, or both where two studies call the same cells differently."""
        return " = ".join(dict.fromkeys((self.a.variant, self.b.variant)))

    @property
    def differing(self) -> dict[str, list[str]]:
        """What of the settings differs, in words."""
        found = {}
        for part, ours in self.settings[0].items():
            theirs = self.settings[1][part]
            if ours == theirs:
                continue
            if part == "hardware":
                found[part] = [f"{ours} against {theirs}"]
            elif isinstance(ours, Mapping):
                found[part] = [
                    f"{key} {_word(ours.get(key))} against {_word(theirs.get(key))}"
                    for key in dict.fromkeys([*ours, *theirs])
                    if ours.get(key) != theirs.get(key)
                ]
            else:
                found[part] = [f"{part} {_word(ours)} against {_word(theirs)}"]
        return found

    @property
    def differs(self) -> str:
        """All of it in one line; empty for the same cells."""
        return "; ".join(words for part in self.differing.values() for words in part)

    def measures(self, metric: Metric) -> bool:
        """Whether the metric is one of a single model, or of several, as the groups are."""
        return self.a.measures(metric) and self.b.measures(metric)

    def seeds(self) -> list[tuple[Run, Run]]:
        """The runs of each seed that ended well on both sides."""
        theirs = {seed(run): run for run in self.b.ok}
        return [(run, theirs[seed(run)]) for run in self.a.ok if seed(run) in theirs]

    def same_cells(self) -> list[tuple[Run, Run]]:
        """Those of them that are the same cell, whose results should be the same, too.

        Several models together have none of their own.
        """
        pairs = [] if self.a.members else self.seeds()
        return [pair for pair in pairs if pair[0]["cell"]["id"] == pair[1]["cell"]["id"]]

    def equal_weights(self) -> int:
        """How many of the same cells learned the same weights, bit for bit."""
        return sum(a["weights_sha256"] == b["weights_sha256"] for a, b in self.same_cells())

    def against(self, metric: Metric) -> tuple[str, Estimate]:
        """B against A over paired seeds: the ``difference`` B - A of accuracies, else a ``ratio``.

        Above 1 B is better: A / B of times and of memory, B / A of throughputs.
        """
        both = self.seeds() if self.measures(metric) else []
        values = [(metric.read(ours), metric.read(theirs)) for ours, theirs in both]
        values = [pair for pair in values if None not in pair]
        if metric.kind == "accuracy":
            return "difference", estimate(theirs - ours for ours, theirs in values)
        ordered = (pair if metric.higher_is_better else pair[::-1] for pair in values)
        return "ratio", estimate(theirs / ours for ours, theirs in ordered if ours)

    def reading(self, metric: Metric) -> str:
        """What the comparison of a metric says, or why it says nothing."""
        sides = (("A", self.a), ("B", self.b))
        if self.differing.keys() & set(WORK):
            return "not judged: other work"
        if why := [f"{name}: {words}" for name, group in sides for words in group.cautions(metric)]:
            return "; ".join(why)
        kind, found = self.against(metric)
        if not found.n:
            told = (f"{name} {g.status if g.values(metric) else _lacking(g)}" for name, g in sides)
            return "nothing to compare: " + ", ".join(told)
        if few := too_few(found.n):
            return f"undecided: {few}"
        neutral = 1.0 if kind == "ratio" else 0.0
        if found.ci_low <= neutral <= found.ci_high:
            return "no difference beyond the spread of the seeds"
        return "B is better" if found.mean > neutral else "A is better"


def _word(value: object) -> str:
    return value if isinstance(value, str) else canonical_json(value)


@dataclass(frozen=True)
class Matched:
    """The pairs of two sides, and what is left of each."""

    pairs: tuple[Pair, ...]
    only_a: tuple[Group, ...]
    only_b: tuple[Group, ...]


def match(a: Side, b: Side) -> Matched:
    """Groups of the same settings, else of the same model and variant."""
    matched: dict[Group, Group] = {}
    left = list(b.groups)
    for key in (_cells, _place):
        for group in a.groups:
            other = next((each for each in left if key(each) == key(group)), None)
            if other is not None and group not in matched:
                matched[group] = other
                left.remove(other)
    if not matched:
        raise ParbenchError(
            f"{a.path} and {b.path} have no cell, and no variant of a model, in common (studies "
            f"{a.made['study']} and {b.made['study']}); name two files of one study"
        )
    pairs = (
        Pair(group, matched[group], (a.settings(group), b.settings(matched[group])))
        for group in a.groups
        if group in matched
    )
    alone = (group for group in a.groups if group not in matched)
    return Matched(tuple(pairs), tuple(alone), tuple(left))


def _cells(group: Group) -> list[str]:
    return group.members or [group.id]  # which hold their digests


def _place(group: Group) -> tuple[str, str]:
    return group.model, group.variant


def _lacking(group: Group) -> str:
    """Why a group has no number."""
    return NOT_MEASURED if group.ok or group.status == OK else group.status


# ---------------------------------------------------------------- CSV and terminal


def table(pairs: Iterable[Pair]) -> pd.DataFrame:
    """A row a (pair of groups, metric)."""
    rows = []
    for pair in pairs:
        for metric in METRICS.values():
            if metric.read is None or not pair.measures(metric):
                continue
            if any(each.values(metric) for each in (pair.a, pair.b)) or not metric.optional:
                rows.append(_row(pair, metric))
    return pd.DataFrame(rows)


def _row(pair: Pair, metric: Metric) -> dict[str, Any]:
    row: dict[str, Any] = {
        "model": pair.a.model,
        "variant": pair.variant,
        "differs": pair.differs,
        "same_cells": len(pair.same_cells()),
        "equal_weights": pair.equal_weights(),
        "metric": metric.name,
        "unit": metric.unit,
    }
    for side, group in (("a", pair.a), ("b", pair.b)):
        found = estimate(group.values(metric), trim=metric.clocked)
        row[f"hardware_{side}"] = group.describe_hardware()
        row[f"status_{side}"], row[f"n_{side}"] = group.status, found.n
        row |= {f"{key}_{side}": getattr(found, key) for key in OF_ONE}
    row["kind"], found = pair.against(metric)
    row["pairs"] = found.n
    row |= {key: getattr(found, key) for key in NUMBERS}
    return row | {"reading": pair.reading(metric)}


def show(a: Side, b: Side, matched: Matched) -> str:
    """Accuracy and training time of both machines, as plain text."""
    notes = list(dict.fromkeys(filter(None, (pair.differs for pair in matched.pairs))))
    lines = [HEAD, *(_line(pair, notes) for pair in matched.pairs)]
    said = [f"A: {a.name}", f"B: {b.name}", "", *terminal.aligned(lines), ""]
    said.append("A / B: training time of A over that of B, seed by seed; above 1, B is faster.")
    said.append("Mean and standard deviation over the seeds, or the range of fewer than 3.")
    said += [f"[{number}] {note}" for number, note in enumerate(notes, 1)]
    same = [cells for pair in matched.pairs for cells in pair.same_cells()]
    if same:
        equal = sum(pair.equal_weights() for pair in matched.pairs)
        told = f"{len(same)} cells are the same on both: {equal} learned the same weights to the "
        told += "last bit"
        scores = [(ACCURACY.read(ours), ACCURACY.read(theirs)) for ours, theirs in same]
        gaps = [abs(ours - theirs) for ours, theirs in scores if None not in (ours, theirs)]
        if gaps:
            points = f"{100 * max(gaps):.2f} points at most"
            told += f", and their test accuracies differ by {points}"
        said.append(f"{told}.")
    for name, left in (("A", matched.only_a), ("B", matched.only_b)):
        if left:
            said.append(f"Only in {name}: {', '.join(' '.join(_place(g)) for g in left)}.")
    return "\n".join(said)


def _line(pair: Pair, notes: list[str]) -> list[str]:
    """The fields of one pair; its mark is the place of what differs in ``notes``."""
    fields = []
    time = next((metric for metric in TIMES if pair.measures(metric)), TIMES[0])
    for metric, factor, unit in (ACCURACY, 100, "%"), (time, 1, "s"):
        for group in (pair.a, pair.b):
            found = estimate(group.values(metric), trim=metric.clocked)
            shown = _shown(found, factor, ".1f" if metric is time and found.mean >= 10 else ".2f")
            fields.append(f"{shown} {unit}" if shown else _lacking(group))
        kind, found = pair.against(metric)
        fields.append(_shown(found, *((100, "+.2f") if kind == "difference" else (1, ".2f"))))
    mark = f" [{notes.index(pair.differs) + 1}]" if pair.differs else ""
    return [pair.a.model, pair.variant + mark, *fields, pair.reading(time)]


def _shown(found: Estimate, factor: float, form: str) -> str:
    """``93.00 ± 0.20``; the range of seeds that are too few; empty without a number."""
    if not found.n:
        return ""
    mean, std, *ends = (factor * each for each in (found.mean, found.std, found.min, found.max))
    return terminal.number(mean, std, ends, bool(too_few(found.n)), form, " to ")


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("a", type=Path, help="evidence of one machine")
    parser.add_argument("b", type=Path, help="and of another")
    parser.add_argument("--csv", type=Path, help="write every metric there, too")
    options = parser.parse_args(arguments)
    a, b = Side.read(options.a), Side.read(options.b)
    matched = match(a, b)
    terminal.say(show(a, b, matched))
    if options.csv is not None:
        frame = table(matched.pairs)
        write_atomically(options.csv, frame.to_csv(index=False, lineterminator="\n"))
