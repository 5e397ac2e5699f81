"""Expands studies into cells, and tells what each cell's state is and why.

A cell is one configuration with one seed; a group is the same configuration with all its seeds.
Never imports torch: the workflow uses this when it is parsed.
"""

from __future__ import annotations

import argparse
import copy
import csv
import functools
import itertools
import json
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema

import config as configuration
import deployment
import images
import learning_rate
import machine
import measure
import models
import pretrained
import profiling
import provenance
import shape
import strategies
import unbundle
from config import ROOT, nearest
from errors import ParbenchError, run_main
from files import canonical_json, digest, read_json, write_json

CELL_SCHEMA_VERSION = 1
PLAN_SCHEMA_VERSION = 1
RESULTS = Path("results")  # the workflow runs in the project's folder
PUBLISHED = Path("studies/published")
_RUN = ("timeout_seconds", "checkpoint_seconds", "grace_seconds")
_SAMPLES = ("train_samples", "test_samples")
MOST_CELLS = 20_000  # of one study: Snakemake plans no more in reasonable time


@dataclass
class Plan:
    """What a configuration asks for.

    ``cells``: every cell by id. ``not_run``: the ids of those that this machine cannot run, with
    the reason. ``studies``: the content of results/plan/<study>.json by study. ``datasets``:
    where each comes from, and ``weights`` likewise. ``images``: what results/plan/images.json tells
    the launcher.
    """

    cells: dict[str, dict] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)
    studies: dict[str, dict] = field(default_factory=dict)
    datasets: dict[str, dict] = field(default_factory=dict)
    weights: dict[str, dict] = field(default_factory=dict)
    images: dict = field(default_factory=dict)

    def runnable(self, study: str) -> list[str]:
        """Ids of the study's cells that this machine can run."""
        return [
            cell
            for group in self.studies[study]["groups"]
            if group["not_run"] is None
            for cell in group["cells"]
        ]


# Why the cells of a group cannot run; None where they can. Takes the group's id, and a cell of it
# without its seed.
Lacking = Callable[[str, dict], str | None]


def lacking_here(config: dict) -> Lacking:
    """What this machine lacks."""
    available = machine.available(config["available"])
    software = deployment.software(config)

    def lacking(group: str, cell: dict) -> str | None:
        reason = machine.missing(cell["hardware"], available)
        return reason or strategies.load(cell["strategy"]["name"]).unavailable(cell, software)

    return lacking


def lacking_as_planned(studies: list[str]) -> Lacking:
    """What was lacking when the plans of ``studies`` were written.

    For the jobs of a run: a compute node plans no other cells than the machine that submitted it.
    """
    plans = [path for study in studies if (path := RESULTS / "plan" / f"{study}.json").exists()]
    reasons = {group["id"]: group["not_run"] for p in plans for group in read_json(p)["groups"]}
    return lambda group, cell: reasons.get(group)


def plan(
    config: dict,
    configfiles: Sequence[str | Path] = (),
    changes: dict | None = None,
    lacking: Lacking | None = None,
) -> Plan:
    """Expand all studies of a checked, settled ``config``. ParbenchError names study, key, value.

    ``configfiles`` and ``changes`` (of ``--config``) are what was laid over config.yaml: plans keep
    them for the commands that rebuild a number. ``lacking`` tells what cells cannot run; by
    default those that this machine cannot.
    """
    _known("stack", config["stack"], _stacks(), "config.yaml")
    for study in config["override"]:
        if not (ROOT / "studies" / f"{study}.yaml").exists():
            configuration.study(study)  # its message names the nearest study
    lacking = lacking or lacking_here(config)
    result = Plan(
        datasets=config["datasets"],
        weights=config["weights"],
        images={"stack": config["stack"], "settings": config["images"]},
    )
    for name in config["studies"]:
        content = _expand_study(name, config, lacking, result)
        asked = configuration.arguments(name, configfiles, changes)
        result.studies[name] = {**content, "arguments": asked}
    return result


def _stacks() -> list[str]:
    return sorted(path.name for path in (ROOT / "containers" / "locks").iterdir() if path.is_dir())


def _known(key: str, name: str, known: list[str], where: str) -> None:
    if name not in known:
        shown = configuration.brief(name)
        raise ParbenchError(f"{where}: {key}: unknown value {shown!r}{nearest(name, known)}")


