"""Groups of a plan with their runs; a group is the cells that differ only in their seed."""

from __future__ import annotations

import contextlib
import math
import shlex
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from parbench.errors import ParbenchError
from parbench.plan.selection import Configuration
from parbench.plan.study_plan import PlannedGroup, StudyPlan
from parbench.runs import records
from parbench.runs.metric import Metric
from parbench.runs.records import CellRun, PairRun, Trained
from parbench.verdicts.pairs import Compared, lengths_of
from parbench.verdicts.sequential import Series
from parbench.verdicts.terms import FAILURES, LEAST_SECONDS, NOT_RUN, OK

# What pairs measure: the times of training, its energy, or the times of predicting.
Kind = Literal["training", "energy", "predicting"]


@dataclass(frozen=True)
class Runs:
    """Runs by the ids of their cells: of cells that train by themselves, and of pairs."""

    alone: Mapping[str, CellRun]
    pairs: Mapping[str, PairRun]

    @classmethod
    def of(cls, runs: Mapping[str, CellRun | PairRun]) -> Runs:
        """Return ``runs`` by their kind."""
        alone = {cell: run for cell, run in runs.items() if isinstance(run, CellRun)}
        pairs = {cell: run for cell, run in runs.items() if isinstance(run, PairRun)}
        return cls(alone, pairs)

    @property
    def all(self) -> dict[str, CellRun | PairRun]:
        """The runs of both kinds."""
        return {**self.alone, **self.pairs}


@dataclass
class InTurns:
    """The pairs of a group, by the id of the baseline's group."""

    training: dict[str, Compared] = field(default_factory=dict)
    energy: dict[str, Compared] = field(default_factory=dict)
    predicting: dict[str, Compared] = field(default_factory=dict)

    def of(self, kind: Kind) -> dict[str, Compared]:
        """Return the pairs of one kind."""
        kinds = {"training": self.training, "energy": self.energy, "predicting": self.predicting}
        return kinds[kind]


