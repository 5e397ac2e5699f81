"""Decide whether a measurement is still valid: its settings, code, software, data and weights.

All callers compare the same two records by the same rule: Snakemake (a parameter and the inputs of
rule `train`), the plan's state of a cell, the launcher that finds a finished result, and a training
process that finds a checkpoint. docs/reruns.md lists what changes them.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypedDict

from parbench import cell as cells
from parbench import packages, probe
from parbench.cell import Cell, CellJson, Pair, PairJson, SideJson
from parbench.data import pretrained, saved_weights
from parbench.files import digest, read_record
from parbench.measure import provenance

Names = tuple[provenance.Names, ...]  # of each side
Labels = tuple[str | None, ...]  # of each side's image, None on the host
SETTINGS = ("strategy", "dataset", "training", "deployment")


class MeasuredIn(TypedDict):
    """The part of `environment` of metrics.json that an identity has."""

    code: dict[str, str]
    image: str | None
    python: str
    packages: dict[str, str]
    dataset_digest: str


class IdentityJson(TypedDict):
    """An identity, as a checkpoint has it."""

    cell: CellJson | PairJson
    code: Mapping[str, str]
    software: Mapping[str, str]
    data: Mapping[str, str | None]
    weights: Mapping[str, str | None]


@dataclass(frozen=True)
class Identity:
    """What a measurement of a cell rests on.

    ``cell``: the cell, of which ``settings_of`` and the seed are compared. The other fields are
    digests or versions by name. ``code``: of modules; ``software``: of Python and packages, or the
    labels of images; ``data``: of the converted dataset; ``weights``: of those that it starts from,
    by the name of published ones or by the cell that trains them. None means that the file does not
    exist, which does not count as a change, as in Snakemake.
    """

    cell: Cell | Pair
    code: Mapping[str, str]
    software: Mapping[str, str]
    data: Mapping[str, str | None]
    weights: Mapping[str, str | None]

    @classmethod
    def of(cls, content: IdentityJson) -> Identity:
        """Return the identity that ``json`` described."""
        return cls(
            cells.of(content["cell"]),
            content["code"],
            content["software"],
            content["data"],
            content["weights"],
        )

    def json(self) -> IdentityJson:
        """Return a JSON object with all of it."""
        return {
            "cell": self.cell.json(),
            "code": self.code,
            "software": self.software,
            "data": self.data,
            "weights": self.weights,
        }

    def changes_since(self, then: Identity) -> list[str]:
        """Return what changed since the measurement of ``then``, in words; empty if it is valid."""
        return [
            *_changed_settings(then.cell, self.cell),
            *_changed_code(then.code, self.code),
            *_changed_software(then.software, self.software),
            *_changed_data(then.data, self.data),
            *changed_weights(then.weights, self.weights),
        ]


# ---------------------------------------------------------------- of a cell as it is now


def current(cell: Cell | Pair, images: Sequence[str | None], data: Path) -> Identity:
    """Return the identity that a measurement of ``cell`` would have.

    ``images``: label of each side's image, None on the host; ``data``: folder of its dataset,
    results/data/<name>. Raises ParbenchError if a file there is damaged.
    """
    description = data / "digest.json"
    sha256 = read_record(description, "sha256")["sha256"] if description.exists() else None
    return Identity(
        cell=cell,
        code=code_of(cell),
        software=software_of(cell, images),
        data={cell.dataset.name: sha256},
        weights=weights_of(cell, data),
    )


def planned(cell: Cell | Pair, images: Sequence[str | None]) -> str:
    """Return a digest of the code and software of ``cell``, which are known before its data exist.

    The settings are part of the cell's id, and Snakemake compares data and weights by their files.
    """
    return _planned(_names(cell), tuple(images), cell.deployment)


def _names(cell: Cell | Pair) -> Names:
    """Return what determines the code of ``cell``; thousands of cells share a few cache keys."""
    return tuple(map(provenance.names_of, cell.sides))


@functools.cache
def _planned(names: Names, images: Labels, deployment: str) -> str:
    return digest([_code(names), _software(names, images, deployment)])


def code_of(cell: Cell | Pair) -> Mapping[str, str]:
    """Return digests of the modules that ``cell`` can reach, without comments and docstrings."""
    return _code(_names(cell))


_code = functools.cache(provenance.code_named)


def software_of(cell: Cell | Pair, images: Sequence[str | None]) -> dict[str, str]:
    """Return the versions of the software that ``cell`` can reach where it would run.

    An image is represented by its label, which has a digest of all that it is built from. The
    user's own Python is part of the settings: the cell's deployment has a digest of all packages.
    """
    return _software(_names(cell), tuple(images), cell.deployment)


@functools.cache
def _software(names: Names, images: Labels, deployment: str) -> dict[str, str]:
    if labels := list(filter(None, images)):
        return _by_image(labels)
    if deployment.startswith(probe.LABEL):
        return {}
    return reached(_code(names))


def reached(modules: Iterable[str]) -> dict[str, str]:
    """Return the versions of this Python, and of its packages that ``modules`` of parbench use."""
    return _of_versions(packages_of(modules), installed_versions())


@functools.cache
def installed_versions() -> dict[str, str]:
    """Return the versions of this Python and of its packages that can change a measurement."""
    return {"Python": platform.python_version(), **packages.installed()}


def packages_of(modules: Iterable[str]) -> list[str]:
    """Return the names in packages.PACKAGES that ``modules`` import, and torch's dependencies."""
    return packages.used({name for each in modules for name in provenance.packages_of(each)})