def _expand_study(name: str, config: dict, lacking: Lacking, result: Plan) -> dict:
    study = configuration.study(name)
    where = f"studies/{name}.yaml"
    override = config["override"].get(name, {})
    dataset = override.get("dataset", study["dataset"])
    _known("dataset", dataset, list(config["datasets"]), where)
    seeds = override.get("seeds", study["seeds"])
    moved = override.get("hardware", {})  # to other hardware, by the study's name for it
    for used in moved:
        asked = sorted({entry["hardware"] for entry in study["variants"].values()})
        _known("hardware", used, asked, f"override.{name}")
    _check_together(study, where)
    _check_tables(study, where)
    number = sum(len(_models(study, variant)) for variant in study["variants"]) * len(seeds)
    if number > MOST_CELLS:
        raise ParbenchError(
            f"{where}: {number:,} cells (models x variants x seeds); a study has at most "
            f"{MOST_CELLS:,}: make several of it"
        )
    groups: dict[tuple[str, str], dict] = {}
    for model, model_entry in study["models"].items():
        _known("models", model, configuration.modules("models"), where)
        for variant, entry in study["variants"].items():
            if model not in _models(study, variant):
                continue
            keys = f"{where}: variants.{variant}"
            _known("strategy", entry["strategy"], configuration.modules("strategies"), keys)
            place = moved.get(entry["hardware"], entry["hardware"])
            if place != entry["hardware"]:
                keys += f" (moved to {place} by `override`)"
            _known("hardware", place, list(config["hardware"]), keys)
            layers = [
                study.get("settings", {}),
                study.get("assumed", {}),
                model_entry.get("settings", {}),
                entry.get("settings", {}),
                override.get("settings", {}),
            ]
            settings = _settings(layers, keys)
            if config["datasets"][dataset]["kind"] == "synthetic" and settings["steps"] is None:
                raise ParbenchError(
                    f"{keys}: the dataset {dataset} is drawn at random, nothing can be learned of "
                    "it; state `steps`, how many of an epoch are timed, or choose another dataset"
                )
            template = {
                "model": _model(model, model_entry, config, where),
                "strategy": {
                    "name": entry["strategy"],
                    "options": _options(
                        "strategies", entry["strategy"], entry.get("options", {}), keys
                    ),
                },
                "hardware": hardware(place, config),
                "dataset": {"name": dataset, **{key: settings[key] for key in _SAMPLES}},
                "training": {k: v for k, v in settings.items() if k not in _SAMPLES},
                "stack": config["stack"],
                "deployment": config["deployment"],
            }
            _cross_check(template, f"{keys} with model {model}")
            _check_beside(template, study, keys)
            group = _group(template, variant, seeds, config, lacking, result)
            if any(other["id"] == group["id"] for other in groups.values()):
                twin = next(v for (m, v), g in groups.items() if g["id"] == group["id"])
                raise ParbenchError(
                    f"{keys}: the same cells as variant {twin!r} (model {model}); "
                    "remove one of them or change an option"
                )
            groups[model, variant] = group
    _link(study, groups, where)
    _refuse_mixed_clocks(study, groups, where)
    if "scaled_from" in study:
        _compare_scale(study, groups, where)
    defaults = {
        key: part["default"]
        for key, part in configuration.schema("study")["properties"]["tolerance"][
            "properties"
        ].items()
    }
    return {
        "schema_version": PLAN_SCHEMA_VERSION,
        "study": {
            "name": name,
            "title": study["title"],
            "description": study["description"],
            "citation": study["citation"],
            "dataset": dataset,
            "source_dataset": study["dataset"],
            "settings": _shown_settings(study, override),
            "assumed": {
                key: value
                for key, value in study.get("assumed", {}).items()
                if key not in override.get("settings", {})
            },
            "override": override,
            "published": study.get("published"),
            "not_yet": [_not_yet(entry, study, where) for entry in study.get("not_yet", [])],
            "tolerance": {**defaults, **study.get("tolerance", {})},
            "tables": study["tables"],
        },
        "stack": config["stack"],
        "deployment": config["deployment"],
        "groups": list(groups.values()),
        "together": list(_together(study, groups, where)),
    }


def _models(study: dict, variant: str) -> list[str]:
    """The models that are trained in ``variant``."""
    return study["variants"][variant].get("models", list(study["models"]))


def _shown_settings(study: dict, override: dict) -> dict:
    """What the report shows: the study's settings, and those of single models and variants."""
    final = override.get("settings", {})  # laid over everything
    shown = {**study.get("settings", {}), **final}
    for name, entry in study["models"].items():
        if "pretrained" in entry:
            shown[f"pretrained of {name}"] = entry["pretrained"]
    for part in ("models", "variants"):
        for name, entry in study[part].items():
            for key, value in entry.get("settings", {}).items():
                if key not in final:
                    shown[f"{key} of {name}"] = value
    return shown


def _check_tables(study: dict, where: str) -> None:
    for table in study["tables"]:
        title = configuration.brief(table["title"])
        models = [*study["models"], *study.get("together", {})]
        for part, known in (("models", models), ("variants", list(study["variants"]))):
            for name in table.get(part, []):
                _known(f"tables: {title!r}: {part}", name, known, where)
    for variant, entry in study["variants"].items():
        for model in entry.get("models", []):
            _known(f"variants.{variant}.models", model, list(study["models"]), where)
        if "baseline" in entry:
            key, baseline = f"variants.{variant}.baseline", entry["baseline"]
            _known(key, baseline, list(study["variants"]), where)
            for model in _models(study, variant):
                if model not in _models(study, baseline):
                    raise ParbenchError(
                        f"{where}: {key}: {baseline} does not train the model {model}; "
                        "add it to the `models` of that variant, or leave it out here"
                    )


