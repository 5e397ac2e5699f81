"""Add restarts and seeds to undecided comparisons until all are decided or the time is up.

Each round takes what the time left can decide, so that a short time is not spread over everything.
results/restarts.json holds how many each pair or group has; the plan reads it, so the next run of
the workflow has them, too. Looking at the result after each one is allowed: see sequential.py.
"""

from __future__ import annotations

import argparse
import math
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from parbench.deploy import deployment
from parbench.errors import ParbenchError
from parbench.files import write_json
from parbench.measure import metrics_json
from parbench.plan import config as configuration
from parbench.plan import expansion, pairing, places, state
from parbench.plan.study_plan import PairGroup
from parbench.verdicts import asked, sequential
from parbench.verdicts.comparisons import Comparison
from parbench.verdicts.groups import Group
from parbench.verdicts.pairs import Compared
from parbench.verdicts.sequential import Band
from parbench.verdicts.series import Series
from parbench.verdicts.terminal import aligned, say
from parbench.verdicts.words import FAILS, FEWEST, UNDECIDED


@dataclass(frozen=True)
class Open:
    """A comparison that is undecided with ``n`` values; one more is a cell of each of ``parts`` and
    takes ``cost`` seconds. ``needed``: how many values decide it, None if too many."""

    parts: tuple[PairGroup | Group, ...]
    n: int
    cost: float
    needed: int | None

    @classmethod
    def of(cls, parts: Iterable[PairGroup | Group], series: Series, boundaries: Band) -> Open:
        """Return the comparison of ``series``, decided once its interval excludes a boundary."""
        found = series.interval()
        needed = FEWEST if found is None else sequential.needed(found, boundaries)
        return cls(tuple(parts), len(series.values), series.cost, needed)

    @property
    def seconds(self) -> float:
        """The seconds still needed if the estimate stays; infinite if too many values are."""
        return math.inf if self.needed is None else max(1, self.needed - self.n) * self.cost


def still_open(plan: expansion.Plan) -> Iterator[Open]:
    """Yield what is undecided in ``plan``: whether a pair's variant is faster, slower or equal, and
    claims that rest on pairs or on seeds."""
    for name, study in plan.studies.items():
        undecided = [each for each in _claimed(name, plan) if each.boundaries]
        # Two names of several models together may compare the same cells.
        of_cells: dict[tuple[str, ...], list[PairGroup]] = {}
        for pair in study.pairs or ():
            if pair.not_run is None:
                of_cells.setdefault(tuple(pair.cells), []).append(pair)
        for cells, pairs in of_cells.items():
            series = _compared(pairs[0]).series
            boundaries = series.undecided(study.study.tolerance.relative)
            for each in undecided:
                if any(ratio.pair and ratio.pair.cells == cells for ratio in each.ratios):
                    boundaries += each.boundaries
            if boundaries:
                yield Open.of(pairs, series, boundaries)
        for each in undecided:
            if not any(ratio.pair for ratio in each.ratios):
                yield Open.of(_groups(each), each.measured, each.boundaries)


def _groups(compared: Comparison) -> list[Group]:
    return [side for ratio in compared.ratios for side in (ratio.over, ratio.under)]


def _compares(compared: Comparison) -> str:
    return " over ".join(group.id for group in _groups(compared))


def _compared(pair: PairGroup) -> Compared:
    paths = {cell: places.folder(cell) / "metrics.json" for cell in pair.cells}
    runs = {cell: metrics_json.read(path) for cell, path in paths.items() if path.exists()}
    return Compared.of(pair.stated(), runs)


def _claimed(name: str, plan: expansion.Plan) -> list[Comparison]:
    """Return the comparisons of the study's claims that are undecided, or that fail although their
    claim is undecided: not clearly enough for one of several."""
    done = [cell for cell in plan.runnable(name) if state.state(cell, plan)[0] == "done"]
    return [
        each
        for claim in asked.judged(plan, [name], done)
        for each in claim.comparisons
        if each.verdict == UNDECIDED or (claim.verdict, each.verdict) == (UNDECIDED, FAILS)
    ]


# ---------------------------------------------------------------- the program


