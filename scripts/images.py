"""Images: what a cell's software is, known by content, built once for all checkouts.

    python scripts/images.py build                  # all images of the stack, unless they are there
    python scripts/images.py list                   # which are there, what they are made from
    python scripts/images.py verify                 # every byte and signature of those in the cache
    python scripts/images.py run report -- python3  # a program inside one

An image's name holds the digest of all that decides its content: its recipe
(containers/<name>.def), lock file, build arguments and parent. It lies in
`$PARBENCH_CACHE/images/`, with what it is (`.json`), its bill of materials (`.cdx.json`) and its
build log beside it, and is never changed once it is there.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apptainer
import cache
import children
import config as configuration
import environment
import strategies
import system
import unbundle
from apptainer import Apptainer
from errors import ParbenchError, run_main
from files import digest, read_json, sha256_file, write_atomically, write_json

ROOT = Path(__file__).resolve().parent.parent
RECIPES = ROOT / "containers"
LAYOUT = 1  # raised when this program builds images that older ones cannot stand for
EPOCH = "1704067200"  # 2024-01-01: every time inside an image, so that none differs between builds
# zstd at 3: a third of the time of the default, a tenth larger. All times are EPOCH's.
SQUASHFS = "-comp zstd -Xcompression-level 3"
SECONDS_BETWEEN_LINES = 10
# Room for the unpacked image, its parent and the finished file, by whether it holds torch.
GIB_WITH_TORCH, GIB_WITHOUT = 16, 3
# Seen by the recipes, see containers/post.sh: what a build needs, and mirrors on this disk.
BUILD_FOLDER, MIRRORS_FOLDER = "/parbench-build", "/parbench-mirrors"


def say(text: str) -> None:
    """A line for people."""
    print(f"parbench: {text}", file=sys.stderr, flush=True)


def folder() -> Path:
    """Where images lie."""
    return cache.folder() / "images"


# ---------------------------------------------------------------- what an image is


@dataclass(frozen=True)
class Image:
    """An image as its recipe, or as a file or address that stands in for it.

    ``key``: SHA-256 of what decides its content. ``given``: a .sif file or an oras:// address.
    """

    name: str
    stack: str | None  # None where it has no lock file: both stacks share it
    key: str
    arguments: tuple[tuple[str, str], ...] = ()
    lock: Path | None = None
    parent: Image | None = None
    given: str | None = None

    @property
    def label(self) -> str:
        """torch-current-0123456789ab."""
        return "-".join(filter(None, (self.name, self.stack, self.key[:12])))

    @property
    def path(self) -> Path:
        """The image's file."""
        if self.given and not self.given.startswith("oras:"):
            return Path(self.given)
        return folder() / f"{self.label}.sif"

    @property
    def entry(self) -> Path:
        """What `apptainer exec` takes: the unpacked image where there is one, else the file."""
        unpacked = self.beside(".unpacked")
        return unpacked if self.beside(".unpacked.sha256").is_file() else self.path

    def beside(self, ending: str) -> Path:
        """A file about the image, in the cache, also where the image itself was given."""
        return folder() / f"{self.label}{ending}"


def names() -> list[str]:
    """The images that there are recipes for."""
    return sorted(path.stem for path in RECIPES.glob("*.def"))


def image(name: str, stack: str, settings: dict) -> Image:
    """The image ``name`` of ``stack``; ``settings`` are ``images`` of the configuration."""
    return _image(name, stack, _frozen(settings))


def of_cell(cell: dict, settings: dict) -> Image:
    """The image that ``cell`` runs in: its strategy names it."""
    return image(strategies.load(cell["strategy"]["name"]).IMAGE, cell["stack"], settings)


def _frozen(settings: dict) -> tuple:
    arguments = settings["arguments"]
    given = settings["given"]
    return tuple(sorted(arguments.items())), tuple(sorted(given.items()))