def _check_together(study: dict, where: str) -> None:
    for label, entry in study.get("together", {}).items():
        if label in study["models"]:
            raise ParbenchError(f"{where}: together: {label} is a model; give it another name")
        for model in entry["models"]:
            _known(f"together.{label}.models", model, list(study["models"]), where)


def _settings(layers: list[dict], where: str) -> dict:
    """All settings of a cell, later ``layers`` over earlier ones over the schema's defaults."""
    schema = configuration.settings_schema()
    values = {key: part["default"] for key, part in schema.items() if "default" in part}
    for layer in layers:
        values.update(layer)
    for key, part in schema.items():
        if key not in values:
            raise ParbenchError(
                f"{where}: the setting {key!r} ({part['description']}) is missing; state it under "
                "`settings`, or under `assumed` if the source leaves it open"
            )
    return {key: values[key] for key in schema}


@functools.cache
def _options_validator(kind: str, name: str) -> jsonschema.protocols.Validator:
    options = _module(kind, name).OPTIONS
    required = [key for key, part in options.items() if "default" not in part]
    return configuration.Validator(
        {
            "type": "object",
            "properties": options,
            "required": required,
            "additionalProperties": False,
        }
    )


def _module(kind: str, name: str) -> Any:
    return {"models": models, "strategies": strategies}[kind].load(name)


def _options(kind: str, name: str, given: dict, where: str) -> dict:
    """Every option of a model or strategy, those not ``given`` by their defaults."""
    what = f"options of {name}"
    configuration.check_by(_options_validator(kind, name), given, f"{where}: {what}")
    options = _module(kind, name).OPTIONS
    return {
        key: copy.deepcopy(given[key] if key in given else part["default"])
        for key, part in options.items()
    }


def hardware(name: str, config: dict) -> dict:
    """The `hardware` of cell.json for a name in config.yaml."""
    entry = config["hardware"][name]
    return {
        "name": name,
        "device": entry["device"],
        "devices": entry["devices"],
        "threads": entry.get("threads", 1),
        "nodes": entry.get("nodes", 1),
        "gpu_model": entry.get("gpu_model"),
    }


def _cross_check(cell: dict, where: str) -> None:
    """What no schema can say: settings that contradict each other."""
    strategy = strategies.load(cell["strategy"]["name"])
    training, hardware = cell["training"], cell["hardware"]
    profile = profiling.load(training["profile"]).Profile
    for problem in itertools.chain(strategy.check(cell), profile.check(cell)):
        raise ParbenchError(f"{where}: {problem}")
    try:
        models.load(cell["model"]["name"]).cuts(strategy.stages(cell), cell["model"]["options"])
    except ParbenchError as error:
        raise ParbenchError(f"{where}: {error}") from None
    least = 2 * strategy.parts(cell)  # BatchNorm needs two samples in every piece of a batch
    for key in ("global_batch", "min_tail"):
        if training[key] < least:
            raise ParbenchError(
                f"{where}: {key} {training[key]} is too small: {cell['strategy']['name']} cuts a "
                f"batch into {strategy.parts(cell)} pieces (shares x micro-batches) of at least 2 "
                f"samples; choose {least} or more"
            )
    if training["min_tail"] > training["global_batch"]:
        raise ParbenchError(
            f"{where}: min_tail {training['min_tail']} is larger than global_batch "
            f"{training['global_batch']}; choose at most {training['global_batch']}"
        )
    if hardware["device"] != "cpu" and hardware["threads"] > 1:
        raise ParbenchError(
            f"config.yaml: hardware.{hardware['name']}: threads {hardware['threads']} on device "
            f"{hardware['device']}; remove it: threads are those of devices of kind cpu"
        )
    if hardware["device"] == "cpu" and hardware["gpu_model"]:
        raise ParbenchError(
            f"config.yaml: hardware.{hardware['name']}: gpu_model {hardware['gpu_model']!r} on "
            "device cpu; remove it or choose device: cuda"
        )
    if training["precision"] == "fp16" and hardware["device"] == "cpu":
        raise ParbenchError(
            f"{where}: precision fp16 needs an accelerator; choose bf16 or fp32 on CPU devices"
        )


def identity(cell: dict) -> dict:
    """The part of a cell that decides its measurement: all but names of rooms and `run`."""
    hardware = {key: value for key, value in cell["hardware"].items() if key != "name"}
    model = dict(cell["model"])
    if "pretrained" in model:
        model["pretrained"] = {k: v for k, v in model["pretrained"].items() if k != "weights"}
    kept = ("strategy", "dataset", "training", "stack", "deployment")
    return {**{key: cell[key] for key in kept}, "model": model, "hardware": hardware}


def _model(name: str, entry: dict, config: dict, where: str) -> dict:
    """The network of a cell; where the study says so, with the weights that it starts from."""
    model = {"name": name, "options": _options("models", name, entry.get("options", {}), where)}
    if _starts_published(entry):
        keys = f"{where}: models.{name}.pretrained"
        weights = _published_weights(model, entry["pretrained"], config["weights"], keys)
        model["pretrained"] = weights
    return model


def _starts_published(entry: dict) -> bool:
    """Whether a model of a study starts from published weights: true, or their name."""
    return entry.get("pretrained", False) is not False