def main() -> None:
    """Run the command line; --report also takes the arguments of the Snakemake run it is for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--minutes", type=float, default=60, help="at most (default 60)")
    parser.add_argument("--configfile", nargs="+", default=[], help="laid over config.yaml")
    parser.add_argument("--config", nargs="+", default=[], help="key=value, laid over both")
    parser.add_argument(
        "--report",
        action="store_true",
        help="within `budget_minutes` of the configuration, and then write the report anew",
    )
    given, others = parser.parse_known_args()
    if others and not given.report:
        parser.error(f"unknown words: {shlex.join(others)}")
    if {"-n", "--dry-run", "--dryrun"} & set(others):
        return
    changes = configuration.laid_over(given.config)
    config = deployment.settle(configuration.read(given.configfile, changes))

    def planned() -> expansion.Plan:
        # The report's run may have been for a cluster, which has other devices than this machine.
        lacking = expansion.lacking_as_planned(config["studies"]) if given.report else None
        return expansion.plan(config, given.configfile, changes, lacking)

    if not given.report:
        _check(planned())
        say("\n".join(_told(_decided(planned, given.minutes))))
        return
    before = pairing.added()
    _decided(planned, config["budget_minutes"], others)
    if pairing.added() != before:
        words = [word for word in sys.argv[1:] if word != "--report"]
        _snakemake("reports/final.html", "reports/final.pdf", *words)


def _check(plan: expansion.Plan) -> None:
    studies = plan.studies.values()
    about = [(study.pairs, study.study.published, study.study.claims) for study in studies]
    if not any(map(any, about)):
        raise ParbenchError(
            f"studies: {', '.join(plan.studies)}: none has `pairs`, by which times are compared, "
            "or claims that are judged"
        )


def _decided(
    planned: Callable[[], expansion.Plan], minutes: float, others: Sequence[str] = ()
) -> expansion.Plan:
    """Measure in rounds for ``minutes``, return the plan; ``others``: arguments for Snakemake."""
    end, plan = time.monotonic() + 60 * minutes, planned()
    _measure(plan, others)
    while time.monotonic() < end:
        left = end - time.monotonic()
        chosen = _nearest(still_open(plan), left)
        if not chosen:
            break
        minutes = math.ceil(sum(each.cost for each in chosen) / 60)
        print(
            f"parbench: undecided comparisons: {len(chosen)}; one restart or seed more of each "
            f"takes some {minutes} min",
            flush=True,
        )
        more = {part.id: len(part.cells) + 1 for each in chosen for part in each.parts}
        write_json(pairing.ADDED, pairing.added() | more)
        plan = planned()
        _measure(plan, others)
    return plan


def _nearest(known: Iterable[Open], left: float) -> list[Open]:
    """Return what ``left`` seconds can decide one after the other, the soonest first; if nothing,
    the soonest alone, to bring it nearer to a verdict."""
    patience = 60 * sequential.PATIENCE
    able = [each for each in known if each.seconds <= patience and each.cost <= left]
    able.sort(key=lambda each: each.seconds)
    ends = accumulate(each.seconds for each in able)
    return [each for each, end in zip(able, ends, strict=True) if end <= left] or able[:1]


def _measure(plan: expansion.Plan, others: Sequence[str]) -> None:
    """Have Snakemake run the pairs that are not done, and the seeds that were added here."""
    for study in plan.studies.values():
        ours = [
            *(study.pairs or ()),
            *(each for each in study.groups if each.id in pairing.added()),
        ]
        cells = [cell for each in ours if not each.not_run for cell in each.cells]
        wanted = [cell for cell in cells if state.state(cell, plan)[0] != "done"]
        if wanted:
            files = (str(places.folder(cell) / "metrics.json") for cell in wanted)
            _snakemake(*others, *study.arguments, "--", *files)


def _snakemake(*words: str) -> None:
    """Run Snakemake. Raises ParbenchError if it fails."""
    command = [sys.executable, "-m", "snakemake", "--quiet", "all", "--rerun-incomplete", *words]
    if subprocess.run(command).returncode:
        raise ParbenchError("not all could be measured: see the error above")


def _told(plan: expansion.Plan) -> list[str]:
    """Return a table of all comparisons of times, then a line for each undecided one by seeds."""
    lines = [["study", "model", "variant", "baseline", "times as fast", "restarts", "reading"]]
    for name, study in plan.studies.items():
        for pair in study.pairs or ():
            compared = _compared(pair)
            measured = compared.series
            few = measured.too_few
            ends = "" if few else f" [{measured.ci_low:.2f}, {measured.ci_high:.2f}]"
            ratio = f"{measured.mean:.2f}{ends}" if measured.seeds else "not run"
            says = pair.not_run or compared.reading(study.study.tolerance.relative)
            keys = [name, pair.model, pair.variant, pair.baseline]
            lines.append([*keys, ratio, str(measured.seeds), says])
    seeds = (
        ": ".join([name, _compares(each), each.verdict, *each.reasons[-1:]])
        for name, study in plan.studies.items()
        for each in _claimed(name, plan)
        if not any(ratio.pair for ratio in each.ratios)
    )
    return [*aligned(lines), *seeds]
