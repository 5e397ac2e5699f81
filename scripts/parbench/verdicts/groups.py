"""Groups of a plan with their runs: a group is a cell without its seed."""

from __future__ import annotations

import math
import shlex
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from parbench.errors import ParbenchError
from parbench.measure import metrics_json
from parbench.measure.metrics import Metric, Run, seconds
from parbench.plan import study_plan
from parbench.verdicts.pairs import Compared
from parbench.verdicts.series import Series
from parbench.verdicts.words import FAILURES, NOT_RUN, OK


class Group(study_plan.PlannedGroup):
    """A group of a plan, one like no other, with what its cells measured.

    ``runs``: metrics.json of its cells. Of several models that are trained together, which are a
    group with ``members``, one for each seed that all have; ``cell_runs`` are those of all cells.
    """

    runs: tuple[Run, ...] = ()
    cell_runs: tuple[Run, ...] = ()
    shared: bool = False  # a machine, with other cells at the same time
    # What took turns with a baseline, by its id: training, and predicting.
    pairs: Mapping[str, Compared] = {}
    predicting: Mapping[str, Compared] = {}
    __eq__, __hash__ = object.__eq__, object.__hash__

    @classmethod
    def of(
        cls, entry: Mapping, runs: Iterable[Run], cell_runs: Iterable[Run], **found: Any
    ) -> Group:
        """The group of a plan's ``entry``, of any age; ``found``: what else it has."""
        plan = study_plan.PlannedGroup.model_validate(entry, strict=False, extra="ignore")
        measured = {"runs": tuple(runs), "cell_runs": tuple(cell_runs)}
        return cls.model_construct(**dict(plan), **measured, **found)

    @property
    def ok(self) -> list[Run]:
        """The runs that ended well: only these are averaged."""
        return [run for run in self.runs if run["status"] == OK]

    def _failed(self) -> dict[str, int]:
        """How many runs failed, by what that is called."""
        counts = Counter(run["status"] for run in self.runs)
        return {word: counts[status] for status, word in FAILURES.items() if counts[status]}

    @property
    def status(self) -> str:
        """``ok``, ``not run`` or, for example, ``diverged 1 of 3``."""
        if self.not_run:
            return NOT_RUN
        failed = (f"{word} {count} of {len(self.runs)}" for word, count in self._failed().items())
        return ", ".join(failed) or OK

    @property
    def short_status(self) -> str:
        """The same; but ``diverged`` where all runs did."""
        return next((w for w, n in self._failed().items() if n == len(self.runs)), self.status)

    def failures(self) -> list[str]:
        """One sentence a run that did not end well."""
        return [
            f"seed {run['cell']['seed']} {FAILURES[run['status']]}"
            + (f" ({run['reason']})" if run["reason"] else "")
            for run in self.runs
            if run["status"] != OK
        ]

    @property
    def why(self) -> str:
        """Why it did not run, or the reason of its first run that did not end well; or nothing."""
        return self.not_run or next(filter(None, (run["reason"] for run in self.runs)), "")

    def cautions(self, metric: Metric) -> list[str]:
        """Why the metric means less than it seems, whatever it is set beside."""
        # A strategy may know of more than the settings show: its module says so, the plan tells.
        stated = self.comparable.get(metric.name)
        cautions = [stated] if stated else []
        if not metric.depends_on_clock:
            return cautions
        if self.training.mode == "deterministic":
            cautions.append("deterministic mode is not for timing")
        if self.training.profile != "none":
            cautions.append("an instrumented run is not for timing")
        return cautions

    def machines(self) -> list[str]:
        """Fingerprints of the machines that ran it."""
        return list(dict.fromkeys(name for run in self.runs for name in fingerprints(run)))

    def accelerators(self) -> list[str]:
        """Names of the accelerators: as measured, or as planned where nothing was recorded."""
        machines = (run["environment"]["machine"] for run in self.runs)
        seen = {card["name"] for machine in machines for card in machine["accelerators"]}
        return sorted(seen) or list(filter(None, [self.hardware.gpu_model]))

    def describe_hardware(self) -> str:
        """For example ``2 CPU cores`` or ``2x NVIDIA H200``."""
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
        """Whether the metric is one of a single model, or of several, as the group is."""
        return metric.of in ("any", "several" if self.members else "one")

    def series(self, metric: Metric) -> Series:
        """The metric by seed."""
        values = {seed(run): metric.read(run) for run in self.ok if self.measures(metric)}
        known = {number: value for number, value in values.items() if value is not None}
        return Series(known, cost=self.seed_seconds, resolution=self.resolution(metric))

    def resolution(self, metric: Metric) -> float:
        """The least step of the metric: of a score, one test image."""
        images = sum(map(sum, self.ok[0]["confusion"])) if self.ok and metric.is_score else 0
        return 1 / images if images else 0.0

    @property
    def seed_seconds(self) -> float:
        """What one more seed costs, as those that ran did, start to end."""
        return sum(map(seconds, self.cell_runs)) / max(1, len(set(map(seed, self.cell_runs))))

    def at_most_faster(self, slow: Group) -> float:
        """How many times as fast as ``slow`` it can at most be, with more devices: by their number,
        by its pipeline or, of models side by side, by the longest of them; else infinite."""
        most = self.most_by_devices(slow)
        if math.isinf(most):
            return most
        turns = self.pairs.get(slow.id) if self.members else None
        bounds = [most, self.work.pipeline_bound, turns.bound if turns else None]
        return min(each for each in bounds if each is not None)

    def most_by_devices(self, slow: Group) -> float:
        """How many times as many cores or GPUs as ``slow`` it has; infinite where that bounds no
        speedup: without more of them, of another kind, or made faster in another way."""
        ours, theirs = (
            (each.hardware.device, each.training.precision, each.training.tf32, each.training.tuned)
            for each in (self, slow)
        )
        more = ours == theirs and self.cores > slow.cores
        return self.cores / slow.cores if more else math.inf

    @property
    def devices(self) -> int:
        """All that it uses."""
        return self.hardware.devices * self.hardware.nodes

    @property
    def cores(self) -> int:
        """All cores or GPUs that it uses."""
        return self.devices * self.hardware.threads

    @property
    def batch(self) -> int:
        """Samples of a global batch."""
        return self.training.global_batch


