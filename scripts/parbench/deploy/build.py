"""Build an image from its recipe, record what it contains, and unpack it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from parbench.cache import print_message
from parbench.deploy import apptainer, uv
from parbench.deploy.recipes import Image
from parbench.errors import ParbenchError
from parbench.files import digest, read_json, rename_durably, sha256_file, write_json
from parbench.printable import masked

EPOCH = "1704067200"  # 2024-01-01, the time of all files in images, for reproducible builds
# zstd at level 3 takes a third of the default's time; images are a tenth larger.
SQUASHFS = "-comp zstd -Xcompression-level 3 -no-progress"
# Where containers/post.sh finds inputs of the build, and package indexes on this disk.
BUILD_FOLDER, MIRRORS_FOLDER = "/parbench-build", "/parbench-mirrors"
LINES_SHOWN = 15  # of a failed build's log


def make(wanted: Image, mirror: str | None) -> None:
    """Build the image file and write its facts and bill of materials beside it.

    ``mirror``: of Debian; None for that of this machine's apt.
    """
    _build(wanted, mirror or _usable(machine_mirror()) or "")
    content = _held(wanted)
    _write_bill(wanted, content["packages"], content.pop("debian"))
    write_json(
        wanted.beside(".json"),
        {"label": wanted.label, **content, "sha256": sha256_file(wanted.path)},
    )
    print_message(f"image {wanted.label}: ready ({wanted.path.stat().st_size / 2**20:,.0f} MiB)")


def _usable(mirror: str | None) -> str | None:
    """Return apt's ``mirror``; ParbenchError if it has a password, which the image would keep."""
    if mirror is not None and masked(mirror) != mirror:
        raise ParbenchError(
            f"this machine's apt uses a Debian mirror with a user name or password ({mirror}), "
            "which the image would keep; set images.arguments.mirror in config.yaml to another"
        )
    return mirror


def unpack(wanted: Image) -> None:
    """Unpack the image file into the folder beside it, replacing what is there.

    Raises ParbenchError if the file's SHA-256 is not that in the image's facts.
    """
    assert wanted.facts is not None
    known, found = wanted.facts["sha256"], sha256_file(wanted.path)
    if found != known:
        raise ParbenchError(
            f"{wanted.path}: its SHA-256 is {found}, but {wanted.beside('.json').name} beside it "
            f"says {known}: one of them is damaged or from another build; copy both again, or "
            "delete both, and the image will be built on this machine"
        )
    print_message(f"image {wanted.label}: unpacking it, so that every cell starts sooner")
    with _work_folder(wanted) as work:
        arguments = ["build", "--sandbox", f"{work}/sandbox", str(wanted.path)]
        # Needed by a root user without full capabilities.
        if not apptainer.cannot_build(debootstrap=False):
            arguments.insert(1, "--fakeroot")
        fix = "images.unpack: false in config.yaml runs the file"
        _run(wanted, arguments, _variables(work), fix)
        shutil.rmtree(wanted.unpacked, ignore_errors=True)
        record = {"sha256": known, "listing": listing(work / "sandbox")}
        rename_durably(work / "sandbox", wanted.unpacked)
    write_json(wanted.beside(".unpacked.json"), record)


def listing(folder: Path) -> str:
    """Return a digest of the names, sizes and times of all files, and of the targets of links."""
    found = []
    for place, _, names in os.walk(folder):
        for path in (Path(place, name) for name in names):
            status, link = path.lstat(), path.is_symlink() and os.readlink(path)
            entry = [link] if link else [status.st_size, status.st_mtime_ns]
            found.append([os.fsencode(path.relative_to(folder)).hex(), *entry])
    return digest(sorted(found))


@contextmanager
def _work_folder(wanted: Image) -> Iterator[Path]:
    """Yield an empty folder on the cache's disk, which is deleted afterwards.

    The caller must hold the image's lock. What a killed build left there, perhaps gigabytes, is
    deleted first.
    """
    folder = wanted.beside(".work")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(
        mode=0o700
    )  # it will contain the addresses of package indexes, perhaps with tokens
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ---------------------------------------------------------------- build


def _build(wanted: Image, mirror: str) -> None:
    choices = {**dict(wanted.arguments), "key": wanted.key}
    if "mirror" in choices and mirror:
        choices["mirror"] = mirror
    if wanted.parent is not None:
        choices["parent"] = str(wanted.parent.path)
    arguments = ["build", "--fakeroot", "--mksquashfs-args", SQUASHFS]
    for key, value in choices.items():
        arguments += ["--build-arg", f"{key}={value}"]
    log = wanted.beside(".log")
    with _work_folder(wanted) as work:
        for mount in _stage(wanted, work, mirror):
            arguments += ["--mount", mount]
        target = work / "image.sif"
        print_message(
            f"image {wanted.label}: building it (once, some minutes); for its output: tail -f {log}"
        )
        with open(log, "w", encoding="utf-8") as output:
            command = [apptainer.probe().program, *arguments, str(target), str(wanted.recipe)]
            status = uv.run_masked(command, output, cwd=work, env=_variables(work))
        if status:
            end = "\n".join(log.read_text("utf-8", "replace").splitlines()[-LINES_SHOWN:])
            free = shutil.disk_usage(work).free / 2**30
            room = f"\n  free space: {free:.1f} GiB in {work.parent}" * ("No space left" in end)
            raise ParbenchError(
                f"the image {wanted.label} cannot be built:\n{end}{room}\n"
                f"  recipe: {wanted.recipe}\n"
                f"  log:    {log}\n  What building needs: parbench doctor. The next run "
                "builds it again. To train without images: deployment: host in config.yaml"
            )
        rename_durably(target, wanted.path)


