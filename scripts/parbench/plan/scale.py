"""How the groups of a smaller study differ from the study at published scale, in words."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from parbench import strategies
from parbench.cell import Cell
from parbench.errors import ParbenchError
from parbench.plan import config as configuration
from parbench.plan.options import all_options, starts_published
from parbench.plan.settings import settled
from parbench.plan.study import Study, Variant


def source_of(study: Study, where: str) -> Study | None:
    """The study at published scale that ``study`` names; None where it names none."""
    if study.scaled_from is None:
        return None
    try:
        return configuration.study(study.scaled_from)
    except ParbenchError as error:
        raise ParbenchError(f"{where}: scaled_from: {error}") from None


def differences(
    cell: Cell, model: str, variant: str, study: Study, source: Study | None
) -> list[str]:
    """How ``cell``, of ``model`` and ``variant`` of ``study``, differs from that of ``source``."""
    if source is None:
        return ["a scale of its own"] if study.claims else []
    place = f"studies/{study.scaled_from}.yaml"
    # A variant that only this study has is no scaled one, and what it states itself stands; unless
    # it is set beside published rows.
    own = study.variants[variant]
    alone = own.model_copy(update={"settings": {}}) if own.published is not None else own
    entry = source.variants.get(variant, alone)
    there = source.models.get(model)
    layers = [source.settings, source.assumed, there.settings if there else {}, entry.settings]
    full = settled(layers, place)
    here = asdict(cell.training) | asdict(cell.dataset)
    told = [f"{key} {_instead(here[key], full[key])}" for key in full if here[key] != full[key]]
    file = there.model or model if there else cell.model.name
    if file != cell.model.name:
        return [*told, f"model {_instead(cell.model.name, file)}"]
    options = all_options("models", file, there.options if there else {}, place)
    told += [
        f"{model}'s {key} {_instead(cell.model.options[key], value)}"
        for key, value in options.items()
        if cell.model.options[key] != value
    ]
    started = cell.model.pretrained is not None
    if starts_published(there) != started:
        drawn = ["weights drawn at random", "published weights"]
        told.append(f"{model} starts from {_instead(drawn[started], drawn[not started])}")
    return told + _other_strategy(cell, entry, source, place)


def _other_strategy(cell: Cell, entry: Variant, source: Study, place: str) -> list[str]:
    """How a cell's strategy differs from that of the variant ``entry`` of ``source``."""
    name, here = cell.strategy.name, strategies.of(cell).options
    if name != entry.strategy:
        return [f"strategy {name} instead of {entry.strategy}"]
    # Of options that hold options, such as those of companions, only that they differ.
    return [
        f"other options in {key}"
        if isinstance(value, dict)
        else f"{key} {_instead(here[key], value)}"
        for key, value in all_options("strategies", name, source.options(entry), place).items()
        if here[key] != value
    ]


def _instead(here: Any, there: Any) -> str:
    here, there = ("all" if value is None else value for value in (here, there))
    return f"{here} instead of {there}"
