"""Variants of a study that differ in few values: `sweep`, expanded before the study is checked."""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Iterator
from string import Template
from typing import Annotated, Any

from pydantic import Field, model_validator

from parbench.errors import ParbenchError
from parbench.plan.model import Model, validated, wrong

Values = dict[Annotated[str, Field(pattern="^[a-z_]+$")], Annotated[list[Any], Field(min_length=1)]]


class Sweep(Model):
    """Variants made of one template."""

    name: str = Field(description="template of their names, such as ddp-$devices-$batch")
    variant: dict[str, Any] = Field(
        description="template of a variant: $key in a text stands for the key's value, and a text "
        "that is $key alone becomes the value itself"
    )
    matrix: Values | None = Field(
        None, description="values by key; every combination of them makes a variant"
    )
    zip: Values | None = Field(
        None,
        description="values by key, as many of each; the first ones make a variant, and so on",
    )
    compared: bool = Field(
        False, description="true: each takes turns with its baseline, as an entry of `pairs`"
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> Sweep:
        if (self.matrix is None) == (self.zip is None):
            raise wrong([], "needs either `matrix` or `zip`")
        counts = {key: len(values) for key, values in (self.zip or {}).items()}
        if len(set(counts.values())) > 1:
            found = ", ".join(f"{key} {count}" for key, count in counts.items())
            raise wrong(["zip"], f"needs as many values of each key, and has {found}")
        return self

    def combinations(self) -> Iterator[dict[str, Any]]:
        """Yield the values of each variant, by key."""
        values = self.zip or self.matrix or {}
        combine = zip if self.zip else itertools.product
        for row in combine(*values.values()):
            yield dict(zip(values, row, strict=True))


def expanded(study: Any, where: str) -> Any:
    """Return ``study``, the content of a file, with the variants and pairs of its `sweep`, and with
    the variants that patterns such as ddp-* in its tables stand for.

    Raises ParbenchError, which begins with ``where``, for a bad sweep; all else is checked later.
    """
    if not isinstance(study, dict) or not isinstance(study.get("variants", {}), dict):
        return study
    sweeps = study.get("sweep", [])
    variants, compare = dict(study.get("variants", {})), []
    for number, content in enumerate(sweeps if isinstance(sweeps, list) else []):
        place = f"{where}: sweep.{number}"
        sweep = validated(Sweep, content, place)
        for values in sweep.combinations():
            name = str(_filled(sweep.name, values, f"{place}.name"))
            if name in variants:
                raise ParbenchError(
                    f"{place}.name: duplicate variant {name!r}; name every key that varies in it"
                )
            variants[name] = _filled(sweep.variant, values, f"{place}.variant")
            if sweep.compared:
                compare.append({"variant": name, "baseline": variants[name].get("baseline")})
    changes: dict[str, Any] = {"variants": variants} if sweeps else {}
    if compare:
        pairs = study.get("pairs") or {}
        changes["pairs"] = {**pairs, "compare": [*pairs.get("compare", []), *compare]}
    if isinstance(tables := study.get("tables"), list):
        changes["tables"] = [_matched(table, list(variants)) for table in tables]
    return study | changes


def _filled(template: Any, values: dict[str, Any], where: str) -> Any:
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
            f"{where}: {template!r} names none of the keys that vary, {', '.join(values)}; write "
            "$key, and $$ for a $"
        ) from None


def _matched(table: Any, variants: list[str]) -> Any:
    """Return a table with the names of ``variants`` for patterns that match some."""
    if not isinstance(table, dict) or not isinstance(table.get("variants"), list):
        return table
    names = []
    for entry in table["variants"]:
        is_pattern = isinstance(entry, str) and "*" in entry
        names += (is_pattern and fnmatch.filter(variants, entry)) or [entry]
    return table | {"variants": names}
