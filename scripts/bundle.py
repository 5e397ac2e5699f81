"""Write one archive for a machine without network: checkout, images, data and packages.

    make bundle                                            # parbench-<version>-<stack>.tar, here
    make bundle ARGS="--out /media/disk/x.tar --configfile mine.yaml"

There, `tar xf`, `cd` and `make report` do what they do here; scripts/unbundle.py says how. The
archive holds the commit that is checked out, the images, converted datasets and published weights
of the configured studies, and a wheel for every package of the host environment, for this Python
and platform. What is not there yet is made first. It is written aside and renamed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import cache
import cells
import config as configuration
import deployment
import environment
import images
import pretrained
import unbundle
from errors import ParbenchError, run_main
from files import digest, read_json, sha256_file, write_json

ROOT = Path(__file__).resolve().parent.parent
WHEELS_GB = 4  # torch with its CUDA libraries, before anything is fetched
SECONDS_BETWEEN_LINES = 10
BLOCK = 1 << 20
DISK_FULL, QUOTA, TOO_LARGE = 28, 122, 27


def say(text: str) -> None:
    """A line for people."""
    print(f"parbench: {text}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------- the checkout


def _git(*words: str, folder: Path = ROOT) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise ParbenchError(
            "git, which copies the checkout, is missing: sudo apt install git"
        ) from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ParbenchError(f"git {words[0]} in {folder}: {reason}")
    return done.stdout.rstrip("\n")


def require_clean(
    root: Path, dirty: bool, studies: Sequence[str] = (), travelling: Sequence[str] = ()
) -> None:
    """ParbenchError when what lies in ``root`` is not what the archive would hold.

    ``dirty``: changes to tracked files travel too, and only files that git does not know are left.
    ``travelling``: files of --configfile, which travel in any case.
    """
    if Path(_git("rev-parse", "--show-toplevel", folder=root)).resolve() != root.resolve():
        raise ParbenchError(f"{root} is no git checkout of its own; clone parbench and bundle that")
    lines = _git("status", "--porcelain", "--untracked-files=all", folder=root).splitlines()
    lines = [line for line in lines if line[3:].strip('"') not in travelling]
    if lines and not dirty:
        shown = ", ".join(line[3:] for line in lines[:3])
        more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
        raise ParbenchError(
            f"this checkout is not what was committed: {shown}{more}; commit it, or take tracked "
            'files as they are: make bundle ARGS="--dirty" (git add makes a new file a tracked one)'
        )
    known = set(_git("ls-files", "studies", folder=root).splitlines())
    for study in studies:
        if f"studies/{study}.yaml" not in known:
            raise ParbenchError(
                f"studies/{study}.yaml would not travel: git does not track it; git add it"
            )
    if lost := [line[3:] for line in lines if line.startswith("??")]:
        say(f"left behind, since git does not track them: {', '.join(lost)}")


def copy_checkout(root: Path, target: Path, dirty: bool) -> None:
    """A clone of what is checked out in ``root``, with its history and no word of where it lay."""
    words = ("--quiet", "--no-local", "--single-branch", "--no-tags", "--template=")
    _git("clone", *words, str(root), str(target), folder=root)
    _git("remote", "remove", "origin", folder=target)
    shutil.rmtree(target / ".git" / "logs", ignore_errors=True)
    when = int(_git("log", "-1", "--format=%ct", folder=root))
    if dirty:
        changed = _git("diff", "--name-only", "--no-renames", "-z", "HEAD", folder=root)
        for name in filter(None, changed.split("\0")):
            source, copy = root / name, target / name
            copy.unlink(missing_ok=True)
            if source.is_symlink() or source.exists():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, copy, follow_symlinks=False)
                _git("add", "--intent-to-add", "--", name, folder=target)
    for path in target.rglob("*"):  # nothing is younger than what is made from it
        if path.is_file() and not path.is_symlink():
            os.utime(path, (when, when))


def version(root: Path) -> str:
    """The tag or commit that is checked out, as part of a file's name."""
    return _git("describe", "--tags", "--always", "--dirty", folder=root).replace("/", "-")


# ---------------------------------------------------------------- what is put in


@dataclass
class Contents:
    """What the configured studies need, and where it lies."""

    stack: str
    images: list[images.Image] = field(default_factory=list)
    datasets: dict[str, dict] = field(default_factory=dict)
    weights: dict[str, dict] = field(default_factory=dict)

    def made(self) -> list[tuple[str, str]]:
        """Folders that hold what was prepared, and the file of each: as in results/."""
        return [
            *((f"data/{name}", "data.safetensors") for name in self.datasets),
            *((f"weights/{name}", pretrained.WEIGHTS) for name in self.weights),
        ]