def _published_weights(model: dict, asked: bool | str, weights: dict, keys: str) -> dict:
    """Those of config.yaml's ``weights`` that are of ``model`` with all its options; ``asked`` is
    true or their name. ParbenchError where not exactly one is meant.
    """
    schema = _module("models", model["name"]).OPTIONS
    usual = {key: part.get("default") for key, part in schema.items()}
    of_model = {key: each for key, each in weights.items() if each["model"] == model["name"]}
    fitting = [
        key
        for key, each in of_model.items()
        if usual | each.get("options", {}) == model["options"] and asked in (True, key)
    ]
    if len(fitting) == 1:
        sha256 = weights[fitting[0]]["sha256"]
        return {"weights": fitting[0], "sha256": sha256, "conversion": pretrained.CONVERSION}
    if fitting:
        raise ParbenchError(
            f"{keys}: several weights in config.yaml are of this model with these options; name "
            f"one of them instead of true: {configuration.brief(', '.join(fitting))}"
        )
    differing = {key: value for key, value in model["options"].items() if value != usual[key]}
    there = ", ".join(
        f"{key} (options {each.get('options', {})})" for key, each in of_model.items()
    )
    name = "" if asked is True else f" {configuration.brief(asked)!r}"
    raise ParbenchError(
        f"{keys}: config.yaml has no weights{name} of {model['name']} with the options "
        f"{configuration.brief(str(differing))}; it has "
        f"{configuration.brief(there, 300) or 'none of this model'}. Add an entry under weights, "
        "or say false"
    )


def _check_beside(cell: dict, study: dict, where: str) -> None:
    """Models that train at the same time start from what their seed draws."""
    beside = strategies.load(cell["strategy"]["name"]).beside(cell)
    for name in (cell["model"]["name"], *beside) if beside else ():
        if _starts_published(study["models"].get(name, {})):
            raise ParbenchError(
                f"{where}: strategy {cell['strategy']['name']} starts its models from weights that "
                f"the seed draws, and models.{name}.pretrained asks for published ones; say false, "
                "or leave the variant out"
            )


def _short_options(cell: dict) -> str:
    """Options that differ from their defaults, for a name that can be read in a queue listing."""
    parts = []
    for kind, entry in (("strategies", cell["strategy"]), ("models", cell["model"])):
        schema = _module(kind, entry["name"]).OPTIONS
        for key, value in entry["options"].items():
            if value != schema[key].get("default") and kind == "strategies":
                several = isinstance(value, (list, dict))
                words = "-".join(map(str, value)) if several else str(value)
                parts.append(f"{key}-{words}")
    return re.sub(r"[^A-Za-z0-9_.-]", "", ".".join(parts)[:48]).strip(".")


def _group(
    template: dict, variant: str, seeds: list[int], config: dict, lacking: Lacking, result: Plan
) -> dict:
    """The group of ``template`` over ``seeds``; its cells go into ``result``."""
    strategy = strategies.load(template["strategy"]["name"])
    content = identity(template)
    short = _short_options(template)
    name = ".".join(
        part
        for part in (
            template["model"]["name"],
            template["strategy"]["name"],
            template["hardware"]["name"],
            short,
        )
        if part
    )
    # The seed is spliced into the canonical text: hashing 5,000 whole cells would take seconds.
    text = canonical_json(content)
    group = f"{name}-{digest([text])[:8]}"
    reason = lacking(group, template)
    model = template["model"]
    started = model.get("pretrained")
    cells = []
    for seed in seeds:
        cell_id = f"{name}.s{seed}-{digest([text, seed])[:8]}"
        result.cells[cell_id] = {
            "schema_version": CELL_SCHEMA_VERSION,
            "id": cell_id,
            **template,
            "seed": seed,
            "run": {
                **{key: config[key] for key in _RUN},
                **config["nodes"],
            },
        }
        if reason is not None:
            result.not_run[cell_id] = reason
        cells.append(cell_id)
    return {
        "id": group,
        "model": template["model"]["name"],
        "variant": variant,
        "strategy": template["strategy"]["name"],
        "options": template["strategy"]["options"],
        "model_options": template["model"]["options"],
        "pretrained": {model["name"]: started["sha256"]} if started else {},
        "hardware": template["hardware"],
        "dataset": template["dataset"],
        "training": template["training"],
        "seeds": list(seeds),
        "cells": cells,
        "not_run": reason,
        "baseline": None,
        "published": None,
        "differs": None,
        "scaled": [],
        "comparable": strategy.notes(template),
        "work": _work(template),
    }


def _work(cell: dict) -> dict:
    """What the settings of ``cell`` come to on its hardware under its strategy."""
    strategy = strategies.load(cell["strategy"]["name"])
    ranks = strategy.shares(cell)
    return {
        "ranks": ranks,
        "micro_batches": strategy.parts(cell) // ranks,
        "learning_rate": learning_rate.peak(cell["training"], ranks),
        "batch_norm": strategy.batch_norm(cell),
        "pipeline_bound": strategy.pipeline_bound(cell),
    }