class Group(PlannedGroup):
    """A planned group together with the measurements of its cells. It equals only itself.

    ``runs``: the runs of its cells or, for several models trained together (a group with
    ``members``), one combined run per seed that all have; ``cell_runs``: the same runs uncombined,
    every member's for those seeds; ``trained_in_pairs``: its trainings in restarts of pairs.
    """

    runs: tuple[CellRun, ...] = ()
    cell_runs: tuple[CellRun, ...] = ()
    shared: bool = False  # whether other cells ran on such a machine at the same time
    in_turns: InTurns = InTurns()
    trained_in_pairs: tuple[Trained, ...] = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    @property
    def baseline_pair(self) -> Compared | None:
        """Its pair with its baseline, if it has one."""
        return None if self.baseline is None else self.pairs.get(self.baseline)

    @property
    def pairs(self) -> Mapping[str, Compared]:
        """Its pairs whose training is timed, by the id of the baseline's group."""
        return self.in_turns.training

    @property
    def ok(self) -> list[CellRun]:
        """The runs that ended well; only these are averaged."""
        return [run for run in self.runs if run.status == OK]

    def failed_runs(self) -> dict[str, int]:
        """Return how many runs failed, by the word for the failure."""
        counts = Counter(run.status for run in self.runs)
        return {word: counts[status] for status, word in FAILURES.items() if counts[status]}

    @property
    def is_short(self) -> bool:
        """Whether some run timed so few seconds of training that its rate says little."""
        return any((run.train_seconds or math.inf) < LEAST_SECONDS for run in self.ok)

    @property
    def status(self) -> str:
        """``ok``, ``not run`` or, for example, ``diverged 1 of 3``."""
        if self.not_run:
            return NOT_RUN
        failed = (
            f"{word} {count} of {len(self.runs)}" for word, count in self.failed_runs().items()
        )
        return ", ".join(failed) or OK

    @property
    def short_status(self) -> str:
        """The status, but only ``diverged`` if all runs did."""
        return next(
            (word for word, count in self.failed_runs().items() if count == len(self.runs)),
            self.status,
        )

    def failures(self) -> list[str]:
        """Return one sentence for each run that did not end well."""
        return [
            f"seed {run.cell.seed} {FAILURES[run.status]}"
            + (f" ({run.reason})" if run.reason else "")
            for run in self.runs
            if run.status != OK
        ]

    @property
    def why(self) -> str:
        """Why it was not run, or the first reason that one of its runs gives; else empty."""
        return self.not_run or next(filter(None, (run.reason for run in self.runs)), "")

    def cautions(self, metric: Metric) -> list[str]:
        """Return caveats about the metric that hold for any comparison."""
        # A strategy's module may state a reason that the settings do not show; the plan has it.
        stated = self.comparable.get(metric.name)
        cautions = [stated] if stated else []
        if not metric.depends_on_clock:
            return cautions
        if self.training.mode == "deterministic":
            cautions.append("deterministic mode is not for timing")
        if self.training.profile != "none":
            cautions.append("a profiled run is not for timing")
        return cautions

    def difference(self, metric: Metric) -> str:
        """Return how it differs from the source in a way that changes ``metric``; empty if not."""
        return self.differs or (metric.is_score and self.scores_differ) or ""

    def machines(self) -> list[str]:
        """Return the fingerprints (digests) of the machines that ran it or, if none, its pairs."""
        names = [name for run in self.cell_runs for name in run.machines]
        in_pairs = (each.environment.machine.fingerprint for each in self.trained_in_pairs)
        return list(dict.fromkeys(names or in_pairs))

    @property
    def trained(self) -> tuple[Trained, ...]:
        """Its trainings in cells or, if there are none, in restarts of pairs."""
        return (
            tuple(each for run in self.cell_runs for each in run.trained) or self.trained_in_pairs
        )

    def accelerators(self) -> list[str]:
        """Return the accelerators' names as recorded or, if none were, as planned."""
        machines = (each.environment.machine for each in self.trained)
        names = {card.name for machine in machines for card in machine.accelerators}
        return sorted(names) or list(filter(None, [self.hardware.gpu_model]))

    @cached_property
    def configuration(self) -> Configuration:
        """The properties by which a claim's test may select it."""
        return Configuration.of_group(self, self.accelerators())

    def describe_hardware(self) -> str:
        """Return, for example, ``2 CPU cores`` or ``2x NVIDIA H200``."""
        count, threads = self.hardware.devices, self.hardware.threads
        if self.hardware.device != "cpu":
            names = " or ".join(self.accelerators()) or "unknown GPU"
            devices = f"{count}x {names}"
        elif threads > 1:
            devices = f"{count}x {threads} CPU cores"
        else:
            devices = f"{count} CPU core{'s' if count > 1 else ''}"
        return on_nodes(self.hardware.nodes, devices)

    def measures(self, metric: Metric) -> bool:
        """Return whether the metric applies to the group: to one model, or several together, and to
        its devices."""
        if metric.gpus_only and self.hardware.device != "cuda":
            return False
        return metric.of in ("any", "several" if self.members else "one")

    def series(self, metric: Metric) -> Series:
        """Return the metric's values by seed or, if there are none, by restart of pairs."""
        values = {run.cell.seed: metric.value(run) for run in self.ok if self.measures(metric)}
        measured = {number: value for number, value in values.items() if value is not None}
        if metric.read_side and not measured:
            sides = map(metric.read_side, self.trained_in_pairs)
            if known := [value for value in sides if value is not None]:
                return Series(dict(enumerate(known)), "restarts")
        return Series(measured, cost=self.seed_seconds, resolution=self.resolution(metric))

    def resolution(self, metric: Metric) -> float:
        """Return the smallest step of the metric: one test image for a score, otherwise 0."""
        images = sum(map(sum, self.ok[0].confusion)) if self.ok and metric.is_score else 0
        return 1 / images if images else 0.0

    @property
    def seed_seconds(self) -> float:
        """The seconds that one more seed costs: the mean of those that ran, start to end."""
        spent = sum(run.seconds for run in self.cell_runs)
        return spent / max(1, len({run.cell.seed for run in self.cell_runs}))

    def at_most_faster(self, slow: Group) -> float:
        """Return the largest speedup over ``slow`` that its extra devices allow: the minimum of the
        ratio of their cores or GPUs, the pipeline's bound and the bound of models side by side, of
        which each has one device; infinite if that ratio is no bound."""
        by_devices = self.most_by_devices(slow)
        if math.isinf(by_devices):
            return by_devices
        pair = self.pairs.get(slow.id) if self.members else None
        bounds = [by_devices, self.work.pipeline_bound, pair.bound if pair else None]
        bounds += [by_devices / self.devices] if self.is_beside_others else []
        return min(bound for bound in bounds if bound is not None)

    @property
    def is_beside_others(self) -> bool:
        """Whether it is one model of several that train side by side, each on its own device."""
        return "beside" in self.options and not self.members

    def most_by_devices(self, slow: Group) -> float:
        """Return its number of cores or GPUs over that of ``slow``; infinite if this ratio is no
        bound, because it has no more devices than ``slow``, another kind of them, or another
        precision or performance setting (compile, fused, memory format and others: TUNING)."""
        ours, theirs = (
            (side.hardware.device, side.training.precision, side.training.tf32, side.training.tuned)
            for side in (self, slow)
        )
        bounded = ours == theirs and self.cores > slow.cores
        return self.cores / slow.cores if bounded else math.inf

    @property
    def devices(self) -> int:
        """The number of devices on all nodes."""
        return self.hardware.devices * self.hardware.nodes

    @property
    def cores(self) -> int:
        """The number of cores or GPUs on all nodes."""
        return self.devices * (self.hardware.threads if self.hardware.device == "cpu" else 1)

    @property
    def batch(self) -> int:
        """The samples in a global batch."""
        return self.training.global_batch


