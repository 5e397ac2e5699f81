"""uv: fetched once, by hash; run with pip's own settings, so that a site's mirrors keep working.

Standard library only: this runs on a bare Python, also on one without pip (Debian).
"""

from __future__ import annotations

import base64
import configparser
import hashlib
import html
import io
import os
import platform
import re
import shutil
import ssl
import subprocess
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

from parbench import cache
from parbench.cache import say
from parbench.errors import ParbenchError
from parbench.files import write_atomically

PYPI = "https://pypi.org/simple"
DISK_FULL = (28, 122)  # ENOSPC, EDQUOT
# Settings of other environments that would bend what the lock file says; and modules that are never
# kept compiled would cost every cell ten seconds at its start.
FOREIGN = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "PIP_TARGET",
           "PIP_PREFIX", "PIP_ROOT", "PIP_CONSTRAINT")  # fmt: skip
# pip's settings and what uv calls them; those for places are lists separated by blanks.
NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
PLACES = ("index-url", "extra-index-url", "find-links")


def pip_settings() -> dict[str, str]:
    """pip's settings for package indexes, from its variables and its configuration files.

    Places on this disk that are not there are left out: pip ignores them, and uv does not.
    """
    home = Path.home()
    config_home = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    paths = [Path("/etc/pip.conf"), home / ".pip" / "pip.conf", config_home / "pip" / "pip.conf"]
    parser = configparser.RawConfigParser()
    parser.read([*paths, os.environ.get("PIP_CONFIG_FILE") or os.devnull], encoding="utf-8")
    found = {}
    for section in ("global", "install"):
        found |= dict(parser.items(section)) if parser.has_section(section) else {}
    for key in (*NAMES, "find-links", "no-index"):
        found[key] = os.environ.get("PIP_" + key.upper().replace("-", "_")) or found.get(key, "")
    for key in PLACES:
        # Folders may have blanks in their names; lists of addresses have one a word.
        words = [found[key]] if on_disk(found[key]) else found[key].split()
        words = [word for word in words if on_disk(word) or not _is_path(word)]
        found[key] = "\n".join(words)
    return {key: found[key] for key in (*NAMES, "find-links", "no-index") if found[key]}


def _is_path(word: str) -> bool:
    return word.startswith(("/", "file:"))


def on_disk(word: str) -> Path | None:
    """The folder on this disk that a place of a package index names; None for an address."""
    path = Path(urllib.request.url2pathname(word.removeprefix("file://")))
    return path if _is_path(word) and path.is_dir() else None


def variables(settings: dict[str, str]) -> dict[str, str]:
    """pip's ``settings`` as uv takes them from its environment.

    The best match of all indexes counts, as pip has it; what is locked is checked by hash.
    """
    found = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_PYTHON_DOWNLOADS": "never"}
    found |= {NAMES[key]: value.replace("\n", " ") for key, value in settings.items()
              if key in NAMES}  # fmt: skip
    if "find-links" in settings:
        found["UV_FIND_LINKS"] = settings["find-links"].replace("\n", ",")
    return found


def clean_environment() -> dict[str, str]:
    """This process's variables without those that would bend what a lock file says."""
    kept = {key: value for key, value in os.environ.items() if key not in FOREIGN}
    return {**kept, "PIP_USER": "0"}


def disk_message(folder: Path, needs: str) -> str:
    """One sentence about a full disk."""
    free = shutil.disk_usage(folder).free / 2**30
    return (
        f"{folder}: {free:.1f} GiB are free, the environment {needs};"
        " free some, or point PARBENCH_CACHE at a larger disk"
    )


# ---------------------------------------------------------------- run


