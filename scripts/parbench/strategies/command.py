"""A user's own program, in any framework, as a side of a pair (docs/versus.md)."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from parbench.cell import TUNING, Options
from parbench.errors import ParbenchError
from parbench.files import digest, sha256_file
from parbench.strategies import _base

if TYPE_CHECKING:
    from parbench.software import Software


def named_files(folder: Path, words: Iterable[str]) -> set[str]:
    """Return the paths, relative to ``folder``, of the files that a command's arguments name."""
    # os.path, since an argument may be too long for a path.
    return {word for word in words if os.path.isfile(os.path.join(folder, word))}


def digest_of(folder: Path, names: Iterable[str]) -> str:
    """Return one digest of the files ``names`` in ``folder``."""
    return digest({name: sha256_file(folder / name) for name in sorted(names)})


class Strategy(_base.Strategy):
    """One process, which starts the program and gives it its turns as the launcher asks."""

    TURNS = "program_turns"
    PAIRS_ONLY = "a user's own program is timed only in turns, as a side of a pair"
    REFUSES: ClassVar[dict[str, str]] = dict.fromkeys(
        TUNING, "a user's own program has its own settings"
    )
    OPTIONS: ClassVar[dict[str, dict]] = {
        "command": {
            "type": "string",
            "description": "the command line, run without a shell; `python` means the Python that "
            "trains cells; name any other by its path",
        },
        "folder": {
            "type": "string",
            "default": ".",
            "description": "the folder in which it runs, relative to the study's folder",
        },
        "files": {
            "type": "array",
            "items": {"type": "string"},
            "default": [],
            "description": "files in its folder that affect what it does, besides those that the "
            "command names",
        },
        "variables": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "default": {},
            "description": "environment variables to set for it",
        },
        "packages": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "default": {},
            "description": "optional packages of parbench's environment that it imports (`make env "
            "ARGS=<name>`), each with a module; its pairs are not run if a module is missing",
        },
        "sha256": {
            "type": "string",
            "default": "",
            "description": "digest of these files, which the plan fills in; if set, it must "
            "match them",
        },
    }

    @classmethod
    def resolved(cls, options: Options, folder: Path, where: str) -> Options:
        """Return ``options`` with the program's folder, relative to the project's, and the digest
        of its files, so that changed files make another cell. Raises ParbenchError."""
        place = Path(folder, options["folder"])
        if not place.is_dir():
            raise ParbenchError(f"{where}: options.folder: {place} is not a folder; correct it")
        try:
            words = shlex.split(options["command"])
        except ValueError as error:
            raise ParbenchError(
                f"{where}: options.command: {options['command']!r}: {error}; close the quotes"
            ) from None
        for name in options["files"]:
            if not (place / name).is_file():
                raise ParbenchError(
                    f"{where}: options.files: there is no file {place / name}; correct it, or "
                    "leave it out"
                )
        names = named_files(place, words) | set(options["files"])
        if not names:
            raise ParbenchError(
                f"{where}: options.command: {options['command']!r} names no file in {place}, so "
                "a change of the program would go unnoticed; set options.files"
            )
        found = digest_of(place, names)
        if options["sha256"] not in ("", found):
            raise ParbenchError(
                f"{where}: options.sha256: {options['sha256']} is set, but the digest of "
                f"{', '.join(sorted(names))} in {place} is {found}; correct it, or leave it out"
            )
        return options | {"folder": str(place), "sha256": found}

    def check(self) -> Iterator[str]:
        """Reject several nodes and weights of another variant."""
        if self.cell.hardware.nodes != 1:
            yield "a user's own program runs on one node; choose hardware with nodes: 1"
        if self.cell.trained_by is not None:
            yield "a user's own program cannot use another variant's weights; remove trained_by"

    def unavailable(self, software: Software) -> str | None:
        """Return why it cannot run in images, or which packages it lacks; None if it can run."""
        packages: dict[str, str] = self.options["packages"]
        missing = (software.without(name, module) for name, module in packages.items())
        return software.without_programs() or next(filter(None, missing), None)

    @classmethod
    def certified(cls) -> Iterator[tuple[int, dict]]:
        """Yield nothing, as it is unknown what a program computes."""
        yield from ()