def _link(study: dict, groups: dict[tuple[str, str], dict], where: str) -> None:
    """Fill in what a group knows of others: its baseline, its published rows, what it does else."""
    for (model, variant), group in groups.items():
        entry = study["variants"][variant]
        group["differs"] = entry.get("differs")
        if "baseline" in entry:
            group["baseline"] = _baseline(groups, model, variant, entry["baseline"], where)
        if "published" in entry:
            group["published"] = {"model": model, **entry["published"]}
            if "published" not in study:
                raise ParbenchError(
                    f"{where}: variants.{variant}.published selects published rows, but the study "
                    "names no source; add the key `published` with the source's name"
                )


def _baseline(
    groups: dict[tuple[str, str], dict], model: str, variant: str, baseline: str, where: str
) -> str:
    """The id of a group's baseline; both are timed, and not instrumented."""
    for name in (variant, baseline):
        profile = groups[model, name]["training"]["profile"]
        if profile != "none":
            raise ParbenchError(
                f"{where}: variants.{variant}.baseline: {baseline}: no speedup is told from "
                f"instrumented cells, and {name} has `profile: {profile}`; remove the baseline"
            )
    return groups[model, baseline]["id"]


def _refuse_mixed_clocks(study: dict, groups: dict[tuple[str, str], dict], where: str) -> None:
    """Times of deterministic and of instrumented cells mean something else: no table sets them
    beside others.
    """
    for table, key in itertools.product(study["tables"], ("mode", "profile")):
        first: dict[str, str] = {}
        for (model, variant), group in groups.items():
            if shape.holds(table, group):
                first.setdefault(group["training"][key], f"{variant} of {model}")
        if len(first) > 1:
            told = ", ".join(f"{value} ({name})" for value, name in first.items())
            raise ParbenchError(
                f"{where}: tables: {configuration.brief(table['title'])!r} mixes {key}s: {told}; "
                f"state one `{key}` for all of its variants, or make it two tables"
            )


def _together(study: dict, groups: dict[tuple[str, str], dict], where: str) -> Iterator[dict]:
    """What the plan says of several models together: a group for each variant that trains them,
    without cells of its own; ``members`` are the groups that have them."""
    for label, entry in study.get("together", {}).items():
        for name, variant in study["variants"].items():
            if not set(entry["models"]) <= set(_models(study, name)):
                continue
            members = [groups[model, name] for model in entry["models"]]
            first = members[0]
            if first["training"]["profile"] != "none":  # its times are no times
                continue
            for key in ("training", "dataset"):
                if any(each[key] != first[key] for each in members):
                    raise ParbenchError(
                        f"{where}: together.{label}: its models have different settings "
                        f"({key}, variant {name}): their times are no sum of equal work; give "
                        "them the same"
                    )
            published = None
            if "published" in variant:
                told = {"model": "+".join(entry["models"])}
                published = told | variant["published"] | entry.get("published", {})
            yield {
                **first,
                "id": f"{label}.{name}",
                "model": label,
                "model_options": {},
                "pretrained": {k: v for each in members for k, v in each["pretrained"].items()},
                "members": [each["id"] for each in members],
                "cells": [cell for each in members for cell in each["cells"]],
                "not_run": next(filter(None, (each["not_run"] for each in members)), None),
                "baseline": f"{label}.{variant['baseline']}" if "baseline" in variant else None,
                "published": published,
                "scaled": list(dict.fromkeys(w for each in members for w in each["scaled"])),
                "comparable": {k: v for each in members for k, v in each["comparable"].items()},
            }


def _compare_scale(study: dict, groups: dict[tuple[str, str], dict], where: str) -> None:
    """Say in words how each group differs from the same model at published scale."""
    try:
        source = configuration.study(study["scaled_from"])
    except ParbenchError as error:
        raise ParbenchError(f"{where}: scaled_from: {error}") from None
    place = f"studies/{study['scaled_from']}.yaml"
    for (model, variant), group in groups.items():
        # A variant that only this study has is no scaled one, and what it states itself stands;
        # unless it is set beside published rows.
        own = study["variants"][variant]
        alone = {**own, "settings": {}} if "published" in own else own
        entry = source["variants"].get(variant, alone)
        layers = [
            source.get("settings", {}),
            source.get("assumed", {}),
            source["models"].get(model, {}).get("settings", {}),
            entry.get("settings", {}),
        ]
        full = _settings(layers, place)
        here = {**group["training"], **{key: group["dataset"][key] for key in _SAMPLES}}
        group["scaled"] = [
            f"{key} {_words(here[key])} instead of {_words(full[key])}"
            for key in full
            if here[key] != full[key]
        ]
        given = source["models"].get(model, {}).get("options", {})
        options = _options("models", model, given, place)
        group["scaled"] += [
            f"{model}'s {key} {_words(group['model_options'][key])} instead of {_words(value)}"
            for key, value in options.items()
            if group["model_options"][key] != value
        ]
        if _starts_published(source["models"].get(model, {})) != bool(group["pretrained"]):
            started = ("published weights", "weights drawn at random")
            here, there = started if group["pretrained"] else reversed(started)
            group["scaled"].append(f"{model} starts from {here} instead of {there}")
        group["scaled"] += _other_strategy(group, entry, place)