def run(program: Path, words: list[str], lock: int) -> None:
    """Run uv; says what it fetches. ParbenchError with its reason in one sentence.

    uv holds ``lock``, too: were this process killed, the next one would wait for uv's end.
    """
    settings = pip_settings()
    # Beside the environments, whose files are hard links to it: a home may be small.
    own = {"UV_CACHE_DIR": str(cache.folder() / "uv" / "cache"), **variables(settings)}
    options = ["--no-index"] if settings.get("no-index", "0") not in ("0", "false", "no") else []
    if words[0] == "pip":
        words = [*words, *(option for option in options if option not in words)]
    process = subprocess.Popen(
        [str(program), *words, "--no-config", "--color", "never"],
        env={**own, **clean_environment()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        pass_fds=(lock,),
    )
    lines = []
    try:
        for line in process.stdout:
            lines.append(line.strip())
            if re.match(r"\s*(Downloading|Building|Prepared|Installed) ", line):
                say(f"  {line.strip()}")
        if process.wait():
            raise ParbenchError(failure("\n".join(lines)))
    finally:
        process.terminate()
        process.wait()


def failure(text: str) -> str:
    """What uv said, in one sentence with what mends it."""
    if re.search(r"No space left|os error 28|os error 122|quota", text, re.IGNORECASE):
        return disk_message(cache.folder(), "needs more")
    if "Hash mismatch" in text:
        name = re.search(r"Hash mismatch for `([^`]+)`", text)
        which = name[1] if name else "a package"
        return (
            f"{which}: the package registry's file is not the locked one (its SHA-256 differs);"
            " nothing of it was installed"
        )
    if re.search(r"error sending request|dns error|Connect|timed? ?out|certificate", text):
        return (
            "the package registry cannot be reached; check the network, or name a mirror in "
            f"PIP_INDEX_URL (uv: {text.splitlines()[-1]})"
        )
    told = [line for line in text.splitlines() if line and not line.startswith(("+", "-", "Down"))]
    return f"uv: {' '.join(' '.join(told[-4:]).split()) or 'failed without a message'}"


# ---------------------------------------------------------------- fetch


def program(lock_file: Path) -> Path:
    """The uv that ``lock_file`` pins, fetched once into the cache; else one on PATH.

    ParbenchError where there is neither.
    """
    text = lock_file.read_text("utf-8")
    pin = re.search(r"^uv==(\S+) \\\n((?:\s+--hash=\S+(?: \\)?\n?)+)", text, re.MULTILINE)
    if pin is None:
        raise ParbenchError(f"{lock_file}: pins no uv; make lock")
    found = cache.folder() / "uv" / pin[1] / "uv"
    if os.access(found, os.X_OK):
        return found
    try:
        content = _fetch(pin[1], set(re.findall("sha256:([0-9a-f]{64})", pin[2])))
    except (OSError, ValueError) as error:
        if on_path := shutil.which("uv"):
            return Path(on_path)
        raise ParbenchError(
            f"uv {pin[1]}, which installs the packages, cannot be fetched ({error}): the package "
            "registry cannot be reached; check the network, or name a mirror in PIP_INDEX_URL"
        ) from None
    with zipfile.ZipFile(io.BytesIO(content)) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".data/scripts/uv"))
        write_atomically(found, wheel.read(name))
    found.chmod(0o755)
    return found


def _fetch(version: str, hashes: set[str]) -> bytes:
    """uv's wheel for this machine: the first offered whose bytes have one of ``hashes``."""
    libc = "manylinux" if platform.libc_ver()[0] == "glibc" else "musllinux"
    system = libc if platform.system() == "Linux" else "macosx"
    pattern = rf"uv-{re.escape(version)}-[^/]*{system}[^/]*_{platform.machine()}\.whl"
    settings = pip_settings()
    context = ssl.create_default_context(cafile=settings.get("cert"))
    for address in _offered(settings, context):
        if re.fullmatch(pattern, Path(urllib.parse.urlsplit(address).path).name):
            say(f"fetching uv {version}, which installs the packages")
            content = _read(address, context)
            if hashlib.sha256(content).hexdigest() not in hashes:
                raise ValueError(f"{address} is not the locked file: its SHA-256 differs")
            return content
    raise ValueError(f"no package index offers uv {version} for this machine")


def _offered(settings: dict[str, str], context: ssl.SSLContext) -> Iterator[str]:
    """Addresses of files of uv; OSError where an index fails and no later one has any."""
    places = [cache.BUNDLE / "wheels", *map(on_disk, settings.get("find-links", "").splitlines())]
    for place in filter(None, places):
        yield from (path.as_uri() for path in place.glob("uv-*"))
    if cache.BUNDLE.is_dir() or settings.get("no-index", "0") not in ("0", "false", "no"):
        return
    problem = None
    others = settings.get("extra-index-url", "").splitlines()
    for index in [settings.get("index-url", PYPI), *others]:
        page = f"{index.rstrip('/')}/uv/"
        try:
            text = _read(page + "index.html" * page.startswith("file:"), context).decode()
        except OSError as error:
            problem = error
            continue
        for link in re.findall(r"""href\s*=\s*["']([^"']+)["']""", text):
            yield urllib.parse.urljoin(page, html.unescape(link))
    if problem:
        raise problem


def _read(address: str, context: ssl.SSLContext) -> bytes:
    """The bytes at an address, which may hold a name and a password. OSError."""
    parts = urllib.parse.urlsplit(address)
    login, _, host = parts.netloc.rpartition("@")
    # The scheme is that of the user's own pip settings; `file:` is a mirror on disk.
    request = urllib.request.Request(parts._replace(netloc=host).geturl())  # noqa: S310
    if login:
        encoded = base64.b64encode(urllib.parse.unquote(login).encode()).decode()
        request.add_header("Authorization", f"Basic {encoded}")
    with urllib.request.urlopen(request, timeout=60, context=context) as answer:  # noqa: S310
        return answer.read()
