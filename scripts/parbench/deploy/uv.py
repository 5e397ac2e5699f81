"""Install uv into the cache, pinned by the lock file, and run it with pip's settings.

Standard library only, since this runs on a bare Python.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, TextIO

from parbench import cache, distribution, variables
from parbench.errors import ParbenchError
from parbench.files import read_text
from parbench.printable import masked

# pip's settings for where packages come from, and uv's variables for the same.
NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
}
NO_INDEX = "no-index"  # for which uv has only an option
# uv's own variables that may stay: for where packages come from, and for its cache. Others, such as
# UV_PYTHON or UV_CONSTRAINT, would install something other than the lock file.
KEPT = re.compile(
    r"UV_(INDEX.*|DEFAULT_INDEX|EXTRA_INDEX_URL|FIND_LINKS|INSECURE_HOST|HTTP_.*|"
    r"REQUEST_.*|RETRIES|NATIVE_TLS|SYSTEM_CERTS|SSL_.*|KEYRING_PROVIDER|CREDENTIALS_DIR|OFFLINE|"
    r"CACHE_DIR|NO_CACHE|LINK_MODE|CONCURRENT_.*|LOCK_TIMEOUT)"
)
PLACES = ("index-url", "extra-index-url", "find-links")  # lists, separated by blanks
HELP = (
    "the reason is above. Without network, or with a mirror: set PIP_INDEX_URL; if the disk is "
    "full: set PARBENCH_CACHE to a folder on a larger one"
)


def pip_settings() -> dict[str, str]:
    """Return pip's settings for package indexes, from its files and variables, by pip's names."""
    # Not without_foreign(), which removes them.
    command = [sys.executable, "-m", "pip", "config", "list"]
    text = subprocess.run(
        command,
        env=variables.clean(),
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    ).stdout
    settings: dict[str, str] = {}
    for section in ("global", "install", ":env:"):
        for key, value in re.findall(rf"^{section}\.([a-z-]+)=(.*)$", text, re.MULTILINE):
            settings[key.removeprefix("default-")] = ast.literal_eval(value)
    return {key: settings[key] for key in (*NAMES, NO_INDEX) if settings.get(key)}


def uv_variables(settings: dict[str, str]) -> dict[str, str]:
    """Return uv's environment variables for pip's ``settings``.

    As with pip, the best match of all indexes is used; the lock file's hashes exclude any others.
    """
    value_by_name = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_PYTHON_DOWNLOADS": "never"}
    value_by_name |= {NAMES[key]: value for key, value in settings.items() if key in NAMES}
    if "find-links" in settings:
        value_by_name["UV_FIND_LINKS"] = settings["find-links"].replace(" ", ",")
    return value_by_name


def installer_environment() -> dict[str, str]:
    """Return the variables for pip and uv, with only their settings for where packages come from.

    Others (require-virtualenv, user, target; UV_PYTHON, UV_CONSTRAINT), also in pip's files, would
    make them install into another place, other packages or nothing.
    """
    settings = {
        f"PIP_{key.upper().replace('-', '_')}": value for key, value in pip_settings().items()
    }
    kept = {
        key: value
        for key, value in variables.without_foreign().items()
        if not key.startswith("PIP_") and (not key.startswith("UV_") or KEPT.fullmatch(key))
    }
    return {**kept, **settings, "PIP_CONFIG_FILE": os.devnull}


def run_masked(command: list[str], output: TextIO, **options: Any) -> int:
    """Run a program and return its status; ``options`` are Popen's.

    Everything that it prints goes to ``output``, line by line, with credentials in addresses
    masked: uv and pip mask only those in well-formed addresses.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
    text = {"text": True, "encoding": "utf-8", "errors": "replace"}
    with subprocess.Popen(command, **pipes, **text, **options) as process:
        assert process.stdout is not None
        for line in process.stdout:
            output.write(masked(line))
            output.flush()
    return process.returncode


def run(program: Path, arguments: list[str]) -> None:
    """Run uv, which prints its own errors; raise ParbenchError if it fails."""
    # The cache is on the environments' disk, because their files are hard links into it.
    settings = pip_settings()
    environment = {
        "UV_CACHE_DIR": str(cache.folder() / "uv" / "cache"),
        **uv_variables(settings),
        **installer_environment(),
    }
    if settings.get(NO_INDEX) in ("1", "true", "yes", "on") and arguments[0] == "pip":
        arguments = arguments if "--no-index" in arguments else [*arguments, "--no-index"]
    command = [str(program), *arguments, "--no-config", "--quiet"]
    if run_masked(command, sys.stderr, env=environment):
        raise ParbenchError(f"uv cannot install the packages; {HELP}")


def program(lock_file: Path) -> Path:
    """Return the path of the uv that ``lock_file`` pins; pip fetches it once, with its hashes."""
    text = read_text(lock_file)
    pin = re.search(r"^uv==(\S+) \\\n(?:\s+--hash=\S+(?: \\)?\n?)+", text, re.MULTILINE)
    if pin is None:
        raise ParbenchError(f"{lock_file}: uv is not pinned; run: make lock")
    folder = cache.folder() / "uv" / pin[1]
    path = folder / "bin" / "uv"
    if os.access(path, os.X_OK):
        return path
    cache.print_message(f"fetching uv {pin[1]}, which installs the packages")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "uv.txt").write_text(pin[0], "utf-8")
    arguments = ["install", "--quiet", "--no-input", "--disable-pip-version-check", "--no-deps"]
    arguments += ["--require-hashes"]
    arguments += ["--upgrade", "--target", str(folder), "--requirement", str(folder / "uv.txt")]
    if cache.BUNDLE.is_dir():
        arguments += ["--no-index", "--find-links", str(cache.BUNDLE / "wheels")]
    command = [sys.executable, "-m", "pip", *arguments]
    if run_masked(command, sys.stderr, env=installer_environment()):
        raise ParbenchError(
            f"pip cannot fetch uv {pin[1]}, which installs the packages; {HELP}; no pip: "
            f"{distribution.install('pip')}"
        )
    return path