def relative_epochs(group: Group, baseline: Group) -> float:
    """Return the group's epochs over the baseline's, or 1 if either trains only some steps of each.

    A speedup of whole trainings times this is the ratio of their samples per second.
    """
    ours, theirs = lengths_of(side.training for side in (group, baseline))
    return ours / theirs


def on_nodes(nodes: int, devices: str) -> str:
    """Return, for example, ``2x A100`` or ``2 nodes of 2x A100``."""
    return devices if nodes == 1 else f"{nodes} nodes of {devices}"


def machines_of(groups: Iterable[Group]) -> tuple[str, ...]:
    """Return the fingerprints of the machines of ``groups``, each once."""
    return tuple(dict.fromkeys(name for group in groups for name in group.machines()))


def groups_of(
    plan: StudyPlan, runs: Runs, others: Iterable[CellRun | PairRun] = ()
) -> dict[str, Group]:
    """Return the plan's groups with their runs, by id; those of several models together last.

    ``others``: all other known runs, which may have taken place at the same time.
    """
    in_turns, trained_in_pairs = _in_turns(plan, runs.pairs), _trained_in_pairs(plan, runs.pairs)
    every = {run.cell.id: run for run in (*others, *runs.all.values())}
    overlapping = _beside_others(every.values())
    groups: dict[str, Group] = {}
    for planned in plan.groups + plan.together:
        own_runs: list[CellRun] = []
        cell_runs = own_runs
        if planned.not_run:
            pass
        elif members := [groups[name] for name in planned.members]:
            own_runs = _together(members)
            seeds = {run.cell.seed for run in own_runs}
            every_run = (run for member in members for run in member.runs)
            cell_runs = [run for run in every_run if run.cell.seed in seeds]
        else:
            own_runs = cell_runs = [runs.alone[cell] for cell in planned.cells]
        groups[planned.id] = Group.model_construct(
            **dict(planned),
            runs=tuple(own_runs),
            cell_runs=tuple(cell_runs),
            shared=any(run.cell.id in overlapping for run in cell_runs),
            in_turns=in_turns[planned.id],
            trained_in_pairs=tuple(trained_in_pairs[planned.id]),
        )
    return groups


