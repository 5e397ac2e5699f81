"""Plan pairs of variants whose times are compared while both take turns on the same devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from parbench import strategies
from parbench.cell import Cell, Pair
from parbench.errors import ParbenchError
from parbench.plan.naming import CellNames, short_options
from parbench.plan.study import Study, VariantPair
from parbench.plan.study_plan import PairGroup, PlannedGroup

Key = tuple[str, str]  # model and variant


def pairs(
    study: Study,
    templates: Mapping[Key, Cell],
    groups: Mapping[Key, PlannedGroup],
    why_unavailable: Mapping[Key, str | None],
    restarts: Mapping[str, int],
    where: str,
) -> Iterator[tuple[PairGroup, list[Pair]]]:
    """Yield the pairs that ``study`` compares, each with its cells, one per restart.

    ``templates``: cells of its ``groups`` without id and seed; ``why_unavailable``: why
    this machine cannot run them, or None; ``restarts``: how many earlier runs decided on, by id.
    Raises ParbenchError, beginning with ``where``, for a duplicate pair or one that cannot be
    compared.
    """
    ids: set[str] = set()
    for entry in study.pairs.compare if study.pairs else ():
        for name in entry.models or study.trained_in_both(entry.variant, entry.baseline):
            group, cells = _pair(
                study, entry, name, templates, groups, why_unavailable, restarts, where
            )
            if group.id in ids:
                raise ParbenchError(
                    f"{where}: pairs: {entry.variant} and {entry.baseline} are compared twice "
                    f"(model {name}); remove one of them"
                )
            ids.add(group.id)
            yield group, cells


def _pair(
    study: Study,
    entry: VariantPair,
    name: str,
    templates: Mapping[Key, Cell],
    groups: Mapping[Key, PlannedGroup],
    why_unavailable: Mapping[Key, str | None],
    restarts: Mapping[str, int],
    where: str,
) -> tuple[PairGroup, list[Pair]]:
    """Return the comparison of ``entry`` for ``name``, a model or several models together."""
    assert study.pairs is not None
    members = study.members(name)
    variant_keys, baseline_keys = (
        _in_turn(members, variant, templates) for variant in (entry.variant, entry.baseline)
    )
    keys = [*variant_keys, *baseline_keys]
    sides = tuple(templates[key] for key in keys)
    _check(entry, keys, sides, f"{where}: pairs")
    # Prediction time does not depend on the weights, so random ones do.
    sides = tuple(replace(side, trained_by=None) for side in sides)
    common_fields: dict[str, Any] = {"variants": len(variant_keys), "inference": entry.inference}
    template = Pair("", 0, sides, **common_fields)
    side_names = [_short(templates[key], key[1]) for key, *_ in (variant_keys, baseline_keys)]
    name_parts = ("+".join(members), "pair", *side_names, "inference" * entry.inference)
    names = CellNames(template, name_parts, "r")
    name_of_group = ".".join(filter(None, (name, *name_parts[1:]))) + f"-{names.digest}"
    name_of_group = name_of_group.replace("/", "-")
    restart_count = max(study.pairs.restarts, restarts.get(name_of_group, 0))
    # Cells are named by their models, so two names for the same models share their cells.
    group = PairGroup(
        id=name_of_group,
        model=name,
        variant=entry.variant,
        baseline=entry.baseline,
        sides=[groups[key].id for key in keys],
        restarts=list(range(restart_count)),
        cells=[names.cell(restart) for restart in range(restart_count)],
        not_run=next(filter(None, (why_unavailable[key] for key in keys)), None),
        **common_fields,
    )
    return group, [_started(template, group, restart) for restart in group.restarts]


def _in_turn(members: Iterable[str], variant: str, templates: Mapping[Key, Cell]) -> list[Key]:
    """Return the keys of the cells that together train all ``members``, one cell after the other.

    A model that trains beside an earlier one has no cell in the result.
    """
    keys: list[Key] = []
    trained: set[str] = set()
    for model in members:
        if model not in trained:
            keys.append((model, variant))
            trained.update(strategies.of(templates[model, variant]).companions)
    return keys


def _check(entry: VariantPair, keys: Iterable[Key], sides: tuple[Cell, ...], where: str) -> None:
    for (model, variant), side in zip(keys, sides, strict=True):
        if side.trained_by and not entry.inference:
            raise ParbenchError(
                f"{where}: {variant} trains nothing; set inference: true, or choose another variant"
            )
        if strategies.load(side.strategy.name).TURNS is None:
            raise ParbenchError(
                f"{where}: {variant}: a stream runs at a fixed rate, so it cannot take part in "
                "a pair; choose another variant"
            )
        if side.training.profile != "none":
            raise ParbenchError(
                f"{where}: speedups are not computed from profiled cells, and {variant} of "
                f"{model} sets `profile: {side.training.profile}`; choose another variant"
            )
        if side.dataset != sides[0].dataset:
            raise ParbenchError(
                f"{where}: {entry.variant} and {entry.baseline} have different train_samples or "
                "test_samples; give them the same"
            )


def _short(side: Cell, variant: str) -> str:
    """Return how a name describes a side; a program of the user's own is named by ``variant``."""
    name = variant if strategies.of(side).PAIRS_ONLY else side.strategy.name
    return "-".join(filter(None, (name, side.hardware.name, short_options(side))))


def _started(template: Pair, group: PairGroup, restart: int) -> Pair:
    """Return the cell of ``group`` for a ``restart``, which is the seed of its sides."""
    named_sides = zip(template.sides, group.sides, strict=True)
    sides = tuple(replace(side, id=name, seed=restart) for side, name in named_sides)
    return replace(template, id=group.cells[restart], seed=restart, sides=sides)