def needed(config: dict, plan: cells.Plan) -> Contents:
    """Images, datasets and published weights of all cells, also of those whose hardware only the
    other machine has.
    """
    found = Contents(config["stack"])
    wanted = {image for cell in plan.cells.values() if (image := cells.image_of(cell, plan))}
    if deployment.in_images(config):
        wanted.add(images.image("report", config["stack"], config["images"]))
    found.images = sorted(wanted, key=lambda image: image.label)
    names = sorted({cell["dataset"]["name"] for cell in plan.cells.values()})
    found.datasets = {name: config["datasets"][name] for name in names}
    started = (cell["model"].get("pretrained") for cell in plan.cells.values())
    names = sorted({each["weights"] for each in started if each})
    found.weights = {name: config["weights"][name] for name in names}
    return found


def _make_images(contents: Contents, settings: dict) -> None:
    for image in contents.images:
        facts = images.file(image, settings)
        if image.path.stat().st_size != facts["stamp"][0]:
            raise ParbenchError(f"{image.path} changes while it is read; start again")


def _make_data(contents: Contents, configfiles: Sequence[str]) -> None:
    """By the workflow, so that it knows later what they were made from."""
    say(f"data: {', '.join([*contents.datasets, *contents.weights])}")
    command = [sys.executable, "-m", "snakemake", "--quiet", "all", "--rerun-incomplete"]
    command += [f"results/{folder}/digest.json" for folder, _ in contents.made()]
    command += ["--configfile", *configfiles] if configfiles else []
    variables = {**os.environ, "PARBENCH_CLOSING": "make"}  # no results to print
    done = subprocess.run(command, cwd=ROOT, env=variables, check=False, stdout=sys.stderr)
    if done.returncode:
        raise ParbenchError("the data of the studies cannot be made; see the error above")


def fetch_wheels(lock_file: Path, wheels: Path, lock: int) -> Path:
    """A wheel of every package of the lock file; returns a list with the digests of those.

    What the package registry has as source only is built here: the other machine has no tools.
    """
    wheels.mkdir(parents=True)
    log = wheels.parent.with_name(wheels.parent.name + ".pip.log")
    log.unlink(missing_ok=True)
    say("packages: fetching a wheel of each, checked by SHA-256")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--require-hashes", "--no-input"]
    command += ["--disable-pip-version-check", "--log", str(log), "--wheel-dir", str(wheels)]
    variables = {**environment.clean_environment(), "TMPDIR": str(wheels.parent)}
    try:
        failed = environment.run_pip([*command, "-r", str(lock_file)], variables, lock)
    except BaseException:  # interrupted: nobody asks why
        log.unlink(missing_ok=True)
        raise
    if failed:
        raise ParbenchError(environment.pip_failure(log, wheels))
    log.unlink(missing_ok=True)
    return _requirements(wheels)


def _requirements(wheels: Path) -> Path:
    lines = []
    for wheel in sorted(wheels.glob("*.whl")):
        name, version_ = wheel.name.split("-")[:2]
        lines.append(f"{name}=={version_} --hash=sha256:{sha256_file(wheel)}\n")
    target = wheels.with_name("requirements.txt")
    target.write_text("".join(lines), encoding="utf-8")
    return target


# ---------------------------------------------------------------- the archive


class _Reader:
    """A file that is read once: into the archive, its digest, and a line now and then."""

    def __init__(self, file: BinaryIO, tell):
        self.file, self.tell, self.sha256 = file, tell, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        block = self.file.read(size)
        self.sha256.update(block)
        self.tell(len(block))
        return block