@functools.cache
def _image(name: str, stack: str, settings: tuple) -> Image:
    recipe = RECIPES / f"{name}.def"
    if not recipe.is_file():
        raise ParbenchError(
            f"there is no image {name!r}: containers/ holds no {recipe.name}"
            f"{configuration.nearest(name, names())}"
        )
    asked, given = (dict(part) for part in settings)
    if name in given:
        return Image(name, stack, _key_of_given(name, given[name]), given=given[name])
    text = recipe.read_text(encoding="utf-8")
    known = _arguments(text)
    arguments = {key: asked.get(key, value) for key, value in known.items() if key in BUILD_CHOICES}
    lock = RECIPES / "locks" / stack / known["lock"] if "lock" in known else None
    if lock is not None and not lock.is_file():
        raise ParbenchError(f"stack {stack!r}: {recipe.name} needs {lock}, which is not there")
    parent = _image(known["parent"], stack, settings) if "parent" in known else None
    parts = {
        "layout": LAYOUT,
        "recipe": _meaning(text),
        "shared": _meaning((RECIPES / "post.sh").read_text(encoding="utf-8")),
        "lock": lock and sha256_file(lock),
        # A mirror is where, not what.
        "arguments": {key: value for key, value in arguments.items() if key != "mirror"},
        "parent": parent and parent.key,
        "horovod": environment.recipe_digest() if "build_horovod.py" in text else None,
    }
    shared = lock is None and parent is None
    return Image(
        name,
        None if shared else stack,
        digest(parts),
        tuple(arguments.items()),
        lock,
        parent,
    )


# Arguments of a recipe that `images.arguments` of the configuration may choose.
BUILD_CHOICES = ("bootstrap", "from", "mirror", "gpu")


def _arguments(recipe: str) -> dict[str, str]:
    """The recipe's %arguments with their defaults."""
    section = re.search(r"^%arguments\n(.*?)(?=^%|\Z)", recipe, re.MULTILINE | re.DOTALL)
    lines = section[1].splitlines() if section else []
    pairs = (line.strip().partition("=") for line in lines if not line.strip().startswith("#"))
    return {key: value for key, equals, value in pairs if equals}


def _meaning(recipe: str) -> str:
    """A recipe without comments of its own lines, blank lines and blanks at ends of lines."""
    lines = (line.rstrip() for line in recipe.splitlines())
    return "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))


def _key_of_given(name: str, given: str) -> str:
    where = f"config.yaml: images.given.{name}"
    if given.startswith("oras:"):
        match = re.fullmatch(r"oras://\S+@sha256:([0-9a-f]{64})", given)
        if not match:
            raise ParbenchError(
                f"{where}: {given!r} names no content; write oras://<registry>/<image>@sha256:"
                "<its digest>, since a tag may mean another image tomorrow"
            )
        return match[1]
    path = Path(given)
    if not path.is_absolute() or not os.path.isfile(path):  # False also for a name that is too long
        raise ParbenchError(f"{where}: {given!r} is no file; give the absolute path of a .sif")
    return _sha256_once(path)


def _sha256_once(path: Path) -> str:
    """SHA-256 of a large file, computed again only when its size or time changed."""
    status = path.stat()
    stamp = [str(path), status.st_size, status.st_mtime_ns]
    kept = folder() / "given" / f"{digest(str(path))[:16]}.json"
    with contextlib.suppress(ParbenchError, KeyError, TypeError):
        known = read_json(kept)
        if known["stamp"] == stamp:
            return known["sha256"]
    say(f"reading {path} for its digest (once)")
    value = sha256_file(path)
    write_json(kept, {"stamp": stamp, "sha256": value})
    return value


def obstacle(stack: str, settings: dict) -> str | None:
    """Why the images of ``stack`` are not in the cache and cannot be built here; else None."""
    wanted = [image(name, stack, settings) for name in names()]
    bundled = unbundle.images()
    if bundled is not None:  # all that this machine will have; parents do not travel
        wanted = [one for one in wanted if one.given or one.label in bundled]
        if not wanted:
            return "bundle/ holds no images of this stack, and building them needs a network"
    to_build = [one for one in wanted if one.given is None and _ready(one) is None]
    ways = {dict(one.arguments).get("bootstrap") for one in to_build}
    if to_build and (lacks := system.lacking_to_build("debootstrap" in ways)):
        return f"this user cannot build images: no {lacks[0].what}; {lacks[0].mend}"
    return None


