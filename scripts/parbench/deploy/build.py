"""How an image comes into the cache: built from its recipe, or fetched from a registry; signed,
asked what it holds, and unpacked.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from parbench.cache import say
from parbench.deploy import apptainer, uv
from parbench.errors import ParbenchError
from parbench.files import digest, read_json, sha256_file, write_json

if TYPE_CHECKING:
    from parbench.deploy.images import Image

EPOCH = "1704067200"  # 2024-01-01: every time inside an image, so that none differs between builds
# zstd at 3: a third of the time of the default, a tenth larger. All times are EPOCH's.
SQUASHFS = "-comp zstd -Xcompression-level 3"
SECONDS_BETWEEN_LINES = 10
# Room for the unpacked image, its parent and the finished file, by whether it holds torch.
GIB_WITH_TORCH, GIB_WITHOUT = 16, 3
# Seen by the recipes, see containers/post.sh: what a build needs, and mirrors on this disk.
BUILD_FOLDER, MIRRORS_FOLDER = "/parbench-build", "/parbench-mirrors"
SPACE = "free some (old images may be deleted from there), or point PARBENCH_CACHE at a larger disk"


def make(wanted: Image, settings: dict) -> dict:
    """Build or fetch the image's file. Returns what it is: label, key, sha256, packages, ..."""
    started = time.monotonic()
    place = wanted.beside("").parent
    place.mkdir(parents=True, exist_ok=True)
    with _work_folder(wanted) as work:
        target = work / "image.sif"
        if wanted.given is None:
            _build(wanted, settings, work, target)
        elif wanted.given.startswith("oras:"):
            _pull(wanted, work, target)
        else:
            target = wanted.path
        facts = _facts(wanted, target)
        _write_bill(wanted, facts)
        if wanted.given is None and settings["public_key"]:
            _sign(wanted, target)
        facts["sha256"] = sha256_file(target)
        if target != wanted.path:
            shutil.move(target, part := wanted.beside(".sif.part"))
            os.replace(part, wanted.path)
    facts["seconds"] = round(time.monotonic() - started, 1)
    size = wanted.path.stat().st_size / 2**20
    say(f"image {wanted.label}: ready ({size:,.0f} MiB, {facts['seconds']:.0f} s)")
    return facts


@contextmanager
def _work_folder(wanted: Image) -> Iterator[Path]:
    """A folder for one build alone, gone afterwards; those of killed builds go first."""
    cache = place = wanted.beside("").parent
    if re.search(r"\s", str(place)):  # debootstrap works in no folder whose name has blanks
        place = Path("/var/tmp")  # noqa: S108
    # The image's lock is its cache's: another cache's builds may lie in /var/tmp, too.
    prefix = f"{wanted.label}.{digest(str(cache))[:8]}-"
    for old in place.glob(f"{prefix}*"):
        if old.stat().st_uid == os.getuid():
            remove(old)
    work = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    try:
        yield work
    except OSError as error:
        if error.errno not in uv.DISK_FULL:
            raise
        raise ParbenchError(f"{place}: the disk is full; {SPACE}") from None
    finally:
        remove(work)


def remove(path: Path) -> None:
    """Remove a folder, also where a killed build left files of its own users in it."""
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        command = ["unshare", "--map-root-user", "--map-auto", "--", "rm", "-rf", str(path)]
        subprocess.run(command, capture_output=True, check=False)


def debootstrap() -> str | None:
    """Where debootstrap lies: ordinary users do not look there."""
    return shutil.which("debootstrap", path=_search_path())


def _search_path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"


# ---------------------------------------------------------------- build


def _build(wanted: Image, settings: dict, work: Path, target: Path) -> None:
    needed = GIB_WITHOUT if wanted.lock is None or wanted.name == "report" else GIB_WITH_TORCH
    free = shutil.disk_usage(work).free / 2**30
    if free < needed:
        raise ParbenchError(
            f"{work.parent}: {free:.1f} GiB are free, building the image {wanted.label} needs "
            f"{needed}; {SPACE}"
        )
    if settings["public_key"]:
        _signing_key()  # before minutes are spent
    arguments = {**dict(wanted.arguments), "key": wanted.key}
    if arguments.get("bootstrap") == "debootstrap" and debootstrap() is None:
        raise ParbenchError(
            f"the image {wanted.label} needs debootstrap: sudo make system (or sudo apt install "
            "debootstrap); or choose images.arguments.bootstrap: docker in config.yaml"
        )
    mirror = settings["arguments"].get("mirror") or machine_mirror()
    if "mirror" in arguments and mirror:
        arguments["mirror"] = mirror
    if wanted.parent is not None:
        arguments["parent"] = str(wanted.parent.path)
    command = ["build", "--fakeroot", "--mksquashfs-args", SQUASHFS]
    for key, value in arguments.items():
        command += ["--build-arg", f"{key}={value}"]
    for mount in _stage(wanted, work / "build", mirror or ""):
        command += ["--mount", mount]
    say(f"image {wanted.label}: building (once; the whole output: {wanted.beside('.log')})")
    if _follow(wanted, [*command, str(target), str(wanted.recipe)], work):
        reason = _reason(wanted.beside(".log").read_text(encoding="utf-8", errors="replace"))
        if lack := apptainer.lacking_subids():  # it may be why, and the log does not say so
            reason += f"\n  this user has {lack}"
        raise ParbenchError(
            f"the image {wanted.label} cannot be built: {reason}\n  recipe: {wanted.recipe}\n"
            f"  log:    {wanted.beside('.log')}\n  Nothing half is left; the next run "
            "builds it again. To train without images: deployment: host in config.yaml"
        )