class Archive:
    """A tar file below one folder, in one go, with the SHA-256 of every file that went in."""

    def __init__(self, path: Path, top: str, total: int):
        self.top, self.total, self.done = top, total, 0
        self.sums: dict[str, str] = {}
        self.started = self.last = time.monotonic()
        self.tar = tarfile.open(  # noqa: SIM115  (closed by close)
            path, "w", format=tarfile.PAX_FORMAT, copybufsize=BLOCK
        )

    def _tell(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        if now - self.last >= SECONDS_BETWEEN_LINES:
            self.last = now
            seconds = now - self.started
            say(f"  {self.done / 1e9:.1f} of {self.total / 1e9:.1f} GB [{seconds:.0f} s]")

    def add(self, source: Path, name: str) -> str | None:
        """One file, as ``name``, without its owner. Returns its SHA-256 (None of a link)."""
        info = self.tar.gettarinfo(source, f"{self.top}/{name}")
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        info.mtime = int(info.mtime)
        if info.issym():
            self.tar.addfile(info)
            return None
        if info.islnk():  # two names of one file are two files there
            info.type, info.linkname, info.size = tarfile.REGTYPE, "", source.stat().st_size
        info.mode = 0o755 if info.mode & 0o100 else 0o644
        with open(source, "rb") as file:
            reader = _Reader(file, self._tell)
            self.tar.addfile(info, reader)
        self.sums[name] = reader.sha256.hexdigest()
        return self.sums[name]

    def close(self) -> None:
        """End the archive, on the disk."""
        self.tar.close()


def write_sums(sums: dict[str, str], target: Path) -> None:
    """As sha256sum writes and reads it."""
    target.write_text(
        "".join(f"{value}  {name}\n" for name, value in sorted(sums.items())), encoding="utf-8"
    )


def require_disk(folder: Path, size: float, what: str) -> None:
    """ParbenchError when ``folder`` has less than ``size`` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise ParbenchError(
            f"{folder}: {free / 1e9:.1f} GB are free, {what} needs {size / 1e9:.1f}; free some, or "
            'choose another disk: make bundle ARGS="--out <file>" for the archive, PARBENCH_CACHE '
            "for what it is made from"
        )


README = """\
{top}: parbench for a machine without network

It needs: Linux ({platform}), Python {python} with venv, make{apptainer}; {room} GB of disk.

    tar xf {archive}
    cd {top}
    make report{arguments}

The report is then reports/final.html and reports/final.pdf. The first start checks bundle/ by
SHA-256, sets the environment up from bundle/wheels and needs no network, nor does any later one;
bundle/ must stay. To check every file, the checkout too: sha256sum --check --quiet SHA256SUMS
(before the first start). The cache, with the environment, is ~/.cache/parbench; PARBENCH_CACHE
chooses another place.
"""


def _readme(contents: Contents, out: Path, top: str, travelling: dict[str, Path], size: int) -> str:
    words = shlex.join(["--configfile", *travelling]) if travelling else ""
    text = README.format(
        platform=environment.python_identity()[1],
        python=".".join(map(str, sys.version_info[:2])),
        apptainer=" and Apptainer" if contents.images else "",
        # the archive, unpacked; the environment; the images, unpacked
        room=round(
            2 * size / 1e9 + 7 + 2 * sum(i.path.stat().st_size for i in contents.images) / 1e9
        ),
        archive=shlex.quote(out.name),
        top=shlex.quote(top),
        arguments=f" ARGS={shlex.quote(words)}" if words else "",
    )
    for image in contents.images:
        if _is_given_file(image):
            text += (
                f"\nThe configuration names the image {image.name} by a path: copy "
                f"bundle/images/{image.label}.sif to\n{image.given} there, or name its new place "
                f"(images.given.{image.name}).\n"
            )
    return text


def _is_given_file(image: images.Image) -> bool:
    return bool(image.given) and not image.given.startswith("oras:")


def _travelling(configfiles: Sequence[str]) -> dict[str, Path]:
    """Where files of --configfile go: those of this folder to their place, others beside it."""
    found: dict[str, Path] = {}
    for name in configfiles:
        path = Path(name).absolute()
        inside = path.is_relative_to(ROOT)
        place = str(path.relative_to(ROOT)) if inside else path.name
        if place in found or (not inside and (ROOT / place).exists()):
            raise ParbenchError(f"{name}: {place} is taken in the archive; give it another name")
        found[place] = path
    return found


def write(
    out: Path,
    contents: Contents,
    travelling: dict[str, Path],
    host_stack: str,
    work: Path,
    lock: int,
    *,
    dirty: bool,
) -> None:
    """Gather everything in ``work`` and write the archive ``out``, or nothing."""
    known = [image.path for image in contents.images]
    known += [ROOT / "results" / folder / file for folder, file in contents.made()]
    size = sum(path.stat().st_size for path in known)
    one_disk = os.stat(work).st_dev == os.stat(out.parent).st_dev
    gigabytes = WHEELS_GB * 1e9
    require_disk(out.parent, size + gigabytes * (2 if one_disk else 1), "the archive")
    require_disk(work, gigabytes, "fetching packages")

    top = f"parbench-{version(ROOT)}-{contents.stack}"
    checkout = work / "checkout"
    copy_checkout(ROOT, checkout, dirty)
    for place, path in travelling.items():
        (checkout / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, checkout / place)
    lock_file = environment.locks(host_stack) / "host.txt"
    requirements = fetch_wheels(lock_file, work / "wheels", lock)
    wheels = sorted((work / "wheels").glob("*.whl"))
    size += sum(path.stat().st_size for path in wheels)
    require_disk(out.parent, size - (wheels[0].stat().st_size if wheels else 0), "the archive")

    python = ".".join(map(str, sys.version_info[:2]))
    (work / "python").write_text(f"python{python}\n")
    (work / "README").write_text(_readme(contents, out, top, travelling, size), encoding="utf-8")
    write_json(work / "bundle.json", {
        "layout": unbundle.LAYOUT,
        "commit": _git("rev-parse", "HEAD"),
        "stack": contents.stack,
        "python": {"version": python, "identity": environment.python_identity()},
        "environment": {"stack": host_stack, "lock": sha256_file(lock_file)},
        "images": [image.label for image in contents.images],
        "given": [image.label for image in contents.images if _is_given_file(image)],
        "datasets": contents.datasets,
        "weights": contents.weights,
    })  # fmt: skip
    say(f"writing {out}: {size / 1e9:.1f} GB")
    part = out.with_name(f".{out.name}.part")
    try:
        archive = Archive(part, top, size)
        archive.add(work / "README", "README-bundle.txt")
        _add_checkout(archive, checkout)
        archive.add(work / "python", "bundle/python")
        archive.add(requirements, "bundle/requirements.txt")
        _add_contents(archive, contents)
        if horovod := environment.horovod_wheel(host_stack):
            for name in (read_json(horovod / "built.json")["wheel"], "built.json"):
                archive.add(horovod / name, f"bundle/horovod/{horovod.name}/{name}")
        for wheel in wheels:
            archive.add(wheel, f"bundle/wheels/{wheel.name}")
            wheel.unlink()  # what lies in the archive need not lie here
        archive.add(work / "bundle.json", "bundle/bundle.json")
        write_sums(archive.sums, work / unbundle.SUMS)
        archive.add(work / unbundle.SUMS, unbundle.SUMS)
        archive.close()
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        os.replace(part, out)
    finally:
        part.unlink(missing_ok=True)


def _add_checkout(archive: Archive, checkout: Path) -> None:
    for path in sorted(checkout.rglob("*")):
        name = str(path.relative_to(checkout))
        if path.is_symlink() or path.is_file():
            archive.add(path, name)
    # Any `git status` rewrites it; git itself checks it.
    archive.sums.pop(".git/index", None)


def _add_contents(archive: Archive, contents: Contents) -> None:
    for image in contents.images:
        label = f"bundle/images/{image.label}"
        if archive.add(image.path, f"{label}.sif") != read_json(image.beside(".json"))["sha256"]:
            raise ParbenchError(f"{image.path} is damaged; delete it, it is made anew")
        for ending in (".json", ".cdx.json"):
            if image.beside(ending).is_file():
                archive.add(image.beside(ending), label + ending)
    for folder, file in contents.made():
        place = ROOT / "results" / folder
        value = archive.add(place / file, f"bundle/{folder}/{file}")
        if value != read_json(place / "digest.json")["sha256"]:
            raise ParbenchError(f"{place / file} is damaged; delete it")
        archive.add(place / "digest.json", f"bundle/{folder}/digest.json")


# ---------------------------------------------------------------- the program


def _sifted(error: OSError, out: Path) -> ParbenchError | OSError:
    if error.errno in (DISK_FULL, QUOTA):
        return ParbenchError(f"{error.filename or out}: the disk is full; nothing half is left")
    if error.errno == TOO_LARGE:
        return ParbenchError(
            f"{out}: this disk takes no file of that size (FAT32: 4 GB); format it as exFAT or ext4"
        )
    return ParbenchError(f"{error.filename or out}: {error.strerror or error}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="default: parbench-<version>-<stack>.tar, here")
    parser.add_argument(
        "--configfile", "--configfiles", nargs="+", default=[], help="laid over config.yaml"
    )
    parser.add_argument("--dirty", action="store_true", help="take tracked files as they are now")
    parser.add_argument("--environment", default="current", help="stack of the host environment")
    arguments = parser.parse_args()
    # Ended by a scheduler or `timeout`: leave as on any error, nothing half left.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    travelling = _travelling(arguments.configfile)
    files = [ROOT / "config.yaml", *map(Path, arguments.configfile)]
    loaded = configuration.load(*arguments.configfile)
    config = deployment.settle(configuration.checked(loaded, files))
    require_clean(ROOT, arguments.dirty, config["studies"], list(travelling))
    contents = needed(config, cells.plan(config, arguments.configfile))
    name = f"parbench-{version(ROOT)}-{contents.stack}.tar"  # git ignores it
    out = (arguments.out or Path(name)).absolute()
    out = out / name if out.is_dir() else out
    if not out.parent.is_dir():
        raise ParbenchError(f"--out {out}: there is no folder {out.parent}")
    work = cache.folder() / "bundles" / digest(str(out))[:12]
    try:
        with cache.locked(work.with_suffix(".lock"), "the same bundle") as lock:
            shutil.rmtree(work, ignore_errors=True)  # of one that was killed
            work.mkdir(parents=True)
            try:
                _make_data(contents, arguments.configfile)
                _make_images(contents, config["images"])
                write(out, contents, travelling, arguments.environment, work, lock,
                      dirty=arguments.dirty)  # fmt: skip
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise _sifted(error, out) from None
    print(f"{out}  {out.stat().st_size / 1e9:.1f} GB")


if __name__ == "__main__":
    run_main(main)
