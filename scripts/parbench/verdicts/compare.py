"""Compare two machines: what two files of evidence say of the same models and variants.

Seeds are paired; settings that differ, such as the hardware, are noted. docs/evidence.md says how
to read the output.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from parbench.errors import ParbenchError
from parbench.files import canonical_json, user_path
from parbench.measure.metrics import METRICS, Metric, Run
from parbench.verdicts import evidence, terminal
from parbench.verdicts.groups import Group, compared, groups_of, seed
from parbench.verdicts.series import Series, numbered
from parbench.verdicts.words import NOT_MEASURED, OK

HEAD = [
    *("model", "variant", "accuracy A", "accuracy B", "B - A"),
    *("time A", "time B", "A / B", "accuracy"),
]
LEGEND = """
A / B: training time of A over that of B, seed by seed; above 1, B was faster. No verdict: two
machines take no turns. Mean and standard deviation over the seeds, or the range of fewer than
4. What the accuracies say is the rule of every verdict (docs/verdicts.md).""".splitlines()
ACCURACY, TIME = METRICS["test_accuracy"], METRICS["train_seconds"]
Pairs = Sequence[tuple[Run, Run]]


@dataclass(frozen=True)
class EvidenceFile:
    """One of the two files, with its groups of single models by model and variant."""

    path: Path
    made: Mapping
    groups: Mapping[str, Group]

    @classmethod
    def read(cls, path: Path) -> EvidenceFile:
        """Read a file of evidence. Raises ParbenchError if it is not one."""
        content = evidence.read(path)
        groups = groups_of(evidence.plan(content), evidence.runs(content, path)).values()
        return cls(path, content, {f"{g.model} {g.variant}": g for g in groups if not g.members})

    def __str__(self) -> str:
        """Return study, machine, date and software in words."""
        content, plan = self.made, self.made["plan"]
        parts = [content["study"], content["machine"], content["date"], f"stack {plan['stack']}"]
        return ", ".join([*parts, f"deployment {plan['deployment']}"])

    def place(self, group: Group) -> dict[str, Any]:
        """Return what a group is trained with: software, hardware and strategy options."""
        software = {key: self.made["plan"][key] for key in ("stack", "deployment")}
        return {**software, "hardware": group.describe_hardware(), **group.options}


def _work(group: Group) -> dict[str, Any]:
    """Return what a group trains; where this differs, accuracies are not judged."""
    data = {f"dataset {key}": value for key, value in asdict(group.dataset).items()}
    return {**data, **group.model_options, **group.pretrained, **asdict(group.training)}


def _differing(ours: Mapping, theirs: Mapping) -> list[str]:
    return [
        f"{key} {_word(ours.get(key))} against {_word(theirs.get(key))}"
        for key in dict.fromkeys([*ours, *theirs])
        if ours.get(key) != theirs.get(key)
    ]


def _word(value: object) -> str:
    return value if isinstance(value, str) else canonical_json(value)


def show(a: EvidenceFile, b: EvidenceFile) -> str:
    """Return accuracies and training times of both machines as plain text."""
    shared = [name for name in a.groups if name in b.groups]
    if not shared:
        raise ParbenchError(
            f"{a.path} and {b.path} have no variant of a model in common (studies "
            f"{a.made['study']} and {b.made['study']}); name two files of one study"
        )
    table, notes, same_cells = [HEAD], [], []
    for name in shared:
        ours, theirs = a.groups[name], b.groups[name]
        other_work = _differing(_work(ours), _work(theirs))
        differs, mark = "; ".join(_differing(a.place(ours), b.place(theirs)) + other_work), ""
        if differs:
            notes += [differs] if differs not in notes else []
            mark = f" [{notes.index(differs) + 1}]"
        run_by_seed = {seed(run): run for run in theirs.ok}
        pairs = [(run, run_by_seed[seed(run)]) for run in ours.ok if seed(run) in run_by_seed]
        same_cells += [
            (one, other) for one, other in pairs if one["cell"]["id"] == other["cell"]["id"]
        ]
        gain = compared(ACCURACY, theirs, ours)
        table.append([ours.model, ours.variant + mark, *_numbers(ours, theirs, pairs, gain)])
        share = a.made["plan"]["study"]["tolerance"]["accuracy"]
        reading = gain.reading(share, "B's is higher", "A's is higher")
        table[-1].append("not judged: other work" if other_work else reading)
    lines = [f"A: {a}", f"B: {b}", "", *terminal.aligned(table), *LEGEND]
    lines += [f"[{number}] {note}" for number, note in enumerate(notes, 1)]
    if same_cells:
        equal = sum(one["weights_sha256"] == other["weights_sha256"] for one, other in same_cells)
        lines.append(
            f"{len(same_cells)} cells are the same on both: {equal} learned the same weights to "
            "the last bit."
        )
    for name, side in ("A", a), ("B", b):
        if unshared := [group for group in side.groups if group not in shared]:
            lines.append(f"Only in {name}: {', '.join(unshared)}.")
    return "\n".join(lines)


def _numbers(ours: Group, theirs: Group, pairs: Pairs, gain: Series) -> list[str]:
    """Return accuracies and their difference, training times and their ratio."""
    ratios = numbered(TIME.read(one) / TIME.read(other) for one, other in pairs)
    sides = (("A", ours), ("B", theirs))
    why = "; ".join(
        f"{name}: {caution}" for name, group in sides for caution in group.cautions(TIME)
    )
    return [
        *(_shown(group, ACCURACY, 100, " %") for group in (ours, theirs)),
        terminal.spread(gain, 100, "+.2f"),
        *(_shown(group, TIME, 1, " s") for group in (ours, theirs)),
        why or terminal.spread(ratios, 1, ".2f"),
    ]


def _shown(group: Group, metric: Metric, factor: float, unit: str) -> str:
    series = group.series(metric)
    lacking = NOT_MEASURED if group.ok or group.status == OK else group.status
    return terminal.spread(series, factor, ".2f", unit) or lacking


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("a", type=user_path, help="evidence of one machine")
    parser.add_argument("b", type=user_path, help="and of another")
    options = parser.parse_args(arguments)
    terminal.say(show(EvidenceFile.read(options.a), EvidenceFile.read(options.b)))
