"""Pack a kit for a bare machine; check the results that it brings home and lay them out.

profiles/kit.yaml says what is measured and in which order. launch/kit.py runs on that machine.
"""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from gzip import GzipFile
from importlib import metadata
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pydantic import Field

from parbench import files
from parbench.data import dataset, source
from parbench.deploy import deployment
from parbench.errors import ParbenchError
from parbench.launch.kit import Entry, Kit
from parbench.measure import metrics_json, provenance
from parbench.plan import config as configuration
from parbench.plan import expansion, places, state, writing
from parbench.plan.model import Model, Names, Whole, read_model, validated
from parbench.plan.naming import identity
from parbench.plan.study_plan import PairGroup, PlannedGroup
from parbench.runs import records

Measured = PlannedGroup | PairGroup
MIB = 2**20


class KitStage(Model):
    """Cells measured in rotation: one restart, or seed, of each, then the next of each."""

    study: str = Field(description="name of the study")
    pairs: Names = Field([], description="variants of its pairs, each against its baselines")
    cells: Names = Field([], description="variants to train")
    models: Names | None = Field(None, description="models to measure; default: all")
    turns: Whole | None = Field(None, description="number of restarts, or seeds; default: all")


class Order(Model):
    """profiles/kit.yaml: what a kit holds, stage by stage."""

    config: dict[str, Any] = Field(
        description="changes of the configuration, as in a file of --configfile"
    )
    packages: Names = Field(description="packages of this environment that the kit brings")
    most_mib: Whole = Field(description="largest size of the kit, in MiB")
    stages: list[KitStage] = Field(min_length=1, description="what is measured, in order")


class Failed(Model):
    """failed.json of a cell (launch/outcome.py)."""

    sentence: str
    log: str
    lines: list[str]


class Results(Model):
    """results.json of a kit."""

    schema_version: int
    git_commit: str | None
    git_dirty: bool | None
    code: str
    runs: dict[str, dict[str, Any]] = Field(description="metrics.json by cell")
    failed: dict[str, Failed] = Field(description="why there is no result, by cell")


def read_order(path: Path) -> Order:
    """Read and check the order in ``path``."""
    return read_model(Order, path)


def planned(order: Order, configfiles: Sequence[Path]) -> expansion.Plan:
    """Plan the studies of ``order`` for the machine that its config describes."""
    studies = list(dict.fromkeys(stage.study for stage in order.stages))
    changes = {**order.config, "studies": studies}
    config = deployment.settle(configuration.read(configfiles, changes))
    return expansion.plan(config, configfiles, order.config)


def in_order(order: Order, plan: expansion.Plan, where: str) -> dict[str, str]:
    """Return {cell: group} in the order in which the cells are measured.

    Raises ParbenchError, beginning with ``where``, for variants that do not exist or cannot run.
    """
    group_by_cell: dict[str, str] = {}
    for number, stage in enumerate(order.stages):
        groups = list(_groups(stage, plan, f"{where}: stages[{number}]"))
        for turn in zip_longest(*(group.cells[: stage.turns] for group in groups)):
            for group, cell in zip(groups, turn, strict=True):
                if cell is not None:
                    group_by_cell.setdefault(cell, group.id)
    return group_by_cell


def _groups(stage: KitStage, plan: expansion.Plan, where: str) -> Iterator[Measured]:
    study = plan.studies[stage.study]
    for kind, variants, groups in (
        ("pairs", stage.pairs, study.pairs),
        ("cells", stage.cells, study.groups),
    ):
        for variant in variants:
            fitting = [group for group in groups if group.variant == variant]
            fitting = [
                group for group in fitting if not stage.models or group.model in stage.models
            ]
            if not fitting:
                raise ParbenchError(
                    f"{where}.{kind}: {stage.study} has none of {variant!r} with these models; "
                    f"its variants there: {', '.join(dict.fromkeys(g.variant for g in groups))}"
                )
            for group in fitting:
                if group.not_run:
                    raise ParbenchError(f"{where}.{kind}: {group.id} {group.not_run}; leave it out")
                yield group


