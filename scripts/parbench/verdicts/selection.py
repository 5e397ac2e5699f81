"""Which configurations, measured or published, a claim of a source is about."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from parbench.plan.published import Cells, ClaimTest, Published
from parbench.verdicts.groups import Group


@dataclass(frozen=True)
class Configuration:
    """A group of cells, or a published row, by the keys that a claim's test may name."""

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

    def is_among(self, cells: Cells) -> bool:
        """Whether it has all that ``cells`` names; a strategy may be one of several."""
        wanted = cells.stated()
        options = wanted.pop("options", {})
        strategies = wanted.pop("strategy", self.strategy)
        return (
            self.strategy in ([strategies] if isinstance(strategies, str) else strategies)
            and all(self.options.get(key) == _option(value) for key, value in options.items())
            and all(str(getattr(self, key)) == str(value) for key, value in wanted.items())
        )


def _option(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


class HasModel(Protocol):
    """A ratio of one ``model``; ``place`` tells it from others of that model."""

    model: str
    place: tuple


def across_models(test: ClaimTest, ratios: Collection[HasModel]) -> list[tuple]:
    """The ratios, each alone; where the test names two models, that of one beside the other's."""
    if not test.models:
        return [(ratio,) for ratio in ratios]
    first, second = ([ratio for ratio in ratios if ratio.model == m] for m in test.models)
    return [(one, other) for one in first for other in second if one.place == other.place]
