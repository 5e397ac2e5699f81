"""What an archive of `make bundle` brought along: the folder bundle/ of this checkout.

Where that folder is, this machine is taken for one without network: it is checked once by
SHA256SUMS, its images and its Horovod are put into the cache, where everything looks for them, its
packages are pip's only source, and its datasets and published weights need no download. Without it
nothing here does anything.

Standard library only: scripts/environment.py imports it on a bare Python.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import cache
from errors import ParbenchError
from files import read_json, sha256_file, write_atomically, write_json

ROOT = Path(__file__).resolve().parent.parent
KEYS = {"layout", "python", "environment", "images", "given", "datasets", "weights"}
LAYOUT = 2  # raised when an older checkout could not read the folder
SUMS = "SHA256SUMS"  # beside bundle/, as sha256sum writes it
SECONDS_BETWEEN_LINES = 10
AGAIN = "copy the archive here again and unpack it (tar xf); nothing was taken from it"


def say(text: str) -> None:
    """A line for people."""
    print(f"parbench: {text}", file=sys.stderr, flush=True)


def folder() -> Path:
    """Where a bundle lies, if there is one."""
    return ROOT / "bundle"


def contents() -> dict | None:
    """bundle/bundle.json: what the bundle holds and for which Python; None without a bundle."""
    if not folder().is_dir():
        return None
    path = folder() / "bundle.json"
    if not path.is_file():  # the last but one of the archive
        raise ParbenchError(f"{path} is missing: the archive was cut off; {AGAIN}")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        layout = value["layout"]
        whole = set(value) >= KEYS
    except (OSError, ValueError, KeyError, TypeError):
        whole, layout = False, LAYOUT
    if layout != LAYOUT:
        raise ParbenchError(
            f"{path}: a bundle of another version of parbench (layout {layout}, this is {LAYOUT}); "
            "unpack it in a folder of its own and run it there"
        )
    if not whole:
        raise ParbenchError(f"{path} is damaged; {AGAIN}")
    return value


# ---------------------------------------------------------------- checked, and put where it is used


def adopt() -> None:
    """Check the bundle, once, and put its images and wheels into the cache. ParbenchError."""
    held = contents()
    if held is None:
        return
    with cache.locked(cache.folder() / "bundle.lock", "the same from a bundle"):
        verify()
        for label in held["images"]:
            _adopt_image(label, given=label in held["given"])
        for source in (folder() / "horovod").glob("*"):
            _adopt_horovod(source)


def read_sums(path: Path) -> dict[str, str]:
    """SHA-256 by path, of a file that sha256sum reads."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise ParbenchError(f"{path} is missing: the archive was cut off; {AGAIN}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ParbenchError(f"{path}: cannot be read ({error}); {AGAIN}") from None
    pairs = (line.split("  ", 1) for line in lines if line)
    return {words[1]: words[0] for words in pairs if len(words) == 2}


def verify() -> None:
    """ParbenchError, with its name, for a file of bundle/ that is not what was put in.

    The checkout beside it is not read: it may be edited (`sha256sum --check SHA256SUMS` reads all).
    """
    sums = ROOT / SUMS
    mark = folder() / ".verified"
    expected = {path: value for path, value in read_sums(sums).items() if path[:7] == "bundle/"}
    seal = sha256_file(sums)
    if mark.is_file() and mark.read_text(encoding="utf-8") == seal:
        return
    missing = [path for path in expected if not (ROOT / path).is_file()]
    if missing or not expected:
        raise ParbenchError(f"{ROOT / (missing or [SUMS])[0]} is missing or empty; {AGAIN}")
    total = sum((ROOT / path).stat().st_size for path in expected)
    say(f"checking bundle/ by SHA-256 (once): {len(expected)} files, {total / 1e9:.1f} GB")
    done, last = 0, time.monotonic()
    for path, value in expected.items():
        if sha256_file(ROOT / path) != value:
            raise ParbenchError(
                f"{ROOT / path} is damaged: its SHA-256 is not the one in {SUMS}; {AGAIN}"
            )
        done += (ROOT / path).stat().st_size
        if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            say(f"  {done / 1e9:.1f} GB are whole")
    write_atomically(mark, seal)