def _search_path() -> str:
    """PATH, and where debootstrap lies: ordinary users do not look there."""
    return f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"


# ---------------------------------------------------------------- ensure


def ensure(wanted: Image, settings: dict) -> dict:
    """Build or fetch the image unless it is there, and return what it is.

    {label, key, path, sha256, python, packages, ...}: ``path`` is what `apptainer exec` takes, a
    file or a folder. Two at once build once. ParbenchError.
    """
    facts = file(wanted, settings)
    found = apptainer.probe()
    unpack = found.unpacked or settings["unpack"]
    path = _unpacked(wanted, facts, found) if unpack else wanted.path
    return {**facts, "path": str(path)}


def file(wanted: Image, settings: dict) -> dict:
    """As ensure, for who does not want to run it: the file, not unpacked."""
    found = apptainer.probe()
    apptainer.require(found, f"the image {wanted.label} is needed")
    facts = _file(wanted, settings, found)
    if settings["public_key"]:
        _require_signature(wanted, facts, settings["public_key"], found)
    return facts


def _file(wanted: Image, settings: dict, found: Apptainer) -> dict:
    """The image's file, and what is known of it."""
    facts = _ready(wanted)
    if facts is None:
        with cache.locked(wanted.beside(".lock"), f"the image {wanted.label}") as lock:
            facts = _ready(wanted, thorough=True)
            if facts is None:
                if wanted.parent is not None:
                    _file(wanted.parent, settings, found)
                facts = _make(wanted, settings, found, lock)
    return facts


def known(wanted: Image) -> dict | None:
    """What is known of an image that is there; None where it must be made first."""
    return _ready(wanted)


def _ready(wanted: Image, thorough: bool = False) -> dict | None:
    """What is known of an image that is there and whole; None where it must be made.

    A file whose size and time are those of its making is taken for whole; any other is read
    again, and one that differs is put away.
    """
    try:
        facts = read_json(wanted.beside(".json"))
        status = wanted.path.stat()
        stamp = [status.st_size, status.st_mtime_ns]
        if facts["stamp"] == stamp:
            return facts
        if not thorough:  # whoever holds the lock looks closer
            return None
        if sha256_file(wanted.path) == facts["sha256"]:  # copied here, say
            facts["stamp"] = stamp
            write_json(wanted.beside(".json"), facts)
            return facts
    except (ParbenchError, OSError, KeyError, TypeError):
        return None
    if wanted.given and not wanted.given.startswith("oras:"):
        return None
    say(f"{wanted.path} is damaged: its bytes are not those that were built; making it anew")
    wanted.path.unlink()
    return None


def _make(wanted: Image, settings: dict, found: Apptainer, lock: int) -> dict:
    folder().mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    # debootstrap works in no folder whose name has blanks.
    place = folder() if not re.search(r"\s", str(folder())) else Path("/var/tmp")  # noqa: S108
    prefix = f"{wanted.label}.work-"
    for old in place.glob(f"{prefix}*"):  # of a build that was killed
        if old.owner() == Path.home().owner():
            _remove(old)
    work = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    part = wanted.beside(".sif.part")
    part.unlink(missing_ok=True)  # of a killed build, too: apptainer asks before it overwrites
    try:
        if wanted.given is None:
            _build(wanted, settings, found, work, part, lock)
        elif wanted.given.startswith("oras:"):
            _pull(wanted, found, work, part, lock)
        target = part if part.exists() else wanted.path
        facts = _facts(wanted, target, found)
        _write_sbom(wanted, facts)
        if wanted.given is None and settings["public_key"]:
            _sign(wanted, part, found)
        facts["sha256"] = sha256_file(target)
        facts["seconds"] = round(time.monotonic() - started, 1)
        if part.exists():
            os.replace(part, wanted.path)
    except OSError as error:
        if error.errno not in (28, 122):  # no space, quota
            raise
        raise ParbenchError(f"{folder()}: the disk is full; {_space_fix()}") from None
    finally:
        part.unlink(missing_ok=True)
        _remove(work)
    status = wanted.path.stat()
    facts["stamp"] = [status.st_size, status.st_mtime_ns]
    write_json(wanted.beside(".json"), facts)
    size = status.st_size / 2**20
    say(f"image {wanted.label}: ready ({size:,.0f} MiB, {facts['seconds']:.0f} s)")
    return facts