def _other_strategy(group: dict, entry: dict, place: str) -> list[str]:
    """How a group's strategy differs from that of the variant ``entry`` in the file ``place``."""
    name = entry["strategy"]
    if group["strategy"] != name:
        return [f"strategy {group['strategy']} instead of {name}"]
    # Of options that hold options, such as those of models beside it, only that they differ.
    return [
        f"other options in {key}"
        if isinstance(value, dict)
        else f"{key} {_words(group['options'][key])} instead of {_words(value)}"
        for key, value in _options("strategies", name, entry.get("options", {}), place).items()
        if group["options"][key] != value
    ]


def _words(value: Any) -> str:
    return "all" if value is None else str(value)


def published_files() -> list[Path]:
    """The files of published values; each source stands in one of them."""
    return sorted(PUBLISHED.glob("*.csv"))


def _not_yet(entry: dict, study: dict, where: str) -> dict:
    """What the plan says of a part of the source without cells: its published numbers beside."""
    selection = entry.get("published", {})
    rows = []
    for path in published_files() if selection else []:
        with open(path, encoding="utf-8", newline="") as file:
            rows += [
                row
                for row in csv.DictReader(file)
                if row["study"] == study.get("published")
                and all(row.get(key) in _spelled(value) for key, value in selection.items())
            ]
    if selection and not rows:
        raise ParbenchError(
            f"{where}: not_yet: {configuration.brief(entry['what'])!r}: published selects no row "
            f"of source {study.get('published')!r}; correct it, or remove it where there is no "
            "published number"
        )
    kept = ("table", "model", "hardware", "metric", "unit")
    return {
        "what": entry["what"],
        "reason": entry["reason"],
        "published": [
            {**{key: row[key] for key in kept}, "value": float(row["value"])} for row in rows
        ],
    }


def _spelled(value: Any) -> list[str]:
    """A value of a selection, or several, as a CSV file has them."""
    return [str(each) for each in (value if isinstance(value, list) else [value])]


# --- state of a cell -----------------------------------------------------------------------------


def folder(cell_id: str) -> Path:
    """Where a cell's files lie."""
    return RESULTS / "cells" / cell_id


def code_digest(cell: dict) -> str:
    """Digest of the code that a cell can reach."""
    return _code_digest(provenance.names_of(cell))


@functools.cache
def _code_digest(names: tuple) -> str:
    return provenance.combined(provenance.cell_code(*names))


def state(cell_id: str, result: Plan) -> tuple[str, list[str]]:
    """A cell's state in one word, and the reasons why it would run.

    ``done``: its metrics stand and nothing that they rest on changed; ``stale``: something did;
    ``missing``: no metrics yet; ``not run``: this machine cannot; ``unreadable``: a file that tells
    is damaged or another cell's.
    """
    if cell_id in result.not_run:
        return "not run", [result.not_run[cell_id]]
    cell = result.cells[cell_id]
    try:
        metrics = _metrics(cell_id)
        data = described_data(cell)
    except ParbenchError as error:
        return "unreadable", [str(error)]
    if metrics is None:
        return "missing", ["it has not been trained yet"]
    environment = metrics["environment"]
    code = provenance.code_of(cell)
    reasons = []
    for file in sorted(set(code) | set(environment["code"])):
        old, new = environment["code"].get(file), code.get(file)
        if old != new:
            what = "is new" if old is None else "is no longer used" if new is None else "changed"
            reasons.append(f"scripts/{file} {what} since it was trained")
    image = image_of(cell, result)
    if image is not None and image.label != environment["image"]:
        then, now = environment["image"], image.label
        reasons.append(f"the image {image.name} changed ({then} to {now})")
    reasons += [f"its published weights are not there ({path})" for path in _lacking_weights(cell)]
    name, then = cell["dataset"]["name"], environment["dataset_digest"]
    if data is None:
        reasons.append(f"the dataset {name} is not there ({_data_path(cell)})")
    elif data["sha256"] != then:
        reasons.append(f"the dataset {name} changed ({then[:12]} to {data['sha256'][:12]})")
    elif source_digest(name, result) not in (None, data.get("source_sha256")):
        reasons.append(f"the files in {result.datasets[name]['path']} changed (dataset {name})")
    return ("stale" if reasons else "done"), reasons


def source_digest(name: str, result: Plan) -> str | None:
    """SHA-256 of what a dataset's local folder holds; None for other sources, which are pinned."""
    spec = result.datasets[name]
    return _source_digest(name, canonical_json(spec)) if "path" in spec else None


@functools.cache
def _source_digest(name: str, spec: str) -> str | None:
    import dataset  # which needs numpy: only where there is a folder to look at

    kept = RESULTS / "plan" / "datasets" / f"{name}.source.json"
    made = RESULTS / "data" / name / "digest.json"
    if not made.is_file() and (bundled := unbundle.dataset(name, json.loads(spec))):
        made = bundled / "digest.json"
    return dataset.local_digest(json.loads(spec), kept, made)


