"""Groups of a plan with their runs: a group is a cell without its seed."""

from __future__ import annotations

import math
import shlex
import statistics
from collections.abc import Iterable, Mapping
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
        counts = {
            word: [run["status"] for run in self.runs].count(k) for k, word in FAILURES.items()
        }
        return {word: count for word, count in counts.items() if count}

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
        planned = self.hardware.gpu_model
        return sorted(seen) or ([planned] if planned else [])

    def describe_hardware(self) -> str:
        """For example ``2 CPU cores`` or ``2x NVIDIA H200``."""
        count, threads = self.hardware.devices, self.hardware.threads
        if self.hardware.device == "cpu":
            cores = f"{count} CPU core{'s' if count > 1 else ''}"
            if threads > 1:
                cores = f"{count}x {threads} CPU cores"
            return on_nodes(self.hardware.nodes, cores)
        names = " or ".join(self.accelerators()) or "unknown GPU"
        return on_nodes(self.hardware.nodes, f"{count}x {names}")

    def measures(self, metric: Metric) -> bool:
        """Whether the metric is one of a single model, or of several, as the group is."""
        return metric.of in ("any", "several" if self.members else "one")

    def values(self, metric: Metric) -> list[float]:
        """The metric of the runs that ended well and have it."""
        values = [metric.read(run) for run in self.ok] if self.measures(metric) else []
        return [value for value in values if value is not None]

    def series(self, metric: Metric) -> Series:
        """The metric by seed."""
        runs = self.ok if self.measures(metric) else []
        values = {seed(run): metric.read(run) for run in runs}
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
        speedup: without more of them, of another kind, or in another arithmetic."""
        alike = self.hardware.device == slow.hardware.device and self.arithmetic == slow.arithmetic
        return self.cores / slow.cores if alike and self.cores > slow.cores else math.inf

    @property
    def arithmetic(self) -> tuple:
        """By what a device becomes faster: no number of devices bounds what that gains."""
        return self.training.precision, self.training.tf32, self.training.tuned

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
    kinds = {"pairs": _compared(plan, runs, False), "predicting": _compared(plan, runs, True)}
    trained = {cell for each in plan["groups"] if not each["not_run"] for cell in each["cells"]}
    beside, groups = _beside_others(runs[cell] for cell in trained), {}
    for each in plan["groups"] + plan["together"]:
        turns = {kind: found.get(each["id"], {}) for kind, found in kinds.items()}
        if each.get("members"):
            members = [] if each["not_run"] else [groups[name] for name in each["members"]]
            own, cells = _together(members), [run for member in members for run in member.runs]
        else:
            own = cells = [] if each["not_run"] else [runs[cell] for cell in each["cells"]]
        shared = any(run["cell"]["id"] in beside for run in cells)
        groups[each["id"]] = Group.of(each, own, cells, shared=shared, **turns)
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


def _compared(
    plan: Mapping, runs: Mapping[str, Run], inference: bool
) -> dict[str, dict[str, Compared]]:
    """What a plan compares in pairs, of training or of ``inference``, by the variant's group and
    the baseline's."""
    groups = [*plan["groups"], *plan["together"]]
    names = {(each["model"], each["variant"]): each["id"] for each in groups}
    found: dict[str, dict[str, Compared]] = {}
    for each in plan.get("pairs", []):
        if each["inference"] == inference:
            over, under = (names[each["model"], each[key]] for key in ("variant", "baseline"))
            found.setdefault(over, {})[under] = Compared.of(each, runs)
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
    failed = [run for run in runs if run["status"] != OK]
    # Whichever is first: where they train at the same time, each of them has measured it.
    orders = [] if failed else [[*runs[n:], *runs[:n]] for n in range(len(runs))]
    total = None if failed else statistics.fmean(map(_seconds_in_turn, orders))
    return {
        "cell": runs[0]["cell"],
        "status": failed[0]["status"] if failed else OK,
        "reason": failed[0]["reason"] if failed else None,
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