def _remove(path: Path) -> None:
    """Remove a folder, also where a killed build left files of its own users in it."""
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        command = ["unshare", "--map-root-user", "--map-auto", "--", "rm", "-rf", str(path)]
        with contextlib.suppress(OSError):
            subprocess.run(command, capture_output=True, check=False)


def _space_fix() -> str:
    return (
        "free some (old images may be deleted from there), or point PARBENCH_CACHE at a larger disk"
    )


# ---------------------------------------------------------------- build


def _build(
    wanted: Image,
    settings: dict,
    found: Apptainer,
    work: Path,
    part: Path,
    lock: int,
) -> None:
    needed = GIB_WITHOUT if wanted.lock is None or wanted.name == "report" else GIB_WITH_TORCH
    free = shutil.disk_usage(work).free / 2**30
    if free < needed:
        raise ParbenchError(
            f"{folder()}: {free:.1f} GiB are free, building the image {wanted.label} needs "
            f"{needed}; {_space_fix()}"
        )
    if settings["public_key"]:
        _signing_key()  # before minutes are spent
    arguments = {**dict(wanted.arguments), "key": wanted.key}
    mirror = arguments.get("mirror") or settings["arguments"].get("mirror")
    if not mirror or mirror == _arguments((RECIPES / "base.def").read_text()).get("mirror"):
        mirror = system.machine_mirror() or mirror
    if "mirror" in arguments:
        arguments["mirror"] = mirror
    if arguments.get("bootstrap") == "debootstrap" and system.which("debootstrap") is None:
        raise ParbenchError(
            f"the image {wanted.label} needs debootstrap: sudo make system (or sudo apt install "
            "debootstrap); or choose images.arguments.bootstrap: docker in config.yaml"
        )
    if wanted.parent is not None:
        arguments["parent"] = str(wanted.parent.path)
    mounts = _stage(wanted, work / "build", mirror or "")
    log = wanted.beside(".log")
    command = [found.program, "build", "--fakeroot", "--mksquashfs-args", SQUASHFS]
    for key, value in arguments.items():
        command += ["--build-arg", f"{key}={value}"]
    for mount in mounts:
        command += ["--mount", mount]
    command += [str(part), str(RECIPES / f"{wanted.name}.def")]
    say(f"image {wanted.label}: building (once; the whole output: {log})")
    variables = {**_tool_variables(work), "SOURCE_DATE_EPOCH": EPOCH}
    status = _follow(wanted, command, variables, work, log, lock)
    if status or not part.exists():
        reason = _reason(log.read_text(encoding="utf-8", errors="replace"))
        for lack in system.lacking_subids():  # it may be why, and the log does not say so
            reason += f"\n  this user has no {lack.what}: {lack.mend}"
        raise ParbenchError(
            f"the image {wanted.label} cannot be built: {reason}\n  recipe: "
            f"{RECIPES / wanted.name}.def\n  log:    {log}\n  Nothing half is left; the next run "
            "builds it again. To train without images: deployment: host in config.yaml"
        )


def _tool_variables(work: Path) -> dict[str, str]:
    (work / "tmp").mkdir(exist_ok=True)
    kept = {"APPTAINER_TMPDIR": str(work / "tmp"), "APPTAINER_CACHEDIR": str(work / "cache")}
    return {**apptainer.clean_environment(), **kept, "PATH": _search_path()}