def _metrics(cell_id: str) -> dict | None:
    """A cell's metrics.json, None without one; ParbenchError for one that is not what it must be.

    Anything may lie in a results folder: copied from elsewhere, half deleted, edited.
    """
    path = folder(cell_id) / "metrics.json"
    if not path.exists():
        return None
    metrics = measure.read_metrics(path)
    if metrics["cell"].get("id") != cell_id:
        raise ParbenchError(
            f"{path}: a run of {metrics['cell'].get('id')}; delete the file and run the cell again"
        )
    return metrics


def _data_path(cell: dict) -> Path:
    return RESULTS / "data" / cell["dataset"]["name"] / "digest.json"


def _lacking_weights(cell: dict) -> list[Path]:
    """The description of the published weights that ``cell`` starts from, where it is not there."""
    wanted = cell["model"].get("pretrained")
    paths = [RESULTS / "weights" / wanted["weights"] / pretrained.DIGEST] if wanted else []
    return [path for path in paths if not path.exists()]


def described_data(cell: dict) -> dict | None:
    """The description of the cell's converted dataset; None while it is not there."""
    path = _data_path(cell)
    if not path.exists():
        return None
    value = read_json(path)
    if not isinstance(value, dict) or not isinstance(value.get("sha256"), str):
        raise ParbenchError(f"{path}: describes no dataset; delete it and run again")
    return value


def image_of(cell: dict, result: Plan) -> images.Image | None:
    """The image that ``cell`` runs in; None on the host."""
    if cell["deployment"] == "host":
        return None
    return images.of_cell(cell, result.images["settings"])


def write(result: Plan) -> None:
    """Write cell.json of every cell and the plan of every study, each only when it changed."""
    for cell_id, cell in result.cells.items():
        if cell_id not in result.not_run:
            _write_changed(folder(cell_id) / "cell.json", cell)
    for name, content in result.studies.items():
        _write_changed(RESULTS / "plan" / f"{name}.json", content)
    _write_changed(RESULTS / "plan" / "datasets" / "specs.json", result.datasets)
    _write_changed(RESULTS / "plan" / "weights.json", result.weights)
    _write_changed(RESULTS / "plan" / "images.json", result.images)


def _write_changed(path: Path, value: dict) -> None:
    if not path.exists() or canonical_json(read_json(path)) != canonical_json(value):
        write_json(path, value)


def progress_entries(result: Plan) -> dict[str, dict]:
    """Of every cell of the plan: what it runs on (cores or GPUs), and which group's cells take as
    long as it."""
    entries = {}
    for study in result.studies.values():
        for group in study["groups"]:
            hardware = group["hardware"]
            entry = {
                "device": hardware["device"],
                "devices": hardware["devices"] * hardware["threads"] * hardware["nodes"],
                "like": group["id"],
            }
            entries.update(dict.fromkeys(group["cells"], entry))
    return entries


def write_progress(result: Plan, cells: list[str]) -> None:
    """Tell the launcher which ``cells`` this run will train, for its count and time left."""
    entries = progress_entries(result)
    chosen = {cell: entries[cell] for cell in cells}
    write_json(RESULTS / "plan" / "progress.json", {"started": time.time(), "cells": chosen})


# --- command line ---------------------------------------------------------------------------------


def _find(name: str, result: Plan) -> str:
    """The cell that ``name`` (an id or a unique part of one) means."""
    if name in result.cells:
        return name
    matches = [cell for cell in result.cells if name in cell]
    if len(matches) == 1:
        return matches[0]
    if matches:
        some = "\n  ".join(matches[:10])
        raise ParbenchError(f"{name!r} means {len(matches)} cells; say more of one:\n  {some}")
    finished = folder(name) / "metrics.json"
    hint = " (its results lie in results/cells, but no study in config.yaml asks for it)"
    raise ParbenchError(
        f"unknown cell {name!r}{hint if finished.exists() else ''}"
        f"{nearest(name, list(result.cells), listed=False)}; "
        "`python scripts/cells.py list` prints all"
    )


def _list(result: Plan) -> None:
    width = max(map(len, result.cells))
    counts: dict[str, int] = {}
    for cell_id in result.cells:
        word, reasons = state(cell_id, result)
        counts[word] = counts.get(word, 0) + 1
        shown = "" if word in ("done", "missing") else reasons[0]
        print(f"{cell_id:<{width}}  {word:<10} {shown}".rstrip())
    total = ", ".join(f"{number} {word}" for word, number in counts.items())
    print(f"\n{len(result.cells)} cells: {total}")


def _why(cell_id: str, result: Plan) -> None:
    word, reasons = state(cell_id, result)
    print(f"{cell_id}: {word}")
    if word == "done":
        print("It would not run: settings, code, image and data are those it was trained with.")
    elif word == "not run":
        print(f"It is not run here: {reasons[0]}. It runs by itself where that exists.")
    elif word == "unreadable":
        print(f"Its state cannot be told: {reasons[0]}")
        return
    else:
        print("It would run because")
        for reason in reasons:
            print(f"  - {reason}")
    if word == "missing":
        _say_nearest(cell_id, result)
    metrics = _metrics(cell_id)
    if metrics is not None:
        _say_provenance(metrics)


