"""What a claim of a source asks for: selections of configurations, measured or published."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from parbench.verdicts.groups import Group
from parbench.verdicts.published import Published


@dataclass(frozen=True)
class Configuration:
    """A group of cells, or a published row, by the keys that a selection may name."""

    model: str
    strategy: str
    options: Mapping[str, str]
    device: str  # cpu or gpu
    devices: int  # on each node
    nodes: int
    batch_size: int | str

    @classmethod
    def of_group(cls, group: Group) -> Configuration:
        """Of cells."""
        device = "cpu" if group.hardware.device == "cpu" else "gpu"
        options = {key: _option(value) for key, value in group.options.items()}
        layout = group.hardware.devices, group.hardware.nodes
        return cls(group.model, group.strategy, options, device, *layout, group.batch)

    @classmethod
    def of_row(cls, row: Published) -> Configuration:
        """Of a published value, whose options are a text like "balance=[1,1], chunks=4"."""
        parts = re.split(r"[,;](?![^\[]*\])", row.options.replace(" ", ""))
        options = {key: text for key, _, text in (part.partition("=") for part in parts)}
        device = "cpu" if row.hardware.upper() == "CPU" else "gpu"
        layout = row.devices_per_node, row.nodes
        return cls(row.model, row.strategy, options, device, *layout, row.batch_size)


def _option(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


@dataclass(frozen=True)
class Selection:
    """The configurations with all that ``wanted`` says; a strategy may be one of several."""

    wanted: Mapping[str, Any]

    @property
    def options(self) -> Mapping[str, Any]:
        """The options that are wanted."""
        return self.wanted.get("options", {})

    def fits(self, one: Configuration) -> bool:
        """Whether ``one`` is among them."""
        strategies = self.wanted.get("strategy", one.strategy)
        keys = ("model", "device", "devices", "nodes", "batch_size")
        return (
            one.strategy in ([strategies] if isinstance(strategies, str) else strategies)
            and all(one.options.get(key) == _option(value) for key, value in self.options.items())
            and all(str(self.wanted.get(k, getattr(one, k))) == str(getattr(one, k)) for k in keys)
        )

    def __str__(self) -> str:
        """``strategy gpipe, checkpoint always``."""
        wanted = {**self.wanted, **self.options}
        return ", ".join(f"{key} {value}" for key, value in wanted.items() if key != "options")


@dataclass(frozen=True)
class Test:
    """A metric of one selection over that of another, or what stands in its place (``op``)."""

    metric: str
    op: str
    value: float | str | None
    numerator: Selection
    denominator: Selection
    models: tuple[str, ...]  # two whose ratios are compared, or none
    against: str | None  # the metric that it equals

    @classmethod
    def of(cls, test: Mapping[str, Any]) -> Test:
        """Of a claim of claims.yaml."""
        sides = (Selection(test.get(side, {})) for side in ("numerator", "denominator"))
        models = tuple(test.get("models", ()))
        return cls(
            test["metric"], test["op"], test.get("value"), *sides, models, test.get("against")
        )

    @property
    def sides(self) -> tuple[Selection, Selection]:
        """What is compared with what."""
        return self.numerator, self.denominator

    @property
    def named(self) -> set[str]:
        """The keys that either side names: in these the two may differ."""
        return {key for side in self.sides for key in side.wanted}

    @property
    def named_options(self) -> set[str]:
        """The options that either side names."""
        return {key for side in self.sides for key in side.options}

    @property
    def is_of_layouts(self) -> bool:
        """Whether the two may differ in how they are trained."""
        return bool(self.named & {"strategy", "devices", "nodes", "options"})


@dataclass(frozen=True)
class Claim:
    """What a source claims in words (studies/published/claims.yaml)."""

    name: str
    study: str
    text: str
    test: Test | None
    published: Any  # the ratio, or ratios by model, batch or strategy
    finding: str | None  # the check of the audit that denies it
    note: str | None

    @classmethod
    def of(cls, name: str, claim: Mapping[str, Any]) -> Claim:
        """Of claims.yaml, as config.claims reads it."""
        test = Test.of(claim["test"]) if "test" in claim else None
        rest = (claim.get(key) for key in ("published", "finding", "note"))
        return cls(name, claim["study"], claim["claim"], test, *rest)

    @classmethod
    def all_of(cls, claims: Mapping[str, Mapping[str, Any]]) -> list[Claim]:
        """All of claims.yaml."""
        return [cls.of(name, claim) for name, claim in claims.items()]


class HasModel(Protocol):
    """A ratio of one ``model``; ``place`` tells it from others of that model."""

    model: str
    place: tuple


def across_models(test: Test, ratios: Collection[HasModel]) -> list[tuple]:
    """The ratios, each alone; where the test names two models, that of one beside the other's."""
    if not test.models:
        return [(ratio,) for ratio in ratios]
    first, second = ([ratio for ratio in ratios if ratio.model == m] for m in test.models)
    return [(one, other) for one in first for other in second if one.place == other.place]