def on_nodes(nodes: int, devices: str) -> str:
    """``2x A100``, ``2 nodes of 2x A100``."""
    return devices if nodes == 1 else f"{nodes} nodes of {devices}"


def fingerprints(run: Run) -> list[str]:
    """Of a run's machine, after those on which it was interrupted."""
    before = [place["machine"] for place in run["resumed_from"] or []]
    return list(dict.fromkeys([*before, run["environment"]["machine"]["fingerprint"]]))


def seed(run: Run) -> int:
    """The seed of a run."""
    return run["cell"]["seed"]


def groups_of(plan: Mapping, runs: Mapping[str, Run]) -> dict[str, Group]:
    """The plan's groups with their runs, by id; after them those of several models together.

    ``runs`` maps ids of cells and pairs to metrics.json contents.
    """
    turns = _turns(plan, runs)
    trained = {cell for each in plan["groups"] if not each["not_run"] for cell in each["cells"]}
    beside, groups = _beside_others(runs[cell] for cell in trained), {}
    for each in plan["groups"] + plan["together"]:
        if each["not_run"]:
            own = cells = []
        elif members := [groups[name] for name in each.get("members", [])]:
            own, cells = _together(members), [run for member in members for run in member.runs]
        else:
            own = cells = [runs[cell] for cell in each["cells"]]
        shared = any(run["cell"]["id"] in beside for run in cells)
        found = turns.get(each["id"], {})
        groups[each["id"]] = Group.of(each, own, cells, shared=shared, **found)
    return groups


def _beside_others(runs: Iterable[Run]) -> set[str]:
    """The cells that ran while another one did, on such a machine."""
    found, last = set(), {}
    for run in sorted(runs, key=lambda run: run["started"]):
        machine = run["environment"]["machine"]["fingerprint"]
        before = last.get(machine)
        if before and run["started"] < before["finished"]:
            found |= {run["cell"]["id"], before["cell"]["id"]}
        if not before or before["finished"] < run["finished"]:
            last[machine] = run
    return found


def _turns(plan: Mapping, runs: Mapping[str, Run]) -> dict[str, dict[str, dict[str, Compared]]]:
    """What a plan compares in pairs: by the variant's group ``pairs`` of training and those of
    ``predicting``, by the baseline's."""
    groups = [*plan["groups"], *plan["together"]]
    names = {(each["model"], each["variant"]): each["id"] for each in groups}
    found: dict[str, dict[str, dict[str, Compared]]] = {}
    for each in plan.get("pairs", []):
        over, under = (names[each["model"], each[key]] for key in ("variant", "baseline"))
        kind = "predicting" if each["inference"] else "pairs"
        own = found.setdefault(over, {"pairs": {}, "predicting": {}})
        own[kind][under] = Compared.of(each, runs)
    return found


def _together(members: list[Group]) -> list[Run]:
    """A run for each seed that all ``members`` have, as if one had trained all their models."""
    of_seed: dict[int, list[Run]] = {}
    for member in members:
        for run in member.runs:
            of_seed.setdefault(seed(run), []).append(run)
    return [_all_trained(runs) for runs in of_seed.values() if len(runs) == len(members)]


