"""Expand `sweep`, variants of a study that differ in few values, before the study is checked."""

from __future__ import annotations

import fnmatch
import re
from string import Template

from parbench.errors import ParbenchError
from parbench.plan.strict_model import NAME, validated
from parbench.plan.study import Sweep, Variant
from parbench.plan.yaml_file import Yaml, YamlMapping
from parbench.words import nearest

OTHERS = ("baseline", "trained_by")  # keys of a variant that name another one


def expanded(study: YamlMapping, where: str) -> YamlMapping:
    """Return ``study``, the content of a file, with its `sweep` and its tables expanded.

    A sweep becomes variants and pairs; in tables, patterns such as ddp-* become the variants that
    they match. Raises ParbenchError, which begins with ``where``, for an invalid sweep; everything
    else is checked later.
    """
    if not isinstance(stated := study.get("variants", {}), dict):
        return study
    variants = dict(stated)
    compare: list[Yaml] = []
    places: dict[str, str] = {}
    sweeps = study.get("sweep", [])
    for number, entry in enumerate(sweeps if isinstance(sweeps, list) else ()):
        place = f"{where}: sweep.{number}"
        sweep = validated(Sweep, entry, place)
        for values in sweep.combinations():
            name = _name(sweep.name, values, f"{place}.name")
            if name in variants:
                raise ParbenchError(
                    f"{place}.name: duplicate variant {name!r}; name every key that varies in it, "
                    "with values that differ in letters or digits"
                )
            variants[name] = variant = _variant(sweep, values, place)
            places[name] = place
            if sweep.compared:
                compare.append({"variant": name, "baseline": variant["baseline"]})
    for name, place in places.items():
        _check_others(name, variants, place)
    changes: YamlMapping = {"variants": variants} if sweeps else {}
    pairs = study.get("pairs") or {}
    if compare and isinstance(pairs, dict):
        stated_ones = pairs.get("compare", [])
        if isinstance(stated_ones, list):
            changes["pairs"] = {**pairs, "compare": [*stated_ones, *compare]}
    if isinstance(tables := study.get("tables"), list):
        changes["tables"] = [_matched(table, list(variants)) for table in tables]
    return study | changes


def _variant(sweep: Sweep, values: YamlMapping, place: str) -> YamlMapping:
    """Return the variant of ``sweep`` with these ``values``."""
    made: YamlMapping = {
        key: _filled(each, values, f"{place}.variant.{key}") for key, each in sweep.variant.items()
    }
    made |= {
        key: _name(sweep.variant[key], values, f"{place}.variant.{key}")
        for key in OTHERS
        if isinstance(sweep.variant.get(key), str)
    }
    validated(Variant, made, f"{place}.variant")
    if sweep.compared and made.get("baseline") is None:
        raise ParbenchError(
            f"{place}.variant: `compared: true` has each variant take turns with its baseline, and "
            "it has none; add the key `baseline`, the name of a variant"
        )
    return made


def _check_others(name: str, variants: YamlMapping, place: str) -> None:
    """Raise ParbenchError if the variant ``name`` of a sweep refers to an unknown variant."""
    variant = variants[name]
    assert isinstance(variant, dict)
    for key in OTHERS:
        other = variant.get(key)
        if isinstance(other, str) and other not in variants:
            raise ParbenchError(
                f"{place}.variant.{key}: unknown variant {other!r}, for {name}"
                f"{nearest(other, variants)}"
            )


def _name(template: str, values: YamlMapping, where: str) -> str:
    """Return the name of a variant; characters that names cannot have become _: 0_1 for 0.1."""
    words: YamlMapping = {
        key: re.sub(r"[^a-z0-9_]+", "-", str(value).lower().replace(".", "_")).strip("-")
        for key, value in values.items()
    }
    name = str(_filled(template, words, where))
    if not re.fullmatch(NAME, name):
        raise ParbenchError(
            f"{where}: {name!r} is not a valid variant name; use lowercase letters, digits, "
            "hyphens and underscores, at most 64 of them"
        )
    return name


def _filled(template: Yaml, values: YamlMapping, where: str) -> Yaml:
    if isinstance(template, dict):
        return {key: _filled(each, values, f"{where}.{key}") for key, each in template.items()}
    if isinstance(template, list):
        return [_filled(each, values, where) for each in template]
    if not isinstance(template, str):
        return template
    if template[:1] == "$" and template[1:] in values:
        return values[template[1:]]
    try:
        return Template(template).substitute(values)
    except (KeyError, ValueError):
        raise ParbenchError(
            f"{where}: {template!r} contains none of the keys that vary, {', '.join(values)}; "
            "write $key, and $$ for a $"
        ) from None


def _matched(table: Yaml, variants: list[str]) -> Yaml:
    """Return a table whose patterns are replaced by the names of ``variants`` that they match."""
    if not isinstance(table, dict):
        return table
    if not isinstance(stated := table.get("variants"), list):
        return table
    names: list[Yaml] = []
    for entry in stated:
        matches = fnmatch.filter(variants, entry) if isinstance(entry, str) and "*" in entry else []
        names += matches or [entry]
    return {**table, "variants": names}