def _stage(wanted: Image, build: Path, mirror: str) -> list[str]:
    """Fill the folders that the recipe takes in. Returns the mounts of local mirrors."""
    build.mkdir()
    shutil.copy(RECIPES / "post.sh", build / "post.sh")
    if wanted.lock is not None:
        shutil.copy(wanted.lock, build / "lock.txt")
    if "build_horovod.py" in (RECIPES / f"{wanted.name}.def").read_text(encoding="utf-8"):
        shutil.copy(environment.RECIPE, build / "build_horovod.py")
    lines = {"MIRROR": mirror, "SOURCE_DATE_EPOCH": EPOCH}
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        for spelling in (name, name.upper()):
            if value := os.environ.get(spelling):
                lines[spelling] = value
    settings, mounts = _pip_settings(build.with_name("mirrors"))
    if certificates := settings.get("cert"):
        shutil.copy(certificates, build / "certificates.pem")
        settings["cert"] = lines["SSL_CERT_FILE"] = f"{BUILD_FOLDER}/certificates.pem"
    pip = "\n".join(f"{key} = {value}" for key, value in settings.items())
    (build / "pip.conf").write_text(f"[global]\n{pip}\n", encoding="utf-8")
    lines["PIP_CONFIG_FILE"] = f"{BUILD_FOLDER}/pip.conf"
    text = "".join(f"export {key}='{value.replace(chr(39), '')}'\n" for key, value in lines.items())
    (build / "machine.sh").write_text(text, encoding="utf-8")
    return mounts


def _pip_settings(mirrors: Path) -> tuple[dict[str, str], list[str]]:
    """This machine's pip settings for an index, with folders on its disk mounted for the build."""
    known = environment.pip_settings()
    keys = ("index-url", "extra-index-url", "find-links", "trusted-host", "cert", "proxy")
    settings = {key: known[key] for key in (*keys, "default-timeout") if known.get(key)}
    mirrors.mkdir()
    mounts = []
    for key in keys[:3]:
        words = []
        for word in settings.get(key, "").split():
            path = Path(word.removeprefix("file://"))
            if path.is_absolute():
                if not path.is_dir():
                    continue
                # An index may point at files beside it: ../../files/...
                whole = path.parent if path.parent != Path("/") else path
                inside = f"{MIRRORS_FOLDER}/{len(mounts)}"
                (mirrors / str(len(mounts))).mkdir()
                mounts.append(f"type=bind,source={whole},destination={inside},ro")
                word = word.replace(str(whole), inside)
            words.append(word)
        if words:
            settings[key] = " ".join(words)
        else:
            settings.pop(key, None)
    return settings, mounts


def _follow(
    wanted: Image,
    command: list[str],
    variables: dict[str, str],
    work: Path,
    log: Path,
    lock: int,
) -> int:
    """Run a long command: all its output in ``log``, a line every few seconds for people."""
    started = last = time.monotonic()
    with open(log, "w", encoding="utf-8", errors="replace") as file:
        file.write(f"$ {' '.join(command)}\n")
        process = children.start(command, variables, [lock], folder=work)
        try:
            with children.guarded(lambda: children.kill_session(process)):
                for raw in process.stdout:
                    line = re.sub(r"\x1b\[[0-9;]*m", "", raw.decode(errors="replace")).rstrip()
                    file.write(line + "\n")
                    file.flush()
                    now = time.monotonic()
                    if now - last >= SECONDS_BETWEEN_LINES and (word := _worth_telling(line)):
                        last = now
                        say(f"  {wanted.name}: {word} [{now - started:.0f} s]")
                return process.wait()
        except BaseException:
            children.end(process)
            raise


def _worth_telling(line: str) -> str | None:
    """A line of a build's output in the few words that a waiting person wants."""
    if match := re.match(r"Horovod [\d.]+: (.*?) \[", line):
        return f"Horovod, {match[1]}"
    for pattern, words in (
        (r"I: (\w+ing) (\S+?)\.*$", r"\1 \2"),  # debootstrap
        (r"Collecting (\S+)", r"fetching \1"),
        (r"Installing collected packages", "installing packages"),
        (r"INFO:\s+(.*)", r"\1"),
        (r"\+ (compile|clean_up|apt_get .*)", r"\1"),
        (r"(?:Unpacking|Setting up) (\S+)", r"installing \1"),
    ):
        if match := re.match(pattern, line):
            return match.expand(words).lower()
    return None


