"""Build what a study's plan has besides its groups: title and settings, rows for several
models together, and differences from the study at published scale."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, cast

from parbench import models, strategies
from parbench.cell import Cell
from parbench.errors import ParbenchError
from parbench.plan import config_files, places
from parbench.plan.configuration import Override
from parbench.plan.options import all_options, model_name, starts_published
from parbench.plan.settings import resolved
from parbench.plan.study import Study, Together, Tolerance, Variant
from parbench.plan.study_plan import About, PlannedGroup
from parbench.plan.yaml_file import words_of


def about(name: str, study: Study, override: Override, dataset: str) -> About:
    """Return what the report shows of the study ``name``.

    ``dataset``: the dataset after ``override``, which config.yaml may change.
    """
    stated: dict[str, Any] = {"claims": study.claims, "second_device": study.second_device}
    return About(
        name=name,
        title=study.title,
        description=study.description,
        citation=study.citation,
        dataset=dataset,
        source_dataset=study.dataset,
        settings=_shown_settings(study, override),
        assumed=_shown_assumptions(study, override),
        override=override,
        published=study.published,
        **{key: value for key, value in stated.items() if value},
        # Every field is passed, so that the file also contains the defaults.
        tolerance=Tolerance(**study.tolerance.model_dump()),
        tables=study.tables,
    )


def _shown_assumptions(study: Study, override: Override) -> dict[str, object]:
    """Return the assumed settings and strategy options, by the name that the report shows."""
    assumed = {k: value for k, value in study.assumed.items() if k not in override.settings}
    for strategy, options in assumed.pop("options", {}).items():
        assumed |= {f"{strategy}'s {key}": value for key, value in options.items()}
    return assumed


def _shown_settings(study: Study, override: Override) -> dict[str, object]:
    """Return the settings of the study, its models and its variants, by the name to show."""
    final = override.settings  # takes precedence over all others
    shown = {**study.settings, **final}
    for name, entry in study.models.items():
        if "pretrained" in entry.model_fields_set:
            shown[f"pretrained of {name}"] = entry.pretrained
    for name, entry in [*study.models.items(), *study.variants.items()]:
        for key, value in entry.settings.items():
            if key not in final:
                shown[f"{key} of {name}"] = value
    return shown


def together(
    study: Study, groups: Mapping[tuple[str, str], PlannedGroup], where: str
) -> Iterator[PlannedGroup]:
    """Yield a group for each entry of `together` and each variant that trains all of its models.

    Such a group has no cells; its ``members`` are the groups of the models.
    """
    for label, entry in study.together.items():
        for name in study.variants:
            if set(entry.models) <= set(study.trained(name)):
                members = [groups[model, name] for model in entry.models]
                if members[0].training.profile == "none":  # profiling distorts times
                    _check_alike(members, f"{where}: together.{label}", name)
                    yield _joined(label, entry, study, name, members)


def _check_alike(members: list[PlannedGroup], where: str, variant: str) -> None:
    first, *others = members
    settings = asdict(first.training) | asdict(first.dataset)
    for other in others:
        own = asdict(other.training) | asdict(other.dataset)
        if differing := [key for key in settings if own[key] != settings[key]]:
            raise ParbenchError(
                f"{where}: the models {first.model} and {other.model} differ in the setting "
                f"`{differing[0]}` (variant {variant}), so their times cannot be added up; give "
                "them the same"
            )


def _joined(
    label: str, entry: Together, study: Study, variant: str, members: list[PlannedGroup]
) -> PlannedGroup:
    own = study.variants[variant]
    published = None
    if own.published is not None:
        published = {"model": "+".join(entry.models), **own.published, **entry.published}
    return members[0].model_copy(
        update={
            "id": f"{label}.{variant}",
            "model": label,
            "model_options": {},
            "pretrained": {k: v for member in members for k, v in member.pretrained.items()},
            "cells": [cell for member in members for cell in member.cells],
            "not_run": next((member.not_run for member in members if member.not_run), None),
            "baseline": f"{label}.{own.baseline}" if own.baseline is not None else None,
            "published": published,
            "scaled": list(dict.fromkeys(phrase for member in members for phrase in member.scaled)),
            "comparable": {k: v for member in members for k, v in member.comparable.items()},
            "members": [member.id for member in members],
        }
    )


# --- how a study is smaller than its source ---


def source_of(study: Study, where: str) -> Study | None:
    """Return the study at published scale that ``study`` names; None if it names none."""
    if study.scaled_from is None:
        return None
    try:
        return config_files.study(study.scaled_from)
    except ParbenchError as error:
        raise ParbenchError(f"{where}: scaled_from: {error}") from None


def differences(
    cell: Cell, model: str, variant: str, study: Study, source: Study | None
) -> list[str]:
    """Return a phrase for each difference between ``cell`` and the same cell of ``source``.

    ``cell`` is that of ``model`` and ``variant`` in ``study``.
    """
    if source is None:
        own = "models, data, training or devices of its own, not those of the claims' sources"
        return [own] if study.claims else []
    assert study.scaled_from is not None
    source_path = places.shown(places.study(study.scaled_from))
    # A variant that only this study has is not scaled down, so its own settings do not count as
    # differences, unless it is compared with published rows.
    own, source_model = study.variants[variant], source.models.get(model)
    layers = [source.settings, source.assumed, source_model.settings if source_model else {}]
    # Settings that the source's study sets only per variant count as this variant's own.
    known: set[str] = set[str]().union(*layers) if own.published is not None else set()
    unknown = {key: value for key, value in own.settings.items() if key not in known}
    entry = source.variants.get(variant, own.model_copy(update={"settings": unknown}))
    layers.append(entry.settings)
    source_settings = resolved(layers, source_path)
    if cell.hardware.device != "cuda":
        source_settings["tf32"] = asdict(cell.training.tf32)  # it has no effect on other devices
    settings = asdict(cell.training) | asdict(cell.dataset)
    # A list, as in a study's file.
    settings["learning_rate_steps"] = list(cell.training.learning_rate_steps)
    phrases = [
        f"{key} {_instead(settings[key], source_settings[key])}"
        for key in source_settings
        if settings[key] != source_settings[key]
    ]
    if study.dataset != source.dataset:
        phrases.insert(0, f"dataset {_instead(study.dataset, source.dataset)}")
    source_file = cell.model.name
    if source_model is not None:
        source_file = model_name(model, source_model, places.study(study.scaled_from))
    if source_file != cell.model.name:
        return [*phrases, f"model {_instead(cell.model.name, source_file)}"]
    source_options = all_options(
        "models", source_file, source_model.options if source_model else {}, source_path
    )
    own_options = models.options(cell.model.name, cell.model.options)
    phrases += [
        f"{model}'s {key} {_instead(own_options[key], value)}"
        for key, value in source_options.items()
        if own_options[key] != value
    ]
    pretrained = cell.model.pretrained is not None
    if starts_published(source_model) != pretrained:
        starts = ["weights drawn at random", "published weights"]
        phrases.append(
            f"{model} starts from {_instead(starts[pretrained], starts[not pretrained])}"
        )
    return phrases + _other_strategy(cell, entry, source, source_path)


def _other_strategy(cell: Cell, entry: Variant, source: Study, place: str) -> list[str]:
    """Return phrases on how a cell's strategy differs from the variant ``entry`` of ``source``."""
    name, options = cell.strategy.name, strategies.of(cell).options
    if name != entry.strategy:
        return [f"strategy {name} instead of {entry.strategy}"]
    # Nested options, such as those of companions, are too long to print.
    return [
        f"other options in {key}"
        if isinstance(value, dict)
        else f"{key} {_instead(options[key], value)}"
        for key, value in all_options("strategies", name, source.options(entry), place).items()
        if options[key] != value
    ]


def _instead(ours: object, theirs: object) -> str:
    ours, theirs = ("all" if value is None else value for value in (ours, theirs))
    if isinstance(theirs, dict):
        ours, theirs = words_of(ours), words_of(cast(object, theirs))
    return f"{ours} instead of {theirs}"