def _all_trained(runs: list[Run]) -> Run:
    """What is said of the runs of several models together; in place of training time, the total."""
    worst = next((run for run in runs if run["status"] != OK), runs[0])
    total = None
    if worst["status"] == OK:
        # Whichever is first: where they train at the same time, each of them has measured it.
        orders = ([*runs[n:], *runs[:n]] for n in range(len(runs)))
        total = statistics.fmean(map(_seconds_in_turn, orders))
    return {
        "cell": runs[0]["cell"],
        "status": worst["status"],
        "reason": worst["reason"],
        "train_seconds": total,
        "total_seconds": total,
        "environment": runs[0]["environment"],
        # Every machine that had a part in it.
        "resumed_from": [{"machine": name} for run in runs for name in fingerprints(run)],
    }


def _seconds_in_turn(runs: list[Run]) -> float:
    """Until the models of all ``runs`` are trained, one run after the other; but one whose model
    has trained beside an earlier one is not needed any more."""
    total, trained = 0.0, set()
    for run in runs:
        if run["cell"]["model"]["name"] not in trained:
            at_once = [run["train_seconds"]]
            for other in run.get("beside", []):
                at_once.append(other["train_seconds"])
                trained.add(other["model"])
            total += max(at_once)
    return total


def read_runs(plan: Mapping, folder: str | Path, kind: str = "groups") -> dict[str, Run]:
    """metrics.json of every cell of the plan's groups, or pairs (``kind``), that runs, from
    ``folder``/<cell>/metrics.json."""
    runs = {}
    for group in plan.get(kind, []):
        for cell in [] if group["not_run"] else group["cells"]:
            path = Path(folder) / cell / "metrics.json"
            if not path.exists():
                command = shlex.join(["snakemake", str(path), *plan["arguments"]])
                raise ParbenchError(f"{path}: no such file; make it with: {command}")
            runs[cell] = metrics_json.read(path)
    return runs


# ---------------------------------------------------------------- two groups, seed by seed


def compared(metric: Metric, group: Group, baseline: Group, but: Collection[str] = ()) -> Series:
    """A metric of the group's good runs beside the baseline's of the same seeds: differences of
    scores, ratios of others, where both did the same work.

    ``but``: in which keys of their work they may differ.
    """
    of_seed = {seed(run): run for run in baseline.runs}
    values, reasons = {}, group.failures()
    if baseline.not_run:
        reasons.append(f"the baseline {baseline.id} was not run")
    for run in [] if baseline.not_run else group.ok:
        number, base = seed(run), of_seed.get(seed(run))
        if base is None:
            reasons.append(f"the baseline has no seed {number}")
        elif base["status"] != OK:
            reasons.append(f"the baseline's seed {number}: {FAILURES[base['status']]}")
        elif why := _why_not(run, base, metric.is_score, but):
            reasons.append(why)
        elif metric.is_score:
            values[number] = metric.read(run) - metric.read(base)
        elif (value := metric.read(run)) and (unit := metric.read(base)):
            values[number] = math.log(value / unit)
        else:
            reasons.append(f"seed {number} has no {metric.name}")
    return Series(
        values,
        logs=not metric.is_score,
        cost=group.seed_seconds + baseline.seed_seconds,
        resolution=max(each.resolution(metric) for each in (group, baseline)),
        reasons=tuple(dict.fromkeys(reasons)),
    )


def _why_not(run: Run, base: Run, scored: bool, but: Collection[str]) -> str:
    """Why two runs of a seed are not to be compared; empty when they are."""
    steps = (each["cell"]["training"]["steps"] for each in (run, base))
    if scored and (few := next(filter(None, map(few_steps, steps)), "")):
        return few
    ours, theirs = _work(run), _work(base)
    differ = ", ".join(
        f"{key} {ours[key]} here, {theirs[key]} for the baseline"
        for key in ours
        if key not in but and ours[key] != theirs[key]
    )
    return f"not compared, for unequal work: {differ}" if differ else ""


def few_steps(steps: int | None) -> str:
    """Why no accuracy was measured; empty where it was."""
    if steps is None:
        return ""
    return f"only {steps} steps of an epoch were trained: no accuracy is measured"


def _work(run: Run) -> dict[str, Any]:
    training, dataset = run["cell"]["training"], run["cell"]["dataset"]
    settings = ("epochs", "steps", "global_batch", "image_size", "mode", "profile")
    work = {"dataset": dataset["name"]}
    work |= {key: dataset[key] for key in ("train_samples", "test_samples")}
    work |= {key: training[key] for key in settings}
    return {key: "all" if value is None else value for key, value in work.items()}
