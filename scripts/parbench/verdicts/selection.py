"""Find the configurations, measured or published, that a claim of a source is about."""

from __future__ import annotations

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from parbench import strategies
from parbench.measure.metrics import METRICS
from parbench.plan.published import ClaimTest, Published, Selection
from parbench.verdicts.groups import Group
from parbench.verdicts.published import names_model


@dataclass(frozen=True)
class Configuration:
    """A group of cells, or a published row, in the keys that a claim's test may name."""

    model: str
    strategy: str
    options: Mapping[str, str]
    device: str  # cpu or gpu
    devices: int  # on each node
    nodes: int
    batch_size: int | str
    cores: int | None  # of a CPU device; a published row does not say
    gpu: str
    precision: str  # empty for a published row that does not say

    @classmethod
    def of_group(cls, group: Group) -> Configuration:
        """Return the configuration of a group."""
        device = "cpu" if group.hardware.device == "cpu" else "gpu"
        implied = {
            key: option["default"]
            for key, option in _options_of(group.strategy).items()
            if option.get("implied")
        }
        options = {key: _option(value) for key, value in (implied | group.options).items()}
        hardware, cores = group.hardware, None if device == "gpu" else group.hardware.threads
        gpu = " ".join(group.accelerators()) if device == "gpu" else ""
        layout = hardware.devices, hardware.nodes, group.batch
        precision = group.training.precision
        return cls(group.model, group.strategy, options, device, *layout, cores, gpu, precision)

    @classmethod
    def of_row(cls, row: Published) -> Configuration:
        """Return that of a published row, whose options are text like "balance=[1,1], chunks=4"."""
        parts = re.split(r"[,;](?![^\[]*\])", row.options.replace(" ", ""))
        options = {key: text for key, _, text in (part.partition("=") for part in parts)}
        device = "cpu" if row.hardware.upper() == "CPU" else "gpu"
        layout = row.devices_per_node, row.nodes
        batch_size, gpu = row.batch_size, "" if device == "cpu" else row.hardware
        last = batch_size, None, gpu, row.precision
        return cls(row.model, row.strategy, options, device, *layout, *last)

    def is_among(self, cells: Selection) -> bool:
        """Return whether it has all that ``cells`` states; of several strategies, one is enough."""
        stated = cells.stated()
        options = stated.pop("options", {})
        strategies = stated.pop("strategy", self.strategy)
        gpu = stated.pop("gpu", None)
        return (
            self.strategy in ([strategies] if isinstance(strategies, str) else strategies)
            and (gpu is None or names_model(self.gpu, gpu))
            and all(self.options.get(key) == _option(value) for key, value in options.items())
            and all(str(getattr(self, key)) == str(value) for key, value in stated.items())
        )


def _options_of(strategy: str) -> Mapping[str, Any]:
    """Return the options of a strategy; none of one that only another's evidence knows."""
    return strategies.load(strategy).OPTIONS if strategy in strategies.names() else {}


def _option(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def contrasted(test: ClaimTest, ratios: Collection) -> list[tuple]:
    """Return each ratio alone or, if the test contrasts two selections, one of each: those that
    agree in everything that these do not name. Each has ``configurations``, those of its sides."""
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
        # One strategy's options mean nothing to another.
        options = {} if "strategy" in named else each.options
        fields["options"] = {k: value for k, value in options.items() if k not in named_options}
        return fields

    def rests(ratio: Any) -> list[dict]:
        return list(map(rest, ratio.configurations))

    return [(one, other) for one in first for other in second if rests(one) == rests(other)]


# ---------------------------------------------------------------- what is compared with what


def measuring(
    groups: Iterable[Group],
    name: str,
    about: Selection | None = None,
    *,
    instrumented: bool = False,
) -> list[Group]:
    """Return the groups, of one model or of several together, that the metric ``name`` applies to.

    Leaves out groups that are not ``about`` what is stated, instrumented groups, which run slower
    and apart, unless these alone measure it and, for scores, groups that do only a few steps of an
    epoch, which have none. If METRICS lacks ``name``, it applies to all others.
    """
    metric = METRICS.get(name)
    kept = [
        group
        for group in groups
        if (instrumented or group.training.profile == "none")
        and (about is None or Configuration.of_group(group).is_among(about))
    ]
    if metric is not None:
        kept = [group for group in kept if group.measures(metric)]
        if metric.is_score:
            kept = [group for group in kept if group.training.steps is None]
    return kept


def lacks(test: ClaimTest, groups: Collection[Group]) -> str:
    """Return why a test compares none of ``groups``, which measure its metric."""
    if not groups:
        return f"no cell that measures {test.metric}"
    about = f", {test.about}" if test.about else ""
    for side in test.sides:
        if not any(_is_side(group, side, test) for group in groups):
            return f"no cell with {side}{about}"
    return "no two cells that differ in this alone"


def _is_side(group: Group, side: Selection, test: ClaimTest) -> bool:
    own = Configuration.of_group(group)
    return own.is_among(side) and (test.about is None or own.is_among(test.about))


def pairs(test: ClaimTest, groups: Collection[Group]) -> Iterator[tuple[Group, Group]]:
    """Yield the pairs of groups that a test compares, models and variants in the study's order.

    Of several with the same models and batches, only those with the most groups that have published
    rows count: the source's own configuration, not the variants beside it. Where that was not run,
    no other stands in for it.
    """
    alike = defaultdict(list)
    sides = ([group for group in groups if _is_side(group, side, test)] for side in test.sides)
    for over, under in itertools.product(*sides):
        if over is not under and _alike(over, under, test):
            alike[over.model, over.batch, under.model, under.batch].append((over, under))
    for rivals in alike.values():
        row_counts = [sum(group.published is not None for group in pair) for pair in rivals]
        most = max(row_counts)
        yield from (pair for pair, count in zip(rivals, row_counts, strict=True) if count == most)


def _alike(over: Group, under: Group, test: ClaimTest) -> bool:
    """Return whether two groups agree in everything that the test does not name."""
    ours, theirs = (_unnamed(group, test) for group in (over, under))
    if over.strategy != under.strategy:
        # More devices need another strategy; and one strategy's options mean nothing to another.
        if not test.named & {"strategy", "devices", "nodes"}:
            return False
        del ours["options"], theirs["options"]
    return ours == theirs


def _unnamed(group: Group, test: ClaimTest) -> dict[str, Any]:
    """Return everything about a group, except its strategy, that the test does not name."""
    hardware, training = asdict(group.hardware), asdict(group.training)
    del hardware["name"]
    del training["min_tail"]  # follows the batch
    if "batch_size" in test.named:
        del training["global_batch"]
    if test.named & {"device", "gpu"}:
        del hardware["gpu_model"]
    if "device" in test.named:
        del hardware["device"]
    if test.named & {"device", "cores"}:
        del hardware["threads"]
    if test.is_of_layouts:
        del hardware["devices"], hardware["nodes"]
    options = {key: v for key, v in group.options.items() if key not in test.named_options}
    model = None if "model" in test.named else group.model
    about = {"options": options, "dataset": group.dataset, "model": model}
    return about | {"training": training, "hardware": hardware}
