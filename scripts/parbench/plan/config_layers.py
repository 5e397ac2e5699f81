"""Keep the files and options that state one configuration, in order, for messages to name them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

from parbench.plan.yaml_file import Key, Keys, Yaml, YamlMapping


@dataclass(frozen=True)
class ConfigLayer:
    """What one file states, or one option of a command line, whose ``file`` is None."""

    name: str  # as in messages
    content: YamlMapping
    file: str | Path | None = None

    def sets(self, keys: Sequence[Key]) -> bool:
        """Return whether the keys and indices ``keys`` lead to a value, which may be null."""
        try:
            value_at(self.content, keys)
        except (LookupError, ValueError):
            return False
        return bool(keys)


@dataclass(frozen=True)
class ConfigLayers:
    """What states a configuration: config.yaml, then what overrides it, the last with priority."""

    layers: tuple[ConfigLayer, ...]

    @property
    def overlays(self) -> tuple[ConfigLayer, ...]:
        """Return the layers that override config.yaml."""
        return self.layers[1:]

    def merged(self) -> YamlMapping:
        """Return the configuration, not validated."""
        return reduce(merged, (layer.content for layer in self.layers))

    def last_that_sets(self, keys: Sequence[Key]) -> ConfigLayer:
        """Return the last layer that sets the value at ``keys``; config.yaml if none does."""
        return next((layer for layer in reversed(self.layers) if layer.sets(keys)), self.layers[0])

    def order(self, layer: ConfigLayer) -> int:
        """Return the place of ``layer`` among these, 0 for config.yaml."""
        return self.layers.index(layer)

    def overrides(self) -> list[list[Keys]]:
        """Return the paths of all values that override config.yaml or a study; then, level by
        level, those of the mappings that contain them."""
        stated = dict.fromkeys(path for layer in self.layers for path in _paths(layer.content))
        base = self.layers[0]
        single = [
            path
            for path in stated
            if path[0] == "override"
            or (base.sets(path) and any(layer.sets(path) for layer in self.overlays))
        ]
        sizes = range(max(map(len, single), default=0) - 1, 1, -1)
        above = [
            list(dict.fromkeys(path[:size] for path in single if len(path) > size))
            for size in sizes
        ]
        return [single, *above]

    def without(self, keys: Keys) -> ConfigLayers:
        """Return these layers without what overrides the value at ``keys``."""
        first = 0 if keys[0] == "override" else 1
        rest = (
            replace(layer, content=_without(layer.content, keys)) if layer.sets(keys) else layer
            for layer in self.layers[first:]
        )
        return ConfigLayers((*self.layers[:first], *rest))


def merged(base: YamlMapping, change: YamlMapping) -> YamlMapping:
    """Return ``base`` overridden by ``change``; mappings are merged key by key."""
    result = dict(base)
    for key, value in change.items():
        under = base.get(key)
        if isinstance(value, dict) and isinstance(under, dict):
            value = merged(under, value)
        result[key] = value
    return result


def value_at(value: Yaml, keys: Sequence[Key]) -> Yaml:
    """Return the value that the keys and indices ``keys`` lead to; raise LookupError if none is."""
    for key in keys:
        if isinstance(value, dict):
            value = value[str(key)]
        elif isinstance(value, list):
            value = value[int(key)]
        else:
            raise KeyError(key)
    return value


def _paths(content: YamlMapping, above: Keys = ()) -> Iterator[Keys]:
    """Yield the keys of each value, such as hardware.cpu2.devices, override.<study>.settings.lr."""
    for key, value in content.items():
        path = (*above, key)
        depth = 4 if path[0] == "override" else 3
        if isinstance(value, dict) and len(path) < depth:
            yield from _paths(value, path)
        else:
            yield path


def _without(content: YamlMapping, keys: Keys) -> YamlMapping:
    """Return ``content`` without the value at ``keys``, which it has."""
    key, *below = keys
    value = content[str(key)]
    rest = {other: kept for other, kept in content.items() if other != key}
    if below and isinstance(value, dict):
        rest[str(key)] = _without(value, tuple(below))
    return rest