@functools.cache
def _packages(names: Names) -> list[str]:
    return packages_of(_code(names))


def _of_versions(names: Iterable[str], versions: Mapping[str, str]) -> dict[str, str]:
    return {name: versions[name] for name in ("Python", *names) if name in versions}


def _by_image(labels: Iterable[str]) -> dict[str, str]:
    return {f"the image {label.partition('-')[0]}": label for label in labels}


def weights_of(cell: Cell | Pair, data: Path) -> dict[str, str | None]:
    """Return the digests of the files with the weights that ``cell`` starts from.

    ``data``: as for ``current``; weights and cells are beside the folder of all datasets.
    """
    results, found = data.parent.parent, {}
    for side in cell.sides:
        if side.model.pretrained is not None:
            name = side.model.pretrained.weights
            path = results / "weights" / name / pretrained.DIGEST
            record = read_record(path, "source_sha256", "conversion") if path.exists() else None
            found[name] = record and _published(record["source_sha256"], record["conversion"])
        if side.trained_by is not None:
            path = results / "cells" / side.trained_by / saved_weights.DIGEST
            record = read_record(path, "sha256") if path.exists() else None
            found[side.trained_by] = record and record["sha256"]
    return found


def _published(sha256: str, conversion: int) -> str:
    return f"{sha256}.{conversion}"


# ---------------------------------------------------------------- of a measurement


def recorded(
    cell: Cell | Pair, environments: Sequence[MeasuredIn], weights: str | None = None
) -> Identity:
    """Return the identity of a measurement of ``cell``.

    ``environments``: `environment` of its metrics.json, one for each side; ``weights``: the digest
    of the weights that it ended with (a cell that only predicts has its trainer's), or None.
    """
    code = {name: value for each in environments for name, value in each["code"].items()}
    labels = [each["image"] for each in environments if each["image"] is not None]
    software = _by_image(labels)
    if not labels and not cell.deployment.startswith(probe.LABEL):
        used = _packages(_names(cell))
        for each in environments:
            software |= _of_versions(used, {"Python": each["python"], **each["packages"]})
    starts: dict[str, str | None] = {}
    for side in cell.sides:
        if side.model.pretrained is not None:
            published = side.model.pretrained
            starts[published.weights] = _published(published.sha256, published.conversion)
        if side.trained_by is not None and weights is not None:
            starts[side.trained_by] = weights
    return Identity(
        cell=cell,
        code=code,
        software=software,
        data={cell.dataset.name: environments[0]["dataset_digest"]},
        weights=starts,
    )


