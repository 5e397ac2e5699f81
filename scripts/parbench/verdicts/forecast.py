"""What a run will train, how long that takes by what was measured, and which claims it answers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection

from parbench import files
from parbench.measure.metrics import seconds
from parbench.plan import places, state
from parbench.plan.expansion import Plan
from parbench.verdicts import asked
from parbench.verdicts.evidence import FOLDER


def forecast(plan: Plan, cells: Collection[str]) -> list[str]:
    """Say how many ``cells`` a run will train, how many of them again, and the hours that all of
    them take, one after the other; then which claims they can answer. Empty where there are none.
    """
    if not cells:
        return []
    count = f"{len(cells):,} {'cell' if len(cells) == 1 else 'cells'} to train"
    again = sum((places.folder(cell) / "metrics.json").exists() for cell in cells)
    told = f", {again} of them again (`cells.py why <cell>` says why)" if again else ""
    return [f"{count}{told}; {_hours(plan, cells)}", *_answers(plan)]


def _hours(plan: Plan, cells: Collection[str]) -> str:
    """What ``cells`` take by earlier runs of their groups, here or where there is evidence of."""
    expected, wanted, elsewhere = [], set(cells), set()
    for name, study in plan.studies.items():
        kept = None
        for group in study.measured:
            number = len(wanted.intersection(group.cells))
            wanted.difference_update(group.cells)  # of which several studies may ask
            known = [spent for cell in group.cells if number and (spent := state.took(cell))]
            if number and not known:
                kept = kept or _kept(name)
                known = kept[1].get(_configuration(group.id), [])
                elsewhere |= {kept[0]} if known else set()
            if known:
                expected += [statistics.mean(known)] * number
    if not expected:
        return "how long is unknown, since nothing like it has run here"
    total = sum(expected)
    spelled = f"{total / 3600:.1f} h" if total >= 3600 else f"{math.ceil(total / 60)} min"
    where = f" (some on {', '.join(sorted(elsewhere))})" if elsewhere else ""
    unknown = len(cells) - len(expected)
    rest = f", and {unknown} for which it is unknown" if unknown else ""
    return f"by earlier runs{where} some {spelled} of training one after the other{rest}"


def _kept(study: str) -> tuple[str, dict[str, list[float]]]:
    """The machine of the newest evidence of ``study``; seconds of its cells by configuration."""
    newest = sorted(
        FOLDER.glob(f"{study}-*.json"), key=lambda path: path.stem[-len("2026-01-31") :]
    )
    for path in reversed(newest):
        made = files.read_json(path)
        if made["study"] == study:
            return made["machine"], {
                _configuration(group["id"]): [
                    seconds(run) for cell in group["cells"] if (run := made["cells"].get(cell))
                ]
                for group in [*made["plan"]["groups"], *made["plan"].get("pairs", [])]
            }
    return "", {}


def _configuration(group: str) -> str:
    """The id of a group without its digest, which the dataset is in."""
    return group.rpartition("-")[0]


def _answers(plan: Plan) -> list[str]:
    """The claims that have a comparison once all is trained: nothing is read of what there is."""
    claims = [each for each in asked.judged(plan, plan.studies) if each.claim.test]
    told = [each.name for each in claims if any(made.waits for made in each.comparisons)]
    if not claims:
        return []
    return [f"of {len(claims)} claims they test {len(told)}: {', '.join(told) or 'none'}"]
