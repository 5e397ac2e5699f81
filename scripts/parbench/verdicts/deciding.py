"""More restarts of what is undecided, in rotation, until all is decided or the time is over.

How many restarts each comparison has is kept in results/restarts.json, which the plan reads: the
next run of the workflow has them, too. To look after each restart is allowed: see sequential.py.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from parbench.deploy import deployment
from parbench.errors import ParbenchError
from parbench.files import write_json
from parbench.measure import metrics_json
from parbench.plan import config as configuration
from parbench.plan import expansion, pairing, places, published, state
from parbench.plan.study_plan import PairGroup
from parbench.verdicts import claims, sequential
from parbench.verdicts.groups import groups_of
from parbench.verdicts.incomplete import cut
from parbench.verdicts.pairs import Compared
from parbench.verdicts.published import Source
from parbench.verdicts.terminal import aligned, say
from parbench.verdicts.words import FEWEST, UNDECIDED


@dataclass(frozen=True)
class Open:
    """A comparison of ``study``, undecided with its ``n`` restarts; a restart takes ``cost``
    seconds. ``needed``: restarts that decide it, None where they are too many."""

    study: str
    pair: PairGroup
    n: int
    cost: float
    needed: int | None

    @property
    def seconds(self) -> float:
        """That it takes yet, if the estimate stays."""
        return math.inf if self.needed is None else (self.needed - self.n) * self.cost


def still_open(plan: expansion.Plan) -> Iterator[Open]:
    """What pairs of ``plan`` have not decided: whether a side is faster, slower or equal, and the
    claims that rest on them."""
    for name, study in plan.studies.items():
        of_claims = _undecided_claims(name, study.stated(), plan)
        for pair in study.pairs or ():
            if pair.not_run is not None or pair.inference:
                continue
            series = _compared(pair).series
            boundaries = series.undecided(study.study.tolerance.relative)
            boundaries += of_claims.get(tuple(pair.cells), ())
            if boundaries:
                found = series.interval()
                needed = FEWEST if found is None else sequential.needed(found, boundaries)
                yield Open(name, pair, len(series.values), series.cost, needed)


def _compared(pair: PairGroup) -> Compared:
    paths = {cell: places.folder(cell) / "metrics.json" for cell in pair.cells}
    runs = {cell: metrics_json.read(path) for cell, path in paths.items() if path.exists()}
    return Compared.of(pair.stated(), runs)


def _undecided_claims(
    name: str, study: Mapping, plan: expansion.Plan
) -> dict[tuple[str, ...], tuple[float, ...]]:
    """The thresholds of the study's undecided claims, by the cells of the pair they rest on."""
    source = study["study"]["published"]
    if source is None:
        return {}
    done = {
        cell: plan.cells[cell].seed
        for cell in plan.runnable(name)
        if state.state(cell, plan)[0] == "done"
    }
    whole = cut(study, done, lambda group, left: {"not_run": "not trained yet"})
    runs = {cell: metrics_json.read(places.folder(cell) / "metrics.json") for cell in done}
    groups = tuple(groups_of(whole, runs, runs).values())
    values = Source.read(source, places.published_files())
    rebuilt = claims.Rebuilt(name, study["study"]["tolerance"], values, groups, {})
    found: dict[tuple[str, ...], tuple[float, ...]] = {}
    for judged in claims.judge(published.claims(places.CLAIMS), {source: [rebuilt]}, []):
        for comparison in judged.comparisons:
            if comparison.verdict == UNDECIDED:
                for ratio in (each for each in comparison.ratios if each.pair):
                    cells = ratio.pair.cells
                    found[cells] = found.get(cells, ()) + comparison.boundaries
    return found


# ---------------------------------------------------------------- the program


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60, help="at most (default 60)")
    parser.add_argument("--configfile", action="append", default=[], help="laid over config.yaml")
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes
    config = deployment.settle(configuration.read(given.configfile))
    plan = expansion.plan(config, given.configfile)
    if not any(study.pairs for study in plan.studies.values()):
        raise ParbenchError(
            f"studies: {', '.join(plan.studies)}: none has `pairs`, by which times are compared"
        )
    _measure(plan)
    while time.monotonic() < end:
        known = sorted(still_open(plan), key=lambda each: each.seconds)
        patience = 60 * sequential.PATIENCE
        left = end - time.monotonic()
        chosen = [each for each in known if each.seconds <= patience and each.cost <= left]
        if not chosen:
            break
        minutes = math.ceil(sum(each.cost for each in chosen) / 60)
        print(
            f"parbench: undecided comparisons: {len(chosen)}; one restart more of each takes some "
            f"{minutes} min",
            flush=True,
        )
        kept = pairing.restarts()
        kept |= {each.pair.id: len(each.pair.restarts) + 1 for each in chosen}
        write_json(pairing.RESTARTS, kept)
        plan = expansion.plan(config, given.configfile)
        _measure(plan)
    say("\n".join(_told(plan)))


def _measure(plan: expansion.Plan) -> None:
    """Have Snakemake run the pairs that are not done. ParbenchError where one fails."""
    for study in plan.studies.values():
        cells = [cell for pair in study.pairs or () if not pair.not_run for cell in pair.cells]
        wanted = [cell for cell in cells if state.state(cell, plan)[0] != "done"]
        targets = [str(places.folder(cell) / "metrics.json") for cell in wanted]
        words = [sys.executable, "-m", "snakemake", "--quiet", "all", "--rerun-incomplete"]
        if targets and subprocess.run([*words, *study.arguments, "--", *targets]).returncode:
            raise ParbenchError("a pair could not be measured: see the error above")


def _told(plan: expansion.Plan) -> list[str]:
    """Every comparison and what it says."""
    lines = [["study", "model", "variant", "baseline", "times as fast", "restarts", "reading"]]
    for name, study in plan.studies.items():
        for pair in study.pairs or ():
            compared = _compared(pair)
            measured = compared.series.estimate()
            ends = f" [{measured.ci_low:.2f}, {measured.ci_high:.2f}]"
            ends = "" if measured.too_few else ends
            ratio = f"{measured.mean:.2f}{ends}" if measured.n else "not run"
            says = pair.not_run or compared.reading(study.study.tolerance.relative)
            keys = [name, pair.model, pair.variant, pair.baseline]
            lines.append([*keys, ratio, str(measured.n), says])
    return aligned(lines)