def pack(order_path: Path, configfiles: Sequence[Path], out: Path) -> Kit:
    """Write a kit of all cells not measured yet to the folder ``out``, replacing an older kit."""
    order = read_order(order_path)
    plan = planned(order, configfiles)
    group_by_cell = in_order(order, plan, configuration.shown(order_path))
    remaining = [cell for cell in group_by_cell if state.state(cell, plan)[0] != "done"]
    remaining.sort(key=lambda cell: (places.folder(cell) / "failed.json").exists())
    if out.exists() and not (out / "kit.json").exists():
        raise ParbenchError(f"{out}: is there and is no kit; delete it or name another folder")
    shutil.rmtree(out, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__")
    for part in ("scripts", "containers/locks"):
        shutil.copytree(places.ROOT / part, out / part, ignore=ignored)
    for name in order.packages:
        _copy_package(name, out / "packages")
    for cell in remaining:
        files.write_json(out / "cells" / f"{cell}.json", plan.cells[cell].json())
    names = sorted({plan.cells[cell].dataset.name for cell in remaining})
    code = {
        str(path): files.sha256_file(path) for path in sorted(Path(out, "scripts").rglob("*.py"))
    }
    kit = Kit(
        **provenance.git_state(),
        code=files.digest([[path.removeprefix(str(out)), sha256] for path, sha256 in code.items()]),
        data={name: _pack_data(name, plan.datasets[name], out / "data") for name in names},
        cells=[
            Entry(cell, group_by_cell[cell], _seconds(cell, group_by_cell)) for cell in remaining
        ],
    )
    kit.write(out)
    _check_size(out, order.most_mib)
    return kit


def _seconds(cell: str, groups: dict[str, str]) -> float | None:
    """Return the longest time that a cell of its group took, here or on the bare machine."""
    same_group = [other for other, group in groups.items() if group == groups[cell]]
    return max((seconds for other in same_group if (seconds := state.took(other))), default=None)


def _copy_package(name: str, folder: Path) -> None:
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise ParbenchError(
            f"packages: {name} is not installed here; install or remove it"
        ) from None
    for file in distribution.files or ():
        # Its programs lie outside site-packages.
        if "__pycache__" not in file.parts and ".." not in file.parts:
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file.locate(), folder / file)


def _pack_data(name: str, spec: dict, folder: Path) -> str:
    """Write a dataset as <name>.tar.gz, image files if it has any, else the converted data.

    Returns the archive's SHA-256.
    """
    data_folder = places.RESULTS / "data" / name
    if not (data_folder / "digest.json").exists():
        dataset.prepare(name, spec, data_folder / "data.safetensors", data_folder / "digest.json")
    path_by_member = {"digest.json": data_folder / "digest.json"}
    entry = source.load(spec["kind"])(**spec)
    root = entry.folder()
    if root is None or spec.keys() & {"image_size", "test_share"}:
        path_by_member["data.safetensors"] = data_folder / "data.safetensors"
    else:
        path_by_member |= {path.relative_to(root).as_posix(): path for path in entry.images()}
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / f"{name}.tar.gz"
    # Without times, so that the same files give the same bytes.
    with GzipFile(out, "wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for member, path in path_by_member.items():
            info, content = tarfile.TarInfo(member), path.read_bytes()
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return files.sha256_file(out)


def _check_size(out: Path, most: int) -> None:
    sizes = {path: path.stat().st_size for path in out.rglob("*") if path.is_file()}
    if sum(sizes.values()) > most * MIB:
        largest = max(sizes, key=sizes.__getitem__)
        raise ParbenchError(
            f"{out}: {sum(sizes.values()) / MIB:.0f} MiB, and most_mib is {most}; the largest part "
            f"is {largest} with {sizes[largest] / MIB:.0f}; a folder of JPEG images is smaller "
            "than converted data (docs/evidence.md)"
        )


def home(path: Path, order_path: Path, configfiles: Sequence[Path]) -> tuple[Results, list[str]]:
    """Check the results of a kit in ``path`` and write them as a run here would have done.

    Returns the results and the names of their studies.
    """
    plan = planned(read_order(order_path), configfiles)
    brought = validated(Results, files.read_json(path, "copy it again from the machine"), str(path))
    for cell, metrics in brought.runs.items():
        where = f"{path}: {cell}"
        records.of(metrics, where)
        planned_cell = plan.cells.get(cell)
        if planned_cell is None or identity(metrics["cell"]) != identity(planned_cell.json()):
            raise ParbenchError(f"{where}: no such cell is planned here; name the files of `pack`")
        for side in metrics.get("sides", [metrics]):
            # The bare machine has no git.
            side["environment"].update(git_commit=brought.git_commit, git_dirty=brought.git_dirty)
    writing.write(plan)
    for cell, metrics in brought.runs.items():
        existing = state.metrics(cell)
        if existing is None or existing.finished < metrics["finished"]:
            metrics_json.write(places.folder(cell) / "metrics.json", metrics)
            (places.folder(cell) / "failed.json").unlink(missing_ok=True)
    for cell in brought.failed.keys() & plan.cells.keys():
        files.write_json(places.folder(cell) / "failed.json", brought.failed[cell].stated())
    studies = plan.studies.items()
    return brought, [name for name, study in studies if brought.runs.keys() & study.runnable()]