def _reason(log: str) -> str:
    """The line of a failed build's log that says why."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for pattern in (
        r"error: ",  # ours, and the compiler's
        r"ERROR: (?!Could not find a version)",  # pip
        r"E: ",  # apt, debootstrap
        r"\w*Error: |AssertionError",  # Python
        r"No space left",
        r"\w+: cannot ",  # rm, cp
        r".*: not found$",  # a shell
        r"FATAL|ERROR",
    ):
        for line in lines:
            if re.match(pattern, line) or (pattern[0] == "N" and pattern in line):
                return re.sub(r"^(error|ERROR|E|FATAL)\s*:\s*", "", line)[:400]
    return lines[-1][:400] if lines else "it said nothing"


def _pull(wanted: Image, found: Apptainer, work: Path, part: Path, lock: int) -> None:
    log = wanted.beside(".log")
    say(f"image {wanted.label}: fetching {wanted.given}")
    command = [found.program, "pull", str(part), wanted.given]
    if re.match(r"oras://(localhost|127\.0\.0\.1)[:/]", wanted.given):
        command.insert(2, "--no-https")
    if _follow(wanted, command, _tool_variables(work), work, log, lock) or not part.exists():
        reason = apptainer.last_error(log.read_text(encoding="utf-8", errors="replace"))
        raise ParbenchError(
            f"config.yaml: images.given.{wanted.name}: {wanted.given} cannot be fetched: {reason}"
        )


def _unpacked(wanted: Image, facts: dict, found: Apptainer) -> Path:
    """The image as a folder, unpacked once: a mounted file is decompressed anew by every start
    (importing torch: 6.4 s instead of 2.8), and some machines mount none.
    """
    target, done = wanted.beside(".unpacked"), wanted.beside(".unpacked.sha256")
    if done.is_file() and done.read_text() == facts["sha256"]:
        return target
    with cache.locked(wanted.beside(".lock"), f"the image {wanted.label}"):
        if done.is_file() and done.read_text() == facts["sha256"]:
            return target
        say(f"image {wanted.label}: unpacking it, so that every cell starts sooner")
        part = wanted.beside(".unpacked.part")
        done.unlink(missing_ok=True)
        for old in (part, target):
            _remove(old)
        command = [found.program, "build", "--sandbox", str(part), str(wanted.path)]
        if not system.lacking_subids():  # as root without all of root's rights nothing else works
            command.insert(2, "--fakeroot")
        with tempfile.TemporaryDirectory(prefix=".unpack-", dir=folder()) as work:
            variables = _tool_variables(Path(work))
            process = subprocess.run(
                command, env=variables, capture_output=True, text=True, check=False
            )
        if process.returncode:
            _remove(part)
            if re.search("No space left|quota", process.stderr):
                raise ParbenchError(f"{folder()}: the disk is full; {_space_fix()}")
            raise ParbenchError(
                f"{wanted.path} cannot be unpacked: {apptainer.last_error(process.stderr)}; "
                "images.unpack: false in config.yaml runs the file itself"
            )
        os.replace(part, target)
        write_atomically(done, facts["sha256"])
    return target


# ---------------------------------------------------------------- what is inside

FACTS = """
import importlib.metadata as m, json, platform, shutil, subprocess
found = {d.metadata["Name"]: d.version for d in m.distributions()}
asked = ["dpkg-query", "-W", "-f", "${Package} ${Version} ${Architecture}\\n"]
debian = ""
if shutil.which(asked[0]):  # a given image may be of another distribution
    debian = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
