"""What a plan tells of its study beside the groups: its texts and settings, rows of several models,
and parts of the source without cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from parbench.errors import ParbenchError
from parbench.plan.configuration import Override
from parbench.plan.study import Study, Together, Tolerance
from parbench.plan.study_plan import About, PlannedGroup


def about(name: str, study: Study, override: Override, dataset: str) -> About:
    """The study ``name`` as the report shows it, on the ``dataset`` that ``override`` chose."""
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
        **({"claims": study.claims} if study.claims else {}),
        **({"second_device": study.second_device} if study.second_device else {}),
        # Every field stated, so that defaults are written, too.
        tolerance=Tolerance(**study.tolerance.model_dump()),
        tables=study.tables,
    )


def _shown_assumptions(study: Study, override: Override) -> dict[str, Any]:
    """What the report shows: settings, and options of strategies one by one."""
    assumed = {k: value for k, value in study.assumed.items() if k not in override.settings}
    for strategy, options in assumed.pop("options", {}).items():
        assumed |= {f"{strategy}'s {key}": value for key, value in options.items()}
    return assumed


def _shown_settings(study: Study, override: Override) -> dict[str, Any]:
    """What the report shows: the study's settings, and those of single models and variants."""
    final = override.settings  # laid over everything
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
    """Several models together: a group for each variant that trains them, without cells of its own;
    its ``members`` are the groups that have them."""
    for label, entry in study.together.items():
        for name in study.variants:
            if set(entry.models) <= set(study.trained(name)):
                members = [groups[model, name] for model in entry.models]
                if members[0].training.profile == "none":  # else its times are no times
                    _check_alike(members, f"{where}: together.{label}", name)
                    yield _joined(label, entry, study, name, members)


def _check_alike(members: list[PlannedGroup], where: str, variant: str) -> None:
    for key in ("training", "dataset"):
        if any(getattr(each, key) != getattr(members[0], key) for each in members):
            raise ParbenchError(
                f"{where}: its models have different settings ({key}, variant {variant}): their "
                "times are no sum of equal work; give them the same"
            )


def _joined(
    label: str, entry: Together, study: Study, variant: str, members: list[PlannedGroup]
) -> PlannedGroup:
    own = study.variants[variant]
    told = None
    if own.published is not None:
        told = {"model": "+".join(entry.models), **own.published, **entry.published}
    return members[0].model_copy(
        update={
            "id": f"{label}.{variant}",
            "model": label,
            "model_options": {},
            "pretrained": {k: v for each in members for k, v in each.pretrained.items()},
            "cells": [cell for each in members for cell in each.cells],
            "not_run": next((each.not_run for each in members if each.not_run), None),
            "baseline": f"{label}.{own.baseline}" if own.baseline is not None else None,
            "published": told,
            "scaled": list(dict.fromkeys(words for each in members for words in each.scaled)),
            "comparable": {k: v for each in members for k, v in each.comparable.items()},
            "members": [each.id for each in members],
        }
    )