def runs_in(cells: Path) -> Iterator[CellRun | PairRun]:
    """Yield the run of every cell and pair in the folder ``cells`` that can be read."""
    for path in sorted(cells.glob("*/metrics.json")):
        with contextlib.suppress(ParbenchError):  # its own study reports the error
            yield records.read(path)


def _beside_others(runs: Iterable[CellRun | PairRun]) -> set[str]:
    """Return the cells that ran while another one did, on a machine with the same fingerprint."""
    overlapping: set[str] = set()
    last_by_machine: dict[str, CellRun | PairRun] = {}
    for run in sorted(runs, key=lambda run: run.started):
        machine = run.environment.machine.fingerprint
        previous = last_by_machine.get(machine)
        if previous and run.started < previous.finished:
            overlapping |= {run.cell.id, previous.cell.id}
        if not previous or previous.finished < run.finished:
            last_by_machine[machine] = run
    return overlapping


def _in_turns(plan: StudyPlan, runs: Mapping[str, PairRun]) -> defaultdict[str, InTurns]:
    """Return a plan's pairs by the id of the variant's group."""
    ids, found = _ids(plan), defaultdict[str, InTurns](InTurns)
    for pair in plan.pairs:
        variant, baseline = (ids[pair.model, name] for name in (pair.variant, pair.baseline))
        if pair.inference:
            found[variant].predicting[baseline] = Compared.of(pair, runs)
        else:
            found[variant].training[baseline] = Compared.of(pair, runs)
            found[variant].energy[baseline] = Compared.of(pair, runs, "joules")
    return found


def _trained_in_pairs(
    plan: StudyPlan, runs: Mapping[str, PairRun]
) -> defaultdict[str, list[Trained]]:
    """Return the trainings in all restarts of a plan's pairs, by the id of their group."""
    ids, trained_in_pairs = _ids(plan), defaultdict[str, list[Trained]](list)
    for pair in plan.pairs:
        for run in (runs[cell] for cell in pair.cells if cell in runs):
            for number, side in enumerate(run.trained):
                name = pair.variant if number < run.cell.variants else pair.baseline
                trained_in_pairs[ids[pair.model, name]].append(side)
    return trained_in_pairs


def _ids(plan: StudyPlan) -> dict[tuple[str, str], str]:
    """Return the id of each group, by model and variant."""
    return {(group.model, group.variant): group.id for group in plan.groups + plan.together}


def _together(members: list[Group]) -> list[CellRun]:
    """Return one run per seed that all ``members`` have, as if it had trained all their models."""
    runs_by_seed: dict[int, list[CellRun]] = {}
    for member in members:
        for run in member.runs:
            runs_by_seed.setdefault(run.cell.seed, []).append(run)
    return [_all_trained(runs) for runs in runs_by_seed.values() if len(runs) == len(members)]


def _all_trained(runs: list[CellRun]) -> CellRun:
    """Combine the runs of several models into one, the first's, whose training time is the total,
    and which failed if one of them did."""
    worst = next((run for run in runs if run.status != OK), runs[0])
    total = None
    if worst.status == OK:
        # Average over which run comes first: each cell of models trained together timed all.
        orders = ([*runs[n:], *runs[:n]] for n in range(len(runs)))
        total = statistics.fmean(map(_seconds_in_turn, orders))
    outcome = {"status": worst.status, "reason": worst.reason}
    times = {"train_seconds": total, "total_seconds": total}
    return runs[0].model_copy(update=outcome | times)