debian = [line.split() for line in debian.splitlines()]
print(json.dumps({"python": platform.python_version(), "packages": found, "debian": debian}))
"""


def _facts(wanted: Image, path: Path, found: Apptainer) -> dict:
    """Ask the image what it holds."""
    if found.unpacked:  # nothing mounts a file here: unpacked for this one question
        found = dataclasses.replace(found, flags=(*found.flags, "--unsquash"))
    inside = _ask(wanted, path, found, [apptainer.PYTHON, "-c", FACTS])
    return {
        "label": wanted.label,
        "key": wanted.key,
        "given": wanted.given,
        "arguments": {key: value for key, value in wanted.arguments if key != "mirror"},
        "parent": wanted.parent and wanted.parent.label,
        **ast.literal_eval(inside.strip().splitlines()[-1]),
    }


def _ask(wanted: Image, path: Path, found: Apptainer, words: list[str]) -> str:
    command, outside = apptainer.enter(found, path, words, binds=[], variables={})
    environment_ = {**apptainer.clean_environment(), **outside}
    done = subprocess.run(command, env=environment_, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ParbenchError(
            f"the image {wanted.label} ({path}) does not answer {words[0]}: "
            f"{apptainer.last_error(done.stderr)}; is it an image for parbench?"
        )
    return done.stdout


def _write_sbom(wanted: Image, facts: dict) -> None:
    """The image's bill of materials, CycloneDX 1.5, beside it."""
    import sbom

    sbom.write(wanted.beside(".cdx.json"), facts, int(EPOCH))


# ---------------------------------------------------------------- signatures


def _signing_key() -> Path:
    value = os.environ.get("PARBENCH_SIGNING_KEY")
    if not value or not Path(value).is_file():
        has = f"PARBENCH_SIGNING_KEY is {value!r}, which is no file" if value else "it is not set"
        raise ParbenchError(
            "config.yaml: images.public_key asks for signed images; to build one, let "
            f"PARBENCH_SIGNING_KEY name the private key's PEM file ({has})"
        )
    return Path(value)


