"""Two machines side by side: what two files of evidence say of the same cells.

Groups with the same settings are set beside each other, and else those of the same model and
variant: then it is said what differs, such as the hardware. Seeds are paired. docs/evidence.md says
how to read it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

import evidence
from errors import ParbenchError, run_main
from files import canonical_json, write_atomically
from printable import printable
from seeds import too_few
from tables import METRICS, NOT_MEASURED, Group, Metric, Summary, groups_of, summarise

# fmt: off
COLUMNS = [
    "model", "variant", "differs", "same_cells", "equal_weights", "metric", "unit", "hardware_a",
    "status_a", "n_a", "mean_a", "std_a", "min_a", "max_a", "hardware_b", "status_b", "n_b",
    "mean_b", "std_b", "min_b", "max_b", "kind", "pairs", "mean", "std", "ci_low", "ci_high", "min",
    "max", "reading",
]
HEAD = [
    "model", "variant", "accuracy A", "accuracy B", "B - A", "time A", "time B", "A / B", "time",
]
# fmt: on
ACCURACY = METRICS["test_accuracy"]
TIMES = METRICS["train_seconds"], METRICS["total_seconds"]  # of one model, of several together
# Parts of a group's plan that may differ between two that are set beside each other.
PLACE = ("stack", "deployment", "hardware", "options")
# Where these differ it is other work: no number is set against the other.
WORK = ("dataset", "model_options", "pretrained", "training")


@dataclass(frozen=True)
class Side:
    """One of the two files: its groups with their runs, those of several models together last."""

    path: Path
    made: Mapping
    groups: tuple[Group, ...]

    @property
    def name(self) -> str:
        """Study, machine, date and software."""
        made, plan = self.made, self.made["plan"]
        words = [made["study"], made["machine"], made["date"], f"stack {plan['stack']}"]
        return ", ".join([*words, f"deployment {plan['deployment']}"])


@dataclass(frozen=True)
class Pair:
    """Two groups that are set beside each other."""

    a: Group
    b: Group

    @property
    def variant(self) -> str:
        """One name, or both where two studies call the same cells differently."""
        return " = ".join(dict.fromkeys(group.plan["variant"] for group in (self.a, self.b)))

    def differs(self, parts: Iterable[str] = (*PLACE, *WORK)) -> list[str]:
        """What of the settings differs, in words; empty for the same cells."""
        found = []
        for part in parts:
            ours, theirs = (group.plan.get(part) for group in (self.a, self.b))
            if ours == theirs:
                continue
            if part == "hardware":
                names = [group.describe_hardware() for group in (self.a, self.b)]
                found += [" against ".join(names)] if len(set(names)) > 1 else []
            elif isinstance(ours, dict) and isinstance(theirs, dict):
                found += [
                    f"{key} {_word(ours.get(key))} against {_word(theirs.get(key))}"
                    for key in dict.fromkeys([*ours, *theirs])
                    if ours.get(key) != theirs.get(key)
                ]
            else:
                found.append(f"{part} {_word(ours)} against {_word(theirs)}")
        return found

    def measures(self, metric: Metric) -> bool:
        """Whether the metric is one of a single model, or of several, as the groups are."""
        return self.a.measures(metric) and self.b.measures(metric)

    def seeds(self) -> list[tuple[Mapping, Mapping]]:
        """The runs of each seed that ended well on both sides."""
        theirs = {run["cell"]["seed"]: run for run in self.b.ok}
        return [(r, theirs[r["cell"]["seed"]]) for r in self.a.ok if r["cell"]["seed"] in theirs]

    def same_cells(self) -> list[tuple[Mapping, Mapping]]:
        """Those of them that are the same cell, whose results should be the same, too.

        Several models together have none of their own.
        """
        if "members" in self.a.plan:
            return []
        return [pair for pair in self.seeds() if pair[0]["cell"]["id"] == pair[1]["cell"]["id"]]

    def equal_weights(self) -> int:
        """How many of the same cells learned the same weights, bit for bit."""
        return sum(ours["weights_sha256"] == b["weights_sha256"] for ours, b in self.same_cells())

    def against(self, metric: Metric) -> tuple[str, Summary]:
        """B against A over paired seeds: the ``difference`` B - A of accuracies, else a ``ratio``.

        Above 1 B is better: A / B of times and of memory, B / A of throughputs.
        """
        both = self.seeds() if self.measures(metric) else []
        values = [(metric.read(ours), metric.read(theirs)) for ours, theirs in both]
        values = [pair for pair in values if None not in pair]
        if metric.kind == "accuracy":
            return "difference", summarise(theirs - ours for ours, theirs in values)
        ordered = (pair if metric.higher_is_better else pair[::-1] for pair in values)
        return "ratio", summarise(theirs / ours for ours, theirs in ordered if ours)

    def reading(self, metric: Metric) -> str:
        """What the comparison of a metric says, or why it says nothing."""
        sides = (("A", self.a), ("B", self.b))
        if self.differs(WORK):
            return "not judged: other work"
        why = [f"{name}: {words}" for name, group in sides for words in group.cautions(metric)]
        kind, found = self.against(metric)
        if why:
            return "; ".join(why)
        if not found.n:
            told = (f"{n} {g.status if _summary(g, metric).n else _lacking(g)}" for n, g in sides)
            return "nothing to compare: " + ", ".join(told)
        if few := too_few(found.n):
            return f"undecided: {few}"
        neutral = 1.0 if kind == "ratio" else 0.0
        if found.ci_low <= neutral <= found.ci_high:
            return "no difference beyond the spread of the seeds"
        return "B is better" if found.mean > neutral else "A is better"


def _word(value: object) -> str:
    return value if isinstance(value, str) else canonical_json(value)


def load(path: Path) -> Side:
    """Read a file of evidence; ParbenchError for what is none."""
    made = evidence.read(path)
    whole = evidence.plan(made)
    place = {key: whole[key] for key in ("stack", "deployment")}
    options = {group["id"]: {group["model"]: group["model_options"]} for group in whole["groups"]}
    for group in [*whole["groups"], *whole["together"]]:
        group |= place
        for member in group.get("members", []):  # what the models are that it trains together
            group["model_options"] = group["model_options"] | options[member]
    return Side(path, made, tuple(groups_of(whole, evidence.runs(made, path)).values()))


def pairs(a: Side, b: Side) -> tuple[list[Pair], list[Group], list[Group]]:
    """Groups of the same settings, else of the same model and variant; and what is left of each."""
    matched: dict[str, Group] = {}
    left = list(b.groups)
    for key in (_settings, _place):
        for group in a.groups:
            other = next((each for each in left if key(each) == key(group)), None)
            if other is not None and group.plan["id"] not in matched:
                matched[group.plan["id"]] = other
                left.remove(other)
    if not matched:
        raise ParbenchError(
            f"{a.path} and {b.path} have no cell, and no variant of a model, in common (studies "
            f"{a.made['study']} and {b.made['study']}); name two files of one study"
        )
    found, alone = [], []
    for group in a.groups:
        other = matched.get(group.plan["id"])
        if other is None:
            alone.append(group)
        else:
            found.append(Pair(group, other))
    return found, alone, left


def _settings(group: Group) -> list[str]:
    return group.plan.get("members", [group.plan["id"]])  # which hold their digests


def _place(group: Group) -> tuple[str, str]:
    return group.plan["model"], group.plan["variant"]


# --------------------------------------------------------------------------------------------------
# CSV and terminal


def _summary(group: Group, metric: Metric) -> Summary:
    values = [metric.read(run) for run in group.ok] if group.measures(metric) else []
    return summarise((value for value in values if value is not None), trim=metric.clocked)


def _lacking(group: Group) -> str:
    """Why a group has no number."""
    return NOT_MEASURED if group.ok or group.status == "ok" else group.status


def table(found: list[Pair]) -> pd.DataFrame:
    """A row a (pair of groups, metric), columns ``COLUMNS``."""
    rows = []
    for pair in found:
        same, equal = len(pair.same_cells()), pair.equal_weights()
        for metric in METRICS.values():
            if metric.read is None or not pair.measures(metric):
                continue
            row = {
                "model": pair.a.plan["model"],
                "variant": pair.variant,
                "differs": "; ".join(pair.differs()),
                "same_cells": same,
                "equal_weights": equal,
                "metric": metric.name,
                "unit": metric.unit,
            }
            for side, group in (("a", pair.a), ("b", pair.b)):
                row |= {f"hardware_{side}": group.describe_hardware()}
                row |= {f"status_{side}": group.status}
                each = _summary(group, metric)
                row |= {f"{k}_{side}": getattr(each, k) for k in ("n", "mean", "std", "min", "max")}
            row["kind"], of_pairs = pair.against(metric)
            numbers = ("mean", "std", "ci_low", "ci_high", "min", "max")
            row |= {"pairs": of_pairs.n, **{k: getattr(of_pairs, k) for k in numbers}}
            if row["n_a"] or row["n_b"] or not metric.optional:
                rows.append(row | {"reading": pair.reading(metric)})
    return pd.DataFrame(rows, columns=COLUMNS)


def show(a: Side, b: Side) -> str:
    """Accuracy and training time of both machines, as plain text."""
    found, only_a, only_b = pairs(a, b)
    notes: list[str] = []
    lines = [HEAD, *(_line(pair, notes) for pair in found)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(field.ljust(width) for field, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    said = [f"A: {a.name}", f"B: {b.name}", "", text[0], "-" * max(map(len, text)), *text[1:], ""]
    said.append("A / B: training time of A over that of B, seed by seed; above 1, B is faster.")
    said.append("Mean and standard deviation over the seeds, or the range of fewer than 3.")
    said += [f"[{number}] {note}" for number, note in enumerate(notes, 1)]
    same = [cells for pair in found for cells in pair.same_cells()]
    if same:
        equal = sum(pair.equal_weights() for pair in found)
        scores = [(ACCURACY.read(ours), ACCURACY.read(theirs)) for ours, theirs in same]
        gaps = [abs(ours - theirs) for ours, theirs in scores if None not in (ours, theirs)]
        told = [
            f"{len(same)} cells are the same on both: {equal} learned the same weights to the last "
            "bit"
        ]
        if gaps:
            points = f"{100 * max(gaps):.2f} points at most"
            told.append(f"and their test accuracies differ by {points}")
        said.append(", ".join(told) + ".")
    for name, left in (("A", only_a), ("B", only_b)):
        if left:
            names = ", ".join(" ".join(_place(group)) for group in left)
            said.append(f"Only in {name}: {names}.")
    return printable("\n".join(said) + "\n")


def _line(pair: Pair, notes: list[str]) -> list[str]:
    """The fields of one pair; what differs goes into ``notes``, once each."""
    fields = []
    time = next((metric for metric in TIMES if pair.measures(metric)), TIMES[0])
    for metric, factor, unit in (ACCURACY, 100, "%"), (time, 1, "s"):
        for group in (pair.a, pair.b):
            found = _summary(group, metric)
            shown = _shown(found, factor, ".1f" if metric is time and found.mean >= 10 else ".2f")
            fields.append(f"{shown} {unit}" if shown else _lacking(group))
        kind, found = pair.against(metric)
        fields.append(_shown(found, *((100, "+.2f") if kind == "difference" else (1, ".2f"))))
    mark, differs = "", "; ".join(pair.differs())
    if differs:
        notes += [] if differs in notes else [differs]
        mark = f" [{notes.index(differs) + 1}]"
    return [pair.a.plan["model"], pair.variant + mark, *fields, pair.reading(time)]


def _shown(found: Summary, factor: float, form: str) -> str:
    """``93.00 ± 0.20``; the range of seeds that are too few; empty without a number."""
    if not found.n:
        return ""
    if not too_few(found.n):
        return f"{factor * found.mean:{form}} ± {factor * found.std:{form.lstrip('+')}}"
    ends = (f"{factor * end:{form}}" for end in (found.min, found.max))
    return " to ".join(dict.fromkeys(ends))


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("a", type=Path, help="evidence of one machine")
    parser.add_argument("b", type=Path, help="and of another")
    parser.add_argument("--csv", type=Path, help="write every metric there, too")
    options = parser.parse_args(arguments)
    a, b = load(options.a), load(options.b)
    if hasattr(sys.stdout, "reconfigure"):  # a terminal that cannot say ± still gets its table
        sys.stdout.reconfigure(errors="replace")
    print(show(a, b), end="")
    if options.csv is not None:
        frame = table(pairs(a, b)[0])
        write_atomically(options.csv, frame.to_csv(index=False, lineterminator="\n"))


if __name__ == "__main__":
    run_main(main)