def machine_mirror() -> str | None:
    """Return the Debian mirror that this machine's apt uses; None if it uses none."""
    command = ["apt-get", "indextargets", "--no-release-info", "--format", "$(REPO_URI)"]
    command += ["Created-By: Packages", "Release: bookworm", "Component: main"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return None
    return next((line for line in output.split() if line.rstrip("/").endswith("/debian")), None)


def _stage(wanted: Image, work: Path, mirror: str) -> list[str]:
    """Fill the folder that the recipe reads; return `--mount` arguments for indexes on disk."""
    build, mirrors = work / "build", work / "mirrors"
    build.mkdir()
    mirrors.mkdir()
    for source in (wanted.recipe.parent / "post.sh", *wanted.recipe.parent.glob("*.py")):
        shutil.copy(source, build)
    if wanted.lock is not None:
        shutil.copy(wanted.lock, build / "lock.txt")
        shutil.copy(Path(sys.prefix) / "bin" / "uv", build)
    settings, mounts = uv.pip_settings(), []
    for key in filter(settings.get, uv.PLACES):
        addresses = settings[key].split()
        for index, address in enumerate(addresses):
            if address.startswith(("/", "file:")):
                # Its parent, because an index may point at files beside it: ../../files/...
                folder = Path(address.removeprefix("file://")).parent
                inside = f"{MIRRORS_FOLDER}/{len(mounts)}"
                (mirrors / str(len(mounts))).mkdir()
                mounts.append(apptainer.mount(folder, inside) + ",ro")
                addresses[index] = address.replace(str(folder), inside, 1)
        settings[key] = " ".join(addresses)
    if "cert" in settings:
        shutil.copy(settings["cert"], build / "certificates.pem")
        settings["cert"] = f"{BUILD_FOLDER}/certificates.pem"
    exports = {
        "MIRROR": mirror,
        "SOURCE_DATE_EPOCH": EPOCH,
        "UV_CACHE_DIR": f"{BUILD_FOLDER}/cache",
    }
    names = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
    exports |= {name: os.environ[name] for name in names if name in os.environ}
    exports |= uv.uv_variables(settings)
    # Horovod is built with pip.
    exports |= {f"PIP_{key.upper().replace('-', '_')}": value for key, value in settings.items()}
    text = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in exports.items())
    (build / "machine.sh").write_text(text, encoding="utf-8")
    return mounts


def _variables(work: Path) -> dict[str, str]:
    (work / "tmp").mkdir()
    variables = {"APPTAINER_TMPDIR": str(work / "tmp"), "APPTAINER_CACHEDIR": str(work / "cache")}
    variables |= {"PATH": apptainer.BUILD_PATH, "SOURCE_DATE_EPOCH": EPOCH}
    return {**apptainer.clean_environment(), **variables}


# ---------------------------------------------------------------- content

HELD = """
import importlib.metadata as m, json, platform, subprocess
found = {d.metadata["Name"]: d.version for d in m.distributions()}
asked = ["dpkg-query", "-W", "-f", "${Package} ${Version} ${Architecture}\\n"]
debian = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
debian = [line.split() for line in debian]
print(json.dumps({"python": platform.python_version(), "packages": found, "debian": debian}))
"""


def _held(wanted: Image) -> dict:
    """Return the image's {python, packages, debian: [[name, version, architecture]]}."""
    arguments = [apptainer.PYTHON, "-c", HELD]
    command, variables = apptainer.enter(wanted.path, arguments, binds=[], variables={})
    output = _run(wanted, command[1:], variables, f"the recipe installs no {apptainer.PYTHON}")
    return json.loads(output.strip().splitlines()[-1])


def _run(wanted: Image, arguments: list[str], variables: dict[str, str], fix: str) -> str:
    """Run an Apptainer command; return its output, or raise ParbenchError ending in ``fix``."""
    command = [apptainer.probe().program, *arguments]
    done = subprocess.run(
        command,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ParbenchError(
            f"{wanted.path}: apptainer {arguments[0]}: {apptainer.last_error(done.stderr)}; {fix}"
        )
    return done.stdout


def _write_bill(wanted: Image, packages: dict[str, str], debian: list[list[str]]) -> None:
    """Write the bill of materials: cyclonedx-bom's, which has Python packages, plus Debian's."""
    pins = "".join(f"{name}=={version}\n" for name, version in sorted(packages.items()))
    command = [sys.executable, "-m", "cyclonedx_py", "requirements", "--output-reproducible"]
    command += ["--spec-version", "1.5", "--of", "JSON", "-o", str(wanted.beside(".cdx.json")), "-"]
    subprocess.run(command, input=pins, text=True, check=True)
    bill = read_json(wanted.beside(".cdx.json"))
    bill["metadata"]["component"] = {"type": "container", "name": wanted.label}
    for name, version, architecture in debian:
        purl = f"pkg:deb/debian/{name}@{version}?arch={architecture}"
        component = {"type": "library", "name": name, "version": version, "purl": purl}
        bill["components"].append({**component, "bom-ref": purl})
    write_json(wanted.beside(".cdx.json"), bill)