def _sign(wanted: Image, path: Path, found: Apptainer) -> None:
    command = [found.program, "sign", "--key", str(_signing_key()), str(path)]
    done = subprocess.run(
        command,
        env=apptainer.clean_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ParbenchError(
            f"the image {wanted.label} cannot be signed with {command[3]}: "
            f"{apptainer.last_error(done.stderr)}"
        )


def _require_signature(wanted: Image, facts: dict, public_key: str, found: Apptainer) -> None:
    """ParbenchError unless the image is signed by ``public_key``; asked once a file and key."""
    key = Path(public_key) if Path(public_key).is_absolute() else ROOT / public_key
    if not key.is_file():
        raise ParbenchError(f"config.yaml: images.public_key: {public_key!r} is no file")
    seal = [*facts["stamp"], sha256_file(key)]
    if facts.get("verified") == seal:
        return
    command = [found.program, "verify", "--key", str(key), str(wanted.path)]
    done = subprocess.run(
        command, env=apptainer.clean_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        mend = "delete it to build it anew"
        if wanted.given:
            mend = "sign it (apptainer sign --key ...)"
        raise ParbenchError(
            f"{wanted.path} carries no valid signature of {key} "
            f"(config.yaml: images.public_key): {apptainer.last_error(done.stderr)}; {mend}, or "
            "name the key that signed it"
        )
    write_json(wanted.beside(".json"), {**facts, "verified": seal})


# ---------------------------------------------------------------- inside


@contextlib.contextmanager
def inside(
    wanted: Image, settings: dict, words: list[str]
) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The command that runs ``words`` in the image, in this folder, and its whole environment."""
    facts = ensure(wanted, settings)
    with tempfile.TemporaryDirectory(prefix="parbench-") as temporary:
        command, outside = apptainer.enter(
            apptainer.probe(),
            Path(facts["path"]),
            words,
            binds=work_folders(),
            variables={"MPLCONFIGDIR": "/tmp/matplotlib"},  # noqa: S108  (the image's own)
            temporary=Path(temporary),
            folder=Path.cwd(),
        )
        yield command, {**apptainer.clean_environment(), **outside}


def work_folders(*more: Path) -> list[Path]:
    """What a program inside may see of the host: the checkout, and where its results really lie."""
    found = [ROOT]
    for path in (ROOT / "results", *more):
        real = path.resolve()
        if real.exists() and not any(real.is_relative_to(other) for other in found):
            found.append(real)
        absolute = path.absolute()
        if not any(absolute.is_relative_to(other) for other in found):
            found.append(absolute)
    return found


class Software:
    """What cells in images have: the answers that machine.Software gives for this machine."""

    def __init__(self, settings: dict):
        self.gpu = settings["arguments"].get("gpu", "none")
        self.given = settings["given"]

    def without_horovod(self) -> str | None:
        """None: it is compiled into its image."""
        return None

    def without_nccl(self, strategy_name: str) -> str | None:
        """Why ``strategy_name`` cannot join GPUs; a given image is asked by train.py."""
        if strategy_name == "horovod" and self.gpu != "nccl" and "horovod" not in self.given:
            return "needs an image of Horovod with NCCL: images.arguments.gpu: nccl in config.yaml"
        return None


# ---------------------------------------------------------------- the program


def read_plan(path: Path) -> tuple[str, dict]:
    """results/plan/images.json, which the workflow writes: (stack, settings)."""
    plan = read_json(path)
    return plan["stack"], plan["settings"]


def _planned(arguments: argparse.Namespace) -> tuple[str, dict]:
    if arguments.plan is not None:
        return read_plan(arguments.plan)
    config = configuration.load(*arguments.configfile)
    files = [ROOT / "config.yaml", *arguments.configfile]
    checked = configuration.checked(config, files)
    return arguments.stack or checked["stack"], checked["images"]


def _list(stack: str, settings: dict) -> None:
    for name in names():
        one = image(name, stack, settings)
        facts = _ready(one)
        state = "missing"
        if facts is not None:
            state = f"{one.path.stat().st_size / 2**20:,.0f} MiB, sha256 {facts['sha256'][:12]}"
        print(f"{one.label:<36} {state:<36} {one.path if facts else ''}".rstrip())


def _verify(stack: str, settings: dict) -> int:
    bad = 0
    for name in names():
        one = image(name, stack, settings)
        if not one.path.is_file():
            print(f"{one.label}: missing")
            continue
        if not one.beside(".json").is_file():
            print(f"{one.label}: given, not used yet")
            continue
        facts = read_json(one.beside(".json"))
        whole = sha256_file(one.path) == facts["sha256"]
        bad += not whole
        print(f"{one.label}: {'whole' if whole else 'DAMAGED; delete ' + str(one.path)}")
        if whole and settings["public_key"]:
            facts.pop("verified", None)
            _require_signature(one, facts, settings["public_key"], apptainer.probe())
            print(f"{one.label}: signed by {settings['public_key']}")
    return 1 if bad else 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--stack", help="a folder of containers/locks/; default: config.yaml's")
    common.add_argument("--configfile", action="append", default=[], help="laid over config.yaml")
    common.add_argument("--plan", type=Path, help="results/plan/images.json, instead of these")
    commands = parser.add_subparsers(dest="action", required=True)
    build = commands.add_parser("build", parents=[common], help="build what is not there")
    build.add_argument("names", nargs="*", help="default: all")
    build.add_argument("--out", type=Path, help="digest file to write, for one image")
    commands.add_parser("list", parents=[common], help="images and whether they are there")
    commands.add_parser("verify", parents=[common], help="read every byte, ask for signatures")
    run = commands.add_parser("run", parents=[common], help="a program inside an image")
    run.add_argument("name")
    run.add_argument("program", nargs="+", help="-- program and its arguments")
    arguments = parser.parse_args()
    stack, settings = _planned(arguments)
    if arguments.action == "list":
        _list(stack, settings)
    elif arguments.action == "verify":
        return _verify(stack, settings)
    elif arguments.action == "run":
        with inside(image(arguments.name, stack, settings), settings, arguments.program) as found:
            command, variables = found
            return subprocess.run(command, env=variables, check=False).returncode
    else:
        for name in arguments.names or names():
            one = image(name, stack, settings)
            facts = ensure(one, settings)
            if arguments.out is None:
                print(facts["path"])
        if arguments.out is not None:
            write_digest(arguments.out, one)
    return 0


def write_digest(path: Path, one: Image) -> None:
    """The small file that cells depend on: it changes when the image's content does."""
    value: dict[str, Any] = {"image": one.name, "key": one.key}
    if not path.exists() or read_json(path) != value:
        write_json(path, value)
    else:
        path.touch()  # Snakemake wants an output that is newer


if __name__ == "__main__":
    run_main(main)
