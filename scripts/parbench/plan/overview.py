"""Describe what a configuration asks for, and what decides it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from parbench import decided
from parbench.plan import config_files, expansion, places, state
from parbench.plan.yaml_file import YamlMapping
from parbench.words import count


def overview(configfiles: Sequence[Path], studies: Sequence[str]) -> Iterator[str]:
    """Yield lines about the cells of ``studies``, by default those of the configuration.

    ``configfiles`` override config.yaml. Raises ParbenchError.
    """
    places.require_root("parbench")
    changes: YamlMapping = {"studies": list(studies)} if studies else {}
    config = config_files.read(configfiles, changes, "--study")
    deployment = config.resolved_deployment()
    plan = expansion.plan(config, deployment)
    yield f"studies: {', '.join(plan.studies)} ({config.set_in('studies')})"
    earlier = plan.decided
    kept = f" (kept in {decided.DEPLOYMENT})" if deployment.auto and earlier.deployment else ""
    yield f"{deployment}{kept}"
    known = {group.id for study in plan.studies.values() for group in (*study.groups, *study.pairs)}
    added = sorted(known & earlier.restarts.keys())
    yield (
        f"restarts and seeds added by `parbench decide` ({decided.RESTARTS}): "
        f"{len(added) or 'none'}"
    )
    for group in added:
        yield f"  {group}: {earlier.restarts[group]} in total"
    for name, study in plan.studies.items():
        own = dict.fromkeys(cell for group in (*study.groups, *study.pairs) for cell in group.cells)
        words = Counter(state.state(cell, plan)[0] for cell in own)
        counted = ", ".join(f"{number} {word}" for word, number in words.items())
        yield f"\n{name}: {study.study.title}"
        yield f"  {count(len(own), 'cell')}: {counted}"
        reasons = Counter(plan.not_run[cell] for cell in own if cell in plan.not_run)
        for reason, number in reasons.most_common():
            yield f"  {number} not run here: {reason}"