def machine_mirror() -> str | None:
    """The mirror of Debian's archive that this machine itself uses; None on another system."""
    try:
        system = platform.freedesktop_os_release()
        command = ["apt-get", "indextargets", "--no-release-info"]
        command += ["--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]
        told = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return None
    rows = [line.split() for line in told.splitlines() if line.endswith(" main")]
    mine = [address for address, suite, _ in rows if suite == system.get("VERSION_CODENAME")]
    named = [address for address in mine if address.rstrip("/").endswith("/debian")]
    return next(iter([*named, *mine]), None) if system["ID"] == "debian" else None


def _stage(wanted: Image, build: Path, mirror: str) -> list[str]:
    """Fill the folder that the recipe takes in. Returns the mounts of package indexes on disk."""
    build.mkdir()
    (build.with_name("mirrors")).mkdir()
    for source in (wanted.recipe.parent / "post.sh", *wanted.recipe.parent.glob("*.py")):
        shutil.copy(source, build)
    if wanted.lock is not None:
        shutil.copy(wanted.lock, build / "lock.txt")
        shutil.copy(Path(sys.prefix) / "bin" / "uv", build)
    lines = {"MIRROR": mirror, "SOURCE_DATE_EPOCH": EPOCH, "UV_CACHE_DIR": f"{BUILD_FOLDER}/cache"}
    names = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
    lines |= {name: os.environ[name] for name in names if name in os.environ}
    settings = uv.pip_settings()
    mounts = []
    for key in uv.PLACES:
        words = settings.get(key, "").splitlines()
        for at, word in enumerate(words):
            if path := uv.on_disk(word):
                # An index may point at files beside it: ../../files/...
                whole = path.parent if path.parent != Path("/") else path
                inside = f"{MIRRORS_FOLDER}/{len(mounts)}"
                (build.with_name("mirrors") / str(len(mounts))).mkdir()
                mounts.append(apptainer.mount(whole, inside) + ",ro")
                words[at] = word.replace(str(whole), inside)
        settings[key] = "\n".join(words)
    settings = {key: value for key, value in settings.items() if value}
    if "cert" in settings:
        shutil.copy(settings["cert"], build / "certificates.pem")
        settings["cert"] = f"{BUILD_FOLDER}/certificates.pem"
    lines |= uv.variables(settings)
    # Horovod's builder takes pip.
    lines |= {f"PIP_{key.upper().replace('-', '_')}": value.replace("\n", " ")
              for key, value in settings.items()}  # fmt: skip
    text = "".join(f"export {key}='{value.replace(chr(39), '')}'\n" for key, value in lines.items())
    (build / "machine.sh").write_text(text, encoding="utf-8")
    return mounts


def _follow(wanted: Image, words: list[str], work: Path) -> int:
    """Run Apptainer with ``words``, which take long: all its output in the image's log, a line
    every few seconds for people. Returns its status. Its processes end with this function.
    """
    command = [apptainer.probe().program, *words]
    started = last = time.monotonic()
    log = open(wanted.beside(".log"), "w", encoding="utf-8", errors="replace")  # noqa: SIM115
    with log, subprocess.Popen(
        command, cwd=work, env=_variables(work), stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace", start_new_session=True,
    ) as process:  # fmt: skip
        log.write(f"$ {' '.join(command)}\n")
        try:
            for raw in process.stdout:
                line = re.sub(r"\x1b\[[0-9;]*m", "", raw).rstrip()
                log.write(line + "\n")
                if time.monotonic() - last >= SECONDS_BETWEEN_LINES and line:
                    last = time.monotonic()
                    say(f"  {wanted.name}: {line[:100]} [{last - started:.0f} s]")
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return process.wait()


def _variables(work: Path) -> dict[str, str]:
    (work / "tmp").mkdir(exist_ok=True)
    own = {"APPTAINER_TMPDIR": str(work / "tmp"), "APPTAINER_CACHEDIR": str(work / "cache")}
    own |= {"PATH": _search_path(), "SOURCE_DATE_EPOCH": EPOCH}
    return {**apptainer.clean_environment(), **own}


def _reason(log: str) -> str:
    """The line of a failed build's log that says why."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for pattern in (
        r"error: ",  # ours, uv's, and the compiler's
        r"E: ",  # apt, debootstrap
        r"\w*Error: |AssertionError",  # Python
        r".*No space left",
        r"\w+: cannot |.*: not found$",  # rm, cp; a shell
        r"FATAL|ERROR",
    ):
        for line in lines:
            if re.match(pattern, line):
                return re.sub(r"^(error|ERROR|E|FATAL)\s*:\s*", "", line)[:400]
    return lines[-1][:400] if lines else "it said nothing"


def _pull(wanted: Image, work: Path, target: Path) -> None:
    say(f"image {wanted.label}: fetching {wanted.given}")
    local = re.match(r"oras://(localhost|127\.0\.0\.1)[:/]", wanted.given)
    words = ["pull", *(["--no-https"] if local else []), str(target), wanted.given]
    if _follow(wanted, words, work):
        reason = apptainer.last_error(wanted.beside(".log").read_text("utf-8", errors="replace"))
        raise ParbenchError(
            f"config.yaml: images.given.{wanted.name}: {wanted.given} cannot be fetched: {reason}"
        )


def unpack(wanted: Image, target: Path) -> None:
    """Unpack the image's file to the folder ``target``."""
    with _work_folder(wanted) as work:
        words = ["build", "--sandbox", str(work / "sandbox"), str(wanted.path)]
        if not apptainer.lacking_subids():  # as a root without all rights nothing else works
            words.insert(1, "--fakeroot")
        done = _run(words, _variables(work))
        if done.returncode:
            if re.search("No space left|quota", done.stderr):
                raise ParbenchError(f"{target.parent}: the disk is full; {SPACE}")
            raise ParbenchError(
                f"{wanted.path} cannot be unpacked: {apptainer.last_error(done.stderr)}; "
                "images.unpack: false in config.yaml runs the file itself"
            )
        os.rename(work / "sandbox", target)


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


def _facts(wanted: Image, path: Path) -> dict:
    """Ask the image what it holds."""
    found = apptainer.probe()
    if found.unpacked:  # nothing mounts a file here: unpacked for this one question
        found = dataclasses.replace(found, flags=(*found.flags, "--unsquash"))
    words = [apptainer.PYTHON, "-c", FACTS]
    command, outside = apptainer.enter(found, path, words, binds=[], variables={})
    done = _run(command[1:], {**apptainer.clean_environment(), **outside})
    if done.returncode:
        raise ParbenchError(
            f"the image {wanted.label} ({path}) does not answer {words[0]}: "
            f"{apptainer.last_error(done.stderr)}; is it an image for parbench?"
        )
    return {
        "label": wanted.label,
        "key": wanted.key,
        "given": wanted.given,
        "arguments": {key: value for key, value in wanted.arguments if key != "mirror"},
        "parent": wanted.parent and wanted.parent.label,
        **json.loads(done.stdout.strip().splitlines()[-1]),
    }


def _run(words: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run Apptainer with ``words``, which end soon."""
    return subprocess.run(
        [apptainer.probe().program, *words],
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def _write_bill(wanted: Image, facts: dict) -> None:
    """The image's bill of materials beside it: Python packages by cyclonedx-bom, and Debian's."""
    pins = "".join(f"{name}=={version}\n" for name, version in sorted(facts["packages"].items()))
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", "--output-reproducible"]
    command += ["--spec-version", "1.5", "--of", "JSON", "-o", str(wanted.beside(".cdx.json")), "-"]
    done = subprocess.run(command, input=pins, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ParbenchError(f"{wanted.label}: cyclonedx-py failed: {done.stderr.strip()[-300:]}")
    bill = read_json(wanted.beside(".cdx.json"))
    bill["metadata"]["component"] = {"type": "container", "name": wanted.label}
    for name, version, architecture in facts["debian"]:
        purl = f"pkg:deb/debian/{name}@{version}?arch={architecture}"
        component = {"type": "library", "name": name, "version": version, "purl": purl}
        bill["components"].append({**component, "bom-ref": purl})
    write_json(wanted.beside(".cdx.json"), bill)


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


def _sign(wanted: Image, path: Path) -> None:
    words = ["sign", "--key", str(_signing_key()), str(path)]
    done = _run(words, apptainer.clean_environment())
    if done.returncode:
        raise ParbenchError(
            f"the image {wanted.label} cannot be signed with {words[2]}: "
            f"{apptainer.last_error(done.stderr)}"
        )


def require_signature(wanted: Image, facts: dict, public_key: str) -> None:
    """ParbenchError unless the image is signed by ``public_key``; asked once a file and key."""
    key = wanted.recipe.parent.parent / public_key  # as it is, where it is absolute
    if not key.is_file():
        raise ParbenchError(f"config.yaml: images.public_key: {public_key!r} is no file")
    seal = [*facts["stamp"], sha256_file(key)]
    if facts.get("verified") == seal:
        return
    words = ["verify", "--key", str(key), str(wanted.path)]
    done = _run(words, apptainer.clean_environment())
    if done.returncode:
        mend = (
            "sign it (apptainer sign --key ...)" if wanted.given else "delete it to build it anew"
        )
        raise ParbenchError(
            f"{wanted.path} carries no valid signature of {key} "
            f"(config.yaml: images.public_key): {apptainer.last_error(done.stderr)}; {mend}, or "
            "name the key that signed it"
        )
    write_json(wanted.beside(".json"), {**facts, "verified": seal})