def _seconds_in_turn(runs: list[CellRun]) -> float:
    """Return the seconds to train the models of all ``runs``, one run after the other. A run whose
    model was already trained beside an earlier one is skipped."""
    total, trained = 0.0, set[str]()
    for run in runs:
        if run.cell.model.name not in trained:
            assert run.train_seconds is not None  # as it ended well
            trained.update(other.model for other in run.beside)
            total += max([run.train_seconds, *(other.train_seconds for other in run.beside)])
    return total


def read_runs(plan: StudyPlan, folder: str | Path) -> Runs:
    """Read ``folder``/<cell>/metrics.json of every cell that runs; ParbenchError if one is
    missing."""
    runs: dict[str, CellRun | PairRun] = {}
    for group in plan.measured:
        for cell in [] if group.not_run else group.cells:
            path = Path(folder) / cell / "metrics.json"
            if not path.exists():
                command = shlex.join(["snakemake", str(path), *plan.arguments])
                raise ParbenchError(f"{path}: no such file; make it with: {command}")
            runs[cell] = records.read(path)
    return Runs.of(runs)


# ---------------------------------------------------------------- two groups, seed by seed


def compared(metric: Metric, group: Group, baseline: Group, but: Collection[str] = ()) -> Series:
    """Compare a metric of the group's successful runs with the baseline's, by seed: differences of
    scores, log ratios of other metrics, where both did the same work.

    ``but``: names of settings that may differ between the two runs (those of
    ``_settings_of_work``).
    """
    base_by_seed = {run.cell.seed: run for run in baseline.runs}
    values: dict[int, float] = {}
    reasons = group.failures()
    if baseline.not_run:
        reasons.append(f"the baseline {baseline.id} was not run")
    for run in [] if baseline.not_run else group.ok:
        number, base = run.cell.seed, base_by_seed.get(run.cell.seed)
        if base is None:
            reasons.append(f"the baseline has no seed {number}")
        elif base.status != OK:
            reasons.append(f"the baseline's seed {number}: {FAILURES[base.status]}")
        elif why := _why_not(run, base, metric.is_score, but):
            reasons.append(why)
        elif (ours := metric.value(run)) is None or (theirs := metric.value(base)) is None:
            reasons.append(f"seed {number} has no {metric.name}")
        elif metric.is_score:
            values[number] = ours - theirs
        elif ours and theirs:
            values[number] = math.log(ours / theirs)
        else:
            reasons.append(f"seed {number} has no {metric.name}")
    return Series(
        values,
        logs=not metric.is_score,
        cost=group.seed_seconds + baseline.seed_seconds,
        resolution=max(side.resolution(metric) for side in (group, baseline)),
        reasons=tuple(dict.fromkeys(reasons)),
    )


def _why_not(run: CellRun, base: CellRun, scored: bool, but: Collection[str]) -> str:
    """Return why two runs of a seed cannot be compared; empty if they can."""
    few = few_steps(run.cell.training.steps) or few_steps(base.cell.training.steps)
    if scored and few:
        return few
    ours, theirs = _settings_of_work(run), _settings_of_work(base)
    differences = ", ".join(
        f"{key} {ours[key]} here, {theirs[key]} for the baseline"
        for key in ours
        if key not in but and ours[key] != theirs[key]
    )
    return f"not compared because of unequal work: {differences}" if differences else ""


def few_steps(steps: int | None) -> str:
    """Return why no accuracy was measured; empty if it was."""
    if steps is None:
        return ""
    return f"only {steps} steps of an epoch were trained: no accuracy is measured"


def _settings_of_work(run: CellRun) -> dict[str, object]:
    """Return the settings that decide how much a run computes and how it is measured."""
    training, dataset = run.cell.training, run.cell.dataset
    settings = ("epochs", "steps", "global_batch", "image_size", "mode", "profile")
    work: dict[str, object] = {"dataset": dataset.name}
    work |= {key: getattr(dataset, key) for key in ("train_samples", "test_samples")}
    work |= {key: getattr(training, key) for key in settings}
    return {key: "all" if value is None else value for key, value in work.items()}