def _adopt_image(label: str, given: bool) -> None:
    images = cache.folder() / "images"
    source, target = (place / f"{label}.sif" for place in (folder() / "images", images))
    facts = source.with_suffix(".json")
    try:
        stamp = read_json(target.with_suffix(".json"))["stamp"]
        if given or stamp == [target.stat().st_size, target.stat().st_mtime_ns]:
            return
    except (ParbenchError, OSError, KeyError, TypeError):
        pass
    with cache.locked(target.with_suffix(".lock"), f"the image {label}"):
        say(f"taking the image {label} from bundle/")
        bill = source.with_suffix(".cdx.json")
        if bill.is_file():
            place(bill, target.with_suffix(".cdx.json"))
        if given:  # a file that the configuration names: it stays outside the cache
            target = source
        else:
            place(source, target)
        status = target.stat()
        stamp = [status.st_size, status.st_mtime_ns]
        write_json(images / facts.name, {**read_json(facts), "stamp": stamp})


def _adopt_horovod(source: Path) -> None:
    target = cache.folder() / "wheels" / source.name
    if (target / "built.json").is_file():
        return
    with cache.locked(target.with_name(target.name + ".lock"), "the same Horovod"):
        say(f"taking {source.name} from bundle/")
        # built.json last: a wheel counts when it is there.
        for file in sorted(source.iterdir(), key=lambda file: file.name == "built.json"):
            place(file, target / file.name)


def place(source: Path, target: Path) -> None:
    """A second name for ``source`` where the disk is the same, else a copy; whole, or not there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    os.close(handle)
    part = Path(name)
    try:
        part.unlink()
        try:
            os.link(source, part)
        except OSError:  # another disk, or one without links
            needed, free = source.stat().st_size, shutil.disk_usage(target.parent).free
            if free < needed:
                raise ParbenchError(
                    f"{target.parent}: {free / 1e9:.1f} GB are free, {source.name} needs "
                    f"{needed / 1e9:.1f}; free some, or point PARBENCH_CACHE at a larger disk"
                ) from None
            shutil.copyfile(source, part)
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


# ---------------------------------------------------------------- what others ask for


@dataclass(frozen=True)
class Packages:
    """pip's only source, and the list of what is there, each with its SHA-256."""

    wheels: Path
    requirements: Path


def packages(stack: str, lock: Path, python: list[str]) -> Packages | None:
    """The bundle's packages for the environment of ``stack``; None without a bundle.

    ParbenchError where they are for another Python, or for another lock file.
    """
    held = contents()
    if held is None:
        return None
    with_network = "on a machine with a network, delete the folder bundle/"
    if held["python"]["identity"] != python:
        version = held["python"]["version"]
        raise ParbenchError(
            f"bundle/ holds packages for Python {version} ({' '.join(held['python']['identity'])}),"
            f" this is {'.'.join(map(str, sys.version_info[:2]))} ({' '.join(python)}): install "
            f"Python {version}, then: make report PYTHON=python{version} (or write the bundle with "
            f"this machine's Python: make bundle PYTHON=...); {with_network}"
        )
    if held["environment"] != {"stack": stack, "lock": sha256_file(lock)}:
        raise ParbenchError(
            f"bundle/ holds the packages of the stack {held['environment']['stack']} as it was "
            f"when the bundle was written, not those of {lock}; write another bundle, or "
            f"{with_network}"
        )
    return Packages(folder() / "wheels", folder() / "requirements.txt")


def images() -> list[str] | None:
    """Labels of the bundle's images; None without a bundle."""
    held = contents()
    return None if held is None else held["images"]


def dataset(name: str, spec: dict) -> Path | None:
    """The folder of a converted dataset, if the bundle has it and made it from this entry."""
    return _made("datasets", "data", name, spec)


def weights(name: str, spec: dict) -> Path | None:
    """The same of published weights."""
    return _made("weights", "weights", name, spec)


def _made(key: str, place: str, name: str, spec: dict) -> Path | None:
    held = contents()
    if held is None or name not in held[key]:
        return None
    then, now = (
        {key: value for key, value in entry.items() if key != "urls"}
        for entry in (held[key][name], spec)
    )
    return folder() / place / name if then == now else None
