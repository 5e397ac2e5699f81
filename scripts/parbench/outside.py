"""Explain to users of a Python that lacks packages how to enter parbench's environment.

Standard library only.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
import shlex
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from parbench import cache, variables
from parbench.errors import ParbenchError

ROOT = Path(__file__).resolve().parents[2]
IMAGE = Path("/opt/parbench")  # where images have their Python, see containers/base.def


def is_ours() -> bool:
    """Return whether this Python is that of an environment or image of parbench."""
    prefix = Path(sys.prefix).resolve()
    with contextlib.suppress(ParbenchError):  # a user without a home folder
        return prefix == IMAGE or prefix.parent == (cache.folder() / "envs").resolve()
    return prefix == IMAGE


def require_packages() -> None:
    """Raise ImportError if another Python lacks any of the packages that pyproject.toml names.

    For Snakemake, which imports some of them only after hours.
    """
    if is_ours():
        return
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    names = [re.split(r"[^\w.-]", line)[0] for line in project["dependencies"]]
    for name in list(names):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            importlib.metadata.version(name)
            names.remove(name)
    if names:
        raise ImportError(f"no {', '.join(names)}")


def sentence(error: ImportError, command: Sequence[str]) -> str | None:
    """Return what to type instead of ``command``, which ended with ``error``.

    None if the Python is one of parbench's own, in which something is broken then.
    """
    if is_ours():
        return None
    text = f"error: {sys.executable} lacks packages that parbench needs ({error})"
    folder = "" if Path.cwd().resolve() == ROOT else f" -C {shlex.quote(str(ROOT))}"
    return (
        f"{text}; enter its environment, and type the command again:\n"
        f'  . "$(make -s{folder} env)/bin/activate"\n  {shlex.join(command)}'
    )


def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the exception that ends a program as Python does; or its sentence, and exit with 2."""
    if isinstance(error, KeyboardInterrupt):  # while the program was loading
        return
    # `parbench` looks for its checkout from the working folder upwards.
    is_command = Path(sys.argv[0]).resolve() == variables.PROGRAM
    is_inside = is_command and Path.cwd().is_relative_to(ROOT)
    command = ["parbench", *sys.argv[1:]] if is_inside else ["python", *sys.argv]
    text = sentence(error, command) if isinstance(error, ImportError) else None
    if text is None:
        sys.__excepthook__(kind, error, trace)
    else:
        print(text, file=sys.stderr)
        sys.exit(2)