# ---------------------------------------------------------------- settings


def settings_of(cell: CellJson | PairJson) -> dict[str, object]:
    """Return the part of a cell.json that determines its measurement.

    That is all but names, seed and `run`. The cell's id has its seed and a digest of this part.
    """
    if "sides" in cell:
        sides = {f"side {n}": _settings_of_side(side) for n, side in enumerate(cell["sides"], 1)}
        return {**sides, "variants": cell["variants"], "inference": cell["inference"]}
    return _settings_of_side(cell)


def _settings_of_side(cell: SideJson) -> dict[str, object]:
    hardware = {key: value for key, value in cell["hardware"].items() if key != "name"}
    model = {**cell["model"]}
    if start := cell["model"].get("pretrained"):
        model["pretrained"] = {key: start[key] for key in start if key != "weights"}
    keys = SETTINGS
    # The deployment of the user's own Python has a digest of its packages; `stack` is its path.
    keys += ("stack",) * (not cell["deployment"].startswith(probe.LABEL))
    keys += ("trained_by",) * ("trained_by" in cell)
    stated: Mapping[str, object] = cell
    return {**{key: stated[key] for key in keys}, "model": model, "hardware": hardware}


# ---------------------------------------------------------------- changes, in words


def _changed_settings(then: Cell | Pair, now: Cell | Pair) -> Iterator[str]:
    sides = tuple(replace(side, run=then.run) for side in now.sides)
    pairs = [(each.variants, each.inference) for each in (then, now) if isinstance(each, Pair)]
    if then.sides == sides and pairs[:1] == pairs[1:]:  # a shortcut: thousands of cells are equal
        return
    if then.seed != now.seed:
        yield f"seed changed from {then.seed} to {now.seed}"
    yield from differences(settings_of(then.json()), settings_of(now.json()))


def differences(then: object, now: object, key: str = "") -> Iterator[str]:
    """Yield which settings differ between two JSON values; ``key``: dotted path, or empty."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for part in sorted({*then, *now}):
            yield from differences(then.get(part), now.get(part), f"{key}.{part}".lstrip("."))
    elif _listed(then) != _listed(now):
        yield f"{key} changed from {then} to {now}"


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value  # JSON has no tuples


def _changed_code(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    if any(name.endswith(".py") for name in then):  # old digests were of files
        yield (
            "it was trained by an older version of parbench, whose modules have other names; every "
            "such cell is trained again once"
        )
        return
    for module in sorted({*then, *now}):
        old, new = then.get(module), now.get(module)
        if old != new:
            if old is None:
                yield f"it also uses {module} now"
            elif new is None:
                yield f"it no longer uses {module}"
            else:
                yield f"{module} changed since it was trained"


def _changed_software(then: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in dict.fromkeys((*then, *now)):
        old, new = then.get(name, "none"), now.get(name, "none")
        if old != new:
            yield f"{name} changed from {old} to {new}"


def _changed_data(then: Mapping[str, str | None], now: Mapping[str, str | None]) -> Iterator[str]:
    for name, new in now.items():
        old = then.get(name)
        if old is not None and new is not None and old != new:
            yield f"the dataset {name} changed from {old[:12]} to {new[:12]}"


def changed_weights(then: Mapping[str, str | None], now: Mapping[str, str | None]) -> Iterator[str]:
    """Yield a phrase for each entry of an Identity's ``weights`` that was known and changed."""
    for name, new in now.items():
        if None not in (then.get(name), new) and then[name] != new:
            yield f"the weights of {name}, which it starts from, changed"
