"""Two machines side by side: what two files of evidence say of the same cells.

Groups with the same settings are set beside each other, and else those of the same model and
variant: then it is said what differs, such as the hardware. Seeds are paired. docs/evidence.md says
how to read it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from parbench.errors import ParbenchError
from parbench.files import canonical_json
from parbench.measure.metrics import METRICS, Metric, Run
from parbench.verdicts import evidence, terminal
from parbench.verdicts.estimates import Estimate, estimate
from parbench.verdicts.groups import Group, groups_of, seed
from parbench.verdicts.words import NOT_MEASURED, OK, too_few

HEAD = [
    *("model", "variant", "accuracy A", "accuracy B", "B - A"),
    *("time A", "time B", "A / B", "time"),
]
LEGEND = """
A / B: training time of A over that of B, seed by seed; above 1, B is faster.
Mean and standard deviation over the seeds, or the range of fewer than 3.""".splitlines()
ACCURACY, TIME = METRICS["test_accuracy"], METRICS["train_seconds"]


@dataclass(frozen=True)
class Side:
    """One of the two files: the plan and the groups of single models, with their runs."""

    path: Path
    made: Mapping
    groups: tuple[Group, ...]

    @classmethod
    def read(cls, path: Path) -> Side:
        """Read a file of evidence; ParbenchError for what is none."""
        made = evidence.read(path)
        groups = groups_of(evidence.plan(made), evidence.runs(made, path)).values()
        return cls(path, made, tuple(group for group in groups if not group.members))

    @property
    def name(self) -> str:
        """Study, machine, date and software."""
        made, plan = self.made, self.made["plan"]
        words = [made["study"], made["machine"], made["date"], f"stack {plan['stack']}"]
        return ", ".join([*words, f"deployment {plan['deployment']}"])

    def place(self, group: Group) -> dict[str, Any]:
        """By what a group is trained."""
        software = {key: self.made["plan"][key] for key in ("stack", "deployment")}
        return {**software, "hardware": group.describe_hardware(), **group.options}


def _work(group: Group) -> dict[str, Any]:
    """What a group trains; where it differs, no time is set against the other."""
    data = {f"dataset {key}": value for key, value in asdict(group.dataset).items()}
    return {**data, **group.model_options, **group.pretrained, **asdict(group.training)}


@dataclass(frozen=True)
class Pair:
    """Two groups that are set beside each other.

    ``differs``: in which settings, in words; ``other_work``: whether they train something else.
    """

    a: Group
    b: Group
    differs: str
    other_work: bool

    @classmethod
    def of(cls, a: Side, b: Side, ours: Group, theirs: Group) -> Pair:
        """A group of each side."""
        work = _differing(_work(ours), _work(theirs))
        differs = _differing(a.place(ours), b.place(theirs)) + work
        return cls(ours, theirs, "; ".join(differs), bool(work))

    def seeds(self) -> list[tuple[Run, Run]]:
        """The runs of each seed that ended well on both sides."""
        theirs = {seed(run): run for run in self.b.ok}
        return [(run, theirs[seed(run)]) for run in self.a.ok if seed(run) in theirs]

    def same_cells(self) -> list[tuple[Run, Run]]:
        """Those of them that are the same cell, whose results should be the same, too."""
        return [(a, b) for a, b in self.seeds() if a["cell"]["id"] == b["cell"]["id"]]

    def gain(self) -> Estimate:
        """B - A of the accuracies, over paired seeds."""
        scores = [(ACCURACY.read(a), ACCURACY.read(b)) for a, b in self.seeds()]
        return estimate(theirs - ours for ours, theirs in scores if None not in (ours, theirs))

    def ratio(self) -> Estimate:
        """A / B of the training times, over paired seeds."""
        return estimate(TIME.read(a) / TIME.read(b) for a, b in self.seeds())

    def reading(self) -> str:
        """What the times say, or why they say nothing."""
        if self.other_work:
            return "not judged: other work"
        sides = (("A", self.a), ("B", self.b))
        if why := [f"{name}: {words}" for name, group in sides for words in group.cautions(TIME)]:
            return "; ".join(why)
        found = self.ratio()
        if not found.n:
            told = (f"{name} {g.status if g.ok else _lacking(g)}" for name, g in sides)
            return "nothing to compare: " + ", ".join(told)
        if few := too_few(found.n):
            return f"undecided: {few}"
        if found.ci_low <= 1 <= found.ci_high:
            return "no difference beyond the spread of the seeds"
        return "B is faster" if found.mean > 1 else "A is faster"


def _differing(ours: Mapping, theirs: Mapping) -> list[str]:
    return [
        f"{key} {_word(ours.get(key))} against {_word(theirs.get(key))}"
        for key in dict.fromkeys([*ours, *theirs])
        if ours.get(key) != theirs.get(key)
    ]


def _word(value: object) -> str:
    return value if isinstance(value, str) else canonical_json(value)


def _lacking(group: Group) -> str:
    """Why a group has no number."""
    return NOT_MEASURED if group.ok or group.status == OK else group.status


def match(a: Side, b: Side) -> list[Pair]:
    """Groups of the same settings, whose ids hold their digests, else of one model and variant."""
    matched: dict[Group, Group] = {}
    left = list(b.groups)
    for key in (lambda group: group.id, _name):
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
    return [Pair.of(a, b, group, matched[group]) for group in a.groups if group in matched]


def _name(group: Group) -> str:
    return f"{group.model} {group.variant}"


def show(a: Side, b: Side) -> str:
    """Accuracy and training time of both machines, as plain text."""
    pairs = match(a, b)
    notes = list(dict.fromkeys(filter(None, (pair.differs for pair in pairs))))
    lines = [HEAD, *(_line(pair, notes) for pair in pairs)]
    said = [f"A: {a.name}", f"B: {b.name}", "", *terminal.aligned(lines), *LEGEND]
    said += [f"[{number}] {note}" for number, note in enumerate(notes, 1)]
    same = [cells for pair in pairs for cells in pair.same_cells()]
    if same:
        equal = sum(ours["weights_sha256"] == theirs["weights_sha256"] for ours, theirs in same)
        said.append(
            f"{len(same)} cells are the same on both: {equal} learned the same weights to the last "
            "bit."
        )
    for name, side, taken in ("A", a, [p.a for p in pairs]), ("B", b, [p.b for p in pairs]):
        if left := [_name(group) for group in side.groups if group not in taken]:
            said.append(f"Only in {name}: {', '.join(left)}.")
    return "\n".join(said)


def _line(pair: Pair, notes: list[str]) -> list[str]:
    """The fields of one pair; its mark is the place of what differs in ``notes``."""
    variant = " = ".join(dict.fromkeys((pair.a.variant, pair.b.variant)))
    mark = f" [{notes.index(pair.differs) + 1}]" if pair.differs else ""
    scores = [_shown(group, ACCURACY, 100, " %") for group in (pair.a, pair.b)]
    times = [_shown(group, TIME, 1, " s") for group in (pair.a, pair.b)]
    gain = terminal.spread(pair.gain(), 100, "+.2f")
    ratio = terminal.spread(pair.ratio(), 1, ".2f")
    return [pair.a.model, variant + mark, *scores, gain, *times, ratio, pair.reading()]


def _shown(group: Group, metric: Metric, factor: float, unit: str) -> str:
    found = estimate(group.values(metric), trim=metric.clocked)
    return terminal.spread(found, factor, ".2f", unit) or _lacking(group)


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("a", type=Path, help="evidence of one machine")
    parser.add_argument("b", type=Path, help="and of another")
    options = parser.parse_args(arguments)
    terminal.say(show(Side.read(options.a), Side.read(options.b)))