def _say_nearest(cell_id: str, result: Plan) -> None:
    """Name a finished cell that differs in settings only: an edit made a new cell of it."""
    cell = result.cells[cell_id]
    best: tuple[list[str], str] | None = None
    for path in sorted((RESULTS / "cells").glob("*/metrics.json")):
        try:
            other = measure.read_metrics(path)["cell"]
        except ParbenchError:
            continue  # `list` names it
        alike = ("model", "strategy")
        if other["seed"] != cell["seed"] or any(other[k]["name"] != cell[k]["name"] for k in alike):
            continue
        changed = _differences(identity(other), identity(cell))
        if changed and (best is None or len(changed) < len(best[0])):
            best = changed, other["id"]
    if best is not None:
        print(f"The nearest finished cell is {best[1]}; since then")
        for change in best[0]:
            print(f"  - {change}")


def _differences(then: Any, now: Any, key: str = "") -> list[str]:
    if isinstance(then, dict) and isinstance(now, dict):
        return [
            line
            for part in sorted(set(then) | set(now))
            for line in _differences(then.get(part), now.get(part), f"{key}.{part}".lstrip("."))
        ]
    return [] if then == now else [f"{key}: {then} became {now}"]


def _say_provenance(metrics: dict) -> None:
    environment = metrics["environment"]
    packages = ", ".join(f"{name} {version}" for name, version in environment["packages"].items())
    dirty = " with uncommitted changes" if environment["git_dirty"] else ""
    place, code = environment["machine"], environment["code_digest"][:12]
    print(f"It was run {metrics['started']} to {metrics['finished']}, status {metrics['status']}:")
    print(f"  machine     {place.get('cpu')} ({place['fingerprint']})")
    where = environment["image"] or "the host"
    print(f"  software    stack {environment['stack']} in {where}: {packages}")
    print(f"  code        commit {environment['git_commit']}{dirty}, {code}")
    print(
        f"  data        {metrics['cell']['dataset']['name']}, {environment['dataset_digest'][:12]}"
    )
    for key, value in metrics["cell"]["training"].items():
        print(f"  {key:<18} {value}")
    for key, value in metrics["cell"]["strategy"]["options"].items():
        print(f"  {key:<18} {value}")


def _command(cell_id: str, result: Plan) -> None:
    import command

    if cell_id in result.not_run:
        raise ParbenchError(f"{cell_id} is not run here: {result.not_run[cell_id]}")
    cell = result.cells[cell_id]
    _write_changed(folder(cell_id) / "cell.json", cell)
    missing = [_data_path(cell)] if described_data(cell) is None else []
    missing += _lacking_weights(cell)
    if missing:
        arguments = next(
            study["arguments"]
            for study in result.studies.values()
            if any(cell_id in group["cells"] for group in study["groups"])
        )
        make = shlex.join(["snakemake", *map(str, missing), *arguments])
        # Not among the command's own words: they are there to be piped and pasted.
        print(f"its data are not there yet; first: {make}", file=sys.stderr)
    image = image_of(cell, result)
    if image is not None and images.known(image) is None:
        make = shlex.join(["snakemake", f"results/images/{image.label}.json"])
        print(f"its image is not there yet; first: {make}", file=sys.stderr)
    print(command.shown_command(cell, **launch_paths(cell), wanted=image))


def launch_paths(cell: dict) -> dict[str, Path]:
    """The files of a cell, as scripts/launch.py takes them."""
    home = folder(cell["id"])
    return {
        "cell_path": home / "cell.json",
        "data": RESULTS / "data" / cell["dataset"]["name"],
        "out": home / "metrics.json",
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configfile", action="append", default=[], help="laid over config.yaml")
    parser.add_argument("--study", action="append", help="instead of `studies` in config.yaml")
    parser.add_argument("--slurm", action="store_true", help="of a cluster, not of this machine")
    commands = parser.add_subparsers(dest="action", required=True)
    commands.add_parser("list", help="all cells with their state")
    for name, text in (
        ("why", "why a cell would run, or what a finished one was run with"),
        ("command", "the command that trains a cell, to paste"),
    ):
        commands.add_parser(name, help=text).add_argument("cell", help="id, or a unique part of it")
    arguments = parser.parse_args()
    config = configuration.load(*arguments.configfile)
    if arguments.study:
        config["studies"] = arguments.study
    files = [ROOT / "config.yaml", *arguments.configfile]
    settled = deployment.settle(configuration.checked(config, files))
    lacking = None
    if arguments.slurm:
        import slurm  # which imports this module

        lacking = slurm.lacking(slurm.ask(), settled, list(map(Path, files)))
    result = plan(settled, arguments.configfile, lacking=lacking)
    if arguments.action == "list":
        _list(result)
        return
    cell_id = _find(arguments.cell, result)
    {"why": _why, "command": _command}[arguments.action](cell_id, result)


if __name__ == "__main__":
    run_main(main)
