"""Find the configurations, measured or published, that a claim of a source is about."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from parbench import strategies
from parbench.plan.published import ClaimTest, Published, Selection
from parbench.plan.study_plan import PlannedGroup


@dataclass(frozen=True)
class Configuration:
    """A group of cells or a published row, described by the keys that a claim's test may name."""

    model: str
    strategy: str
    options: Mapping[str, str]
    device: str  # cpu or gpu
    devices: int  # on each node
    nodes: int
    batch_size: int | str
    cores: int | None  # of a CPU device; None for a published row
    gpu: str
    precision: str  # empty for a published row that does not state it
    settings: Mapping[str, str]  # empty for a published row

    @classmethod
    def of_group(cls, group: PlannedGroup, gpus: Iterable[str]) -> Configuration:
        """Return the configuration of a group; ``gpus``: names of the GPUs it was measured on."""
        device = "cpu" if group.hardware.device == "cpu" else "gpu"
        implied = {
            key: option["default"]
            for key, option in _options_of(group.strategy).items()
            if option.get("implied")
        }
        options = {key: _option(value) for key, value in (implied | group.options).items()}
        hardware, cores = group.hardware, None if device == "gpu" else group.hardware.threads
        gpu, training = " ".join(gpus) if device == "gpu" else "", group.training
        layout = hardware.devices, hardware.nodes, training.global_batch
        settings = {key: _option(value) for key, value in asdict(training).items()}
        last = cores, gpu, training.precision, settings
        return cls(group.model, group.strategy, options, device, *layout, *last)

    @classmethod
    def of_row(cls, row: Published) -> Configuration:
        """Return the configuration of a published row.

        Its options are text such as "balance=[1,1], chunks=4".
        """
        parts = re.split(r"[,;](?![^\[]*\])", row.options.replace(" ", ""))
        options = {key: text for key, _, text in (part.partition("=") for part in parts)}
        device = "cpu" if row.hardware.upper() == "CPU" else "gpu"
        layout = row.devices_per_node, row.nodes
        batch_size, gpu = row.batch_size, "" if device == "cpu" else row.hardware
        settings: dict[str, str] = {}
        last = batch_size, None, gpu, row.precision, settings
        return cls(row.model, row.strategy, options, device, *layout, *last)

    def is_among(self, cells: Selection) -> bool:
        """Return whether it matches every key of ``cells``, and any one of several strategies."""
        stated = cells.stated()
        options, settings = stated.pop("options", {}), stated.pop("settings", {})
        strategies = stated.pop("strategy", self.strategy)
        gpu = stated.pop("gpu", None)
        return (
            self.strategy in ([strategies] if isinstance(strategies, str) else strategies)
            and (gpu is None or is_gpu_model(self.gpu, gpu))
            and all(self.options.get(key) == _option(value) for key, value in options.items())
            and all(self.settings.get(key) == _option(value) for key, value in settings.items())
            and all(str(getattr(self, key)) == str(value) for key, value in stated.items())
        )

    def is_side(self, side: Selection, test: ClaimTest) -> bool:
        """Return whether it is among the cells of one ``side`` of ``test``."""
        return self.is_among(side) and (test.about is None or self.is_among(test.about))


def is_gpu_model(name: str, gpu_model: str) -> bool:
    """Return whether a GPU's ``name`` has ``gpu_model`` as a word of its own: an A1000 is not an
    A100."""
    name, gpu_model = (re.sub(r"[\W_]", " ", f" {text.lower()} ") for text in (name, gpu_model))
    return gpu_model in name


def _options_of(strategy: str) -> Mapping[str, Any]:
    """Return the options of a strategy; none if it exists only in another checkout's evidence."""
    return strategies.load(strategy).OPTIONS if strategy in strategies.names() else {}


def _option(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def contrasted(test: ClaimTest, ratios: Collection[Any]) -> list[tuple[Any, ...]]:
    """Return 1-tuples of ``ratios`` or, if the test contrasts two selections, 2-tuples (one ratio
    from each selection) that agree in everything that the selections do not name.

    Each ratio has ``configurations``: those of its sides.
    """
    if not test.contrast:
        return [(ratio,) for ratio in ratios]
    first, second = (
        [ratio for ratio in ratios if all(each.is_among(cells) for each in ratio.configurations)]
        for cells in test.contrast
    )
    named = {key for cells in test.contrast for key in cells.model_fields_set}
    named |= {"gpu", "cores"} if "device" in named else set()
    named_options = {key for cells in test.contrast for key in cells.options or {}}

    def rest(each: Configuration) -> dict[str, Any]:
        fields = {key: value for key, value in asdict(each).items() if key not in named}
        # Options of different strategies cannot be compared.
        options = each.options.items() if "strategy" not in named else ()
        fields["options"] = {key: value for key, value in options if key not in named_options}
        del fields["settings"]  # those of two models may differ
        return fields

    def alike(one: Configuration, other: Configuration) -> bool:
        fields, others = rest(one), rest(other)
        if not (one.gpu and other.gpu):  # unknown for what was not run
            fields["gpu"] = others["gpu"] = ""
        return fields == others

    def agree(one: Any, other: Any) -> bool:
        return all(map(alike, one.configurations, other.configurations))

    return [(one, other) for one in first for other in second if agree(one, other)]
