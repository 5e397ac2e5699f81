"""Run a kit on a bare machine: train its cells one after the other until the time is up.

The machine needs no network, no Snakemake and keeps nothing. scripts/kit.py packs the kit at home
and reads its results there (packing.py). This module needs only Python with torch, torchvision and
numpy; the kit may bring safetensors and other packages.

    kit.json          the cells that remain, in order
    cells/<id>.json   each cell.json
    data/<name>.tar.gz, packages/, scripts/, containers/locks/
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tarfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from parbench import cell as cells
from parbench import variables
from parbench.cache import say
from parbench.data import dataset
from parbench.data.images import class_name, decoded
from parbench.errors import ParbenchError
from parbench.files import (
    FILE_NAME,
    canonical_json,
    digest,
    read_json,
    sha256_file,
    write_atomically,
    write_json,
)

ROOT = Path(__file__).resolve().parents[3]
SCHEMA_VERSION = 1
RESULTS = "results.json"
# Besides the ranks' grace period for a checkpoint: to end them and to write results.json.
MARGIN_SECONDS = 10.0
LEAST_SECONDS = 30.0  # of a cell of which nothing is known; to start takes some ten


@dataclass(frozen=True)
class Entry:
    """A cell of a kit. ``seconds``: of an earlier run of its ``group``; None if there is none."""

    id: str
    group: str
    seconds: float | None


@dataclass(frozen=True)
class Kit:
    """kit.json. ``code``: SHA-256 of all of scripts/; ``data``: of each archive, by name."""

    git_commit: str | None
    git_dirty: bool | None
    code: str
    data: dict[str, str]
    cells: list[Entry]

    @classmethod
    def read(cls, folder: Path) -> Kit:
        """Read kit.json in ``folder``."""
        path = folder / "kit.json"
        content = read_json(path, "carry the kit again")
        try:
            if (version := content.pop("schema_version")) != SCHEMA_VERSION:
                raise ParbenchError(f"{path}: schema_version {version}; pack the kit again")
            kit = cls(**{**content, "cells": [Entry(**entry) for entry in content["cells"]]})
            for name in (*kit.data, *(entry.id for entry in kit.cells)):
                if not re.fullmatch(FILE_NAME, name):
                    raise ParbenchError(f"{path}: {name!r} is not a name; pack the kit again")
        except (LookupError, TypeError, AttributeError) as error:
            raise ParbenchError(f"{path}: incomplete ({error}); carry the kit again") from None
        return kit

    def write(self, folder: Path) -> None:
        """Write kit.json into ``folder``."""
        write_json(folder / "kit.json", {"schema_version": SCHEMA_VERSION, **asdict(self)})


def run(folder: Path, out: Path, work: Path, minutes: float) -> int:
    """Train the remaining cells of the kit in ``folder`` for at most ``minutes``.

    ``out``: receives results.json, complete after each cell. ``work``: if it survives between
    commands, cells resume from their checkpoints. Returns 0 when all cells have a result.
    """
    ends = time.monotonic() + 60 * minutes
    kit = Kit.read(folder)
    home = work / digest([kit.code, kit.data])[:12]  # separate for other code or data
    visit = _Visit(folder, kit, out, home, ends)
    for name, sha256 in kit.data.items():
        _unpack(folder / "data" / f"{name}.tar.gz", sha256, name, visit.home / "data" / name)
    visit.keep()
    # Cells that failed or were cut off come after those not tried yet.
    for entry in sorted(kit.cells, key=lambda entry: visit.failed(entry).exists()):
        if not visit.metrics(entry).exists() and visit.in_time(entry):
            visit.train(entry)
            visit.keep()
    return visit.tell()


@dataclass(frozen=True)
class _Visit:
    """One run of the kit in ``folder``; ``home`` is laid out like results/ of a checkout."""

    folder: Path
    kit: Kit
    out: Path
    home: Path
    ends: float

    def metrics(self, each: Entry) -> Path:
        """Return the path of the cell's result."""
        return self.home / "cells" / each.id / "metrics.json"

    def failed(self, each: Entry) -> Path:
        """Return the path of the file that says why the cell has no result."""
        return self.metrics(each).with_name("failed.json")

    def in_time(self, each: Entry) -> bool:
        """Return whether the cell would end in time, judging by others of its group."""
        times = [self._took(other) for other in self.kit.cells if other.group == each.group]
        known_times = [seconds for seconds in (*times, each.seconds) if seconds is not None]
        longest = max(known_times, default=LEAST_SECONDS)
        return time.monotonic() + longest + MARGIN_SECONDS < self.ends

    def _took(self, each: Entry) -> float | None:
        out = self.metrics(each)
        if not out.exists():
            return None
        return out.stat().st_mtime - out.with_name("cell.json").stat().st_mtime

    def train(self, each: Entry) -> None:
        """Train the cell with the launcher; ask for a checkpoint shortly before the time is up."""
        out = self.metrics(each)
        path = out.with_name("cell.json")
        write_atomically(path, (self.folder / "cells" / f"{each.id}.json").read_bytes())
        cell = cells.read(path)
        command = [sys.executable, str(self.folder / "scripts" / "launch.py"), "--cell", str(path)]
        command += ["--data", str(self.home / "data" / cell.dataset.name), "--out", str(out)]
        inherited = variables.clean()
        module_paths = (str(self.folder / "packages"), inherited.get("PYTHONPATH"))
        # PARBENCH_PARENT makes the launcher end with this process.
        added = {"PARBENCH_PARENT": str(os.getpid()), "PYTHONDONTWRITEBYTECODE": "1"}
        added["PYTHONPATH"] = os.pathsep.join(filter(None, module_paths))
        grace = cell.run.grace_seconds + MARGIN_SECONDS
        with subprocess.Popen(command, cwd=self.home, env={**inherited, **added}) as process:
            try:
                process.wait(max(1.0, self.ends - grace - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.terminate()
                try:
                    process.wait(grace)
                except subprocess.TimeoutExpired:
                    process.kill()

    def keep(self) -> None:
        """Write all results so far, including those of earlier commands, to results.json."""
        result_paths = {entry.id: self.metrics(entry) for entry in self.kit.cells}
        failure_paths = {entry.id: self.failed(entry) for entry in self.kit.cells}
        content = {
            "schema_version": SCHEMA_VERSION,
            **{key: getattr(self.kit, key) for key in ("git_commit", "git_dirty", "code")},
            "runs": {cell: read_json(path) for cell, path in result_paths.items() if path.exists()},
            "failed": {
                cell: read_json(path)
                for cell, path in failure_paths.items()
                if path.exists() and not result_paths[cell].exists()
            },
        }
        write_atomically(self.out / RESULTS, canonical_json(content))

    def tell(self) -> int:
        """Print how many cells are done; return the exit status."""
        left = [entry for entry in self.kit.cells if not self.metrics(entry).exists()]
        failed, total = sum(self.failed(entry).exists() for entry in left), len(self.kit.cells)
        say(f"{total - len(left)} of {total} cells have a result, {failed} failed or were cut off")
        return int(bool(left))


def _unpack(archive: Path, sha256: str, name: str, folder: Path) -> None:
    """Convert the dataset ``name`` in ``archive`` to ``folder``, unless that was done before.

    Nothing is extracted to disk: names in the archive identify images, not places.
    """
    if (folder / "digest.json").exists():
        return
    if sha256_file(archive) != sha256:
        raise ParbenchError(f"{archive}: it is not what kit.json describes; carry the kit again")
    with tarfile.open(archive) as tar:
        content_by_path = {
            PurePosixPath(member.name): tar.extractfile(member).read()
            for member in tar
            if member.isfile()
        }
    description = json.loads(content_by_path.pop(PurePosixPath("digest.json")))
    data_path, description_path = folder / "data.safetensors", folder / "digest.json"
    if content := content_by_path.get(PurePosixPath(data_path.name)):
        write_atomically(data_path, content)
        write_json(description_path, description)
        return
    train, test = (
        {path: class_name(path.parts[1]) for path in content_by_path if path.parts[0] == part}
        for part in ("train", "test")
    )
    source = description["source"], description["source_sha256"]
    images = decoded(train, test, *source, opened=lambda path: io.BytesIO(content_by_path[path]))
    converted = dataset.convert(name, description["kind"], images, data_path, description_path)
    if converted["sha256"] != description["sha256"]:
        say(f"{name}: decoded to other pixels than at home: its cells will count as another's")
