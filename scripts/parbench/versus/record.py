"""versus.json: the stored comparison of two programs, which can be continued."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Literal, cast

from pydantic import Field

from parbench.errors import ParbenchError
from parbench.files import read_json
from parbench.launch.interleaving import TimedSlice
from parbench.plan.strict_model import validated
from parbench.runs import parts
from parbench.runs.parts import Count, Machine, Moment, Positive, Record, Sha256, Whole
from parbench.strategies.command import digest_of, named_files
from parbench.training.program import Program
from parbench.versus.measuring import KINDS, Kind, MeasuredRestart, value_of

NAME = "versus.json"
VERSION = 2


class ComparedProgram(Record):
    """One of the two programs."""

    label: str
    command: str
    path: str = Field(description="path of the executable that its command starts")
    sha256: Sha256 = Field(description="digest of the files that the command names, at the start")


def side_of(program: Program) -> ComparedProgram:
    """Return the record of ``program``, with the current digest of its files.

    Raises ParbenchError for an empty command, or one with an unclosed quote.
    """
    names = named_files(program.folder, program.arguments)
    return ComparedProgram(
        label=program.label,
        command=program.command,
        path=program.path,
        sha256=digest_of(program.folder, names),
    )


class KeptSlice(parts.Slice):
    """The combined turns of one side in a pair; a program's samples may be fractions."""

    samples: Positive = Field(  # pyright: ignore[reportIncompatibleVariableOverride]
        description="number of samples of all ranks"
    )

    def slice(self) -> TimedSlice:
        """Return the slice as measuring.py has it."""
        return TimedSlice(**self.model_dump(exclude={"disturbed"}))


class KeptRestart(Record):
    """One restart."""

    of: Kind
    ratio: Positive = Field(description="A's time per sample over the other's")
    pairs: Whole
    disturbed: Count = Field(description="pairs")
    started: Moment
    finished: Moment
    slices: list[KeptSlice]


class ProgramComparison(Record):
    """All of versus.json."""

    schema_version: Literal[2]
    a: ComparedProgram
    b: ComparedProgram
    environment: dict[str, str] = Field(description="variables added to the environment of both")
    folder: str = Field(description="the folder in which both run")
    machine: Machine
    cores: list[Count]
    minutes: Positive = Field(description="the time limits of all runs together")
    sentence: str
    verdict: str
    ratio: Positive | None = Field(description="A's time over B's; null before four restarts")
    low: Positive | None
    high: Positive | None
    equal_sides: str
    restarts: list[KeptRestart]

    def measured(self) -> list[MeasuredRestart]:
        """Return the restarts as measuring.py has them."""
        found: list[MeasuredRestart] = []
        for one in self.restarts:
            checks = one.of == KINDS[True]
            number = sum(each.beside_itself == checks for each in found)
            slices = tuple(each.slice() for each in one.slices)
            ends = map(datetime.fromisoformat, (one.started, one.finished))
            found.append(MeasuredRestart(checks, value_of(number, slices, *ends), slices))
        return found


def read(folder: Path) -> ProgramComparison:
    """Return the comparison stored in ``folder``. Raises ParbenchError if there is no valid one."""
    path = folder / NAME
    if not path.is_file():
        raise ParbenchError(f"--continue {folder}: has no {NAME}; name a folder that versus wrote")
    remedy = "start over without --continue"
    content: object = read_json(path, remedy)
    known = cast("dict[str, object]", content) if isinstance(content, dict) else {}
    if known.get("schema_version") != VERSION:
        raise ParbenchError(f"{path}: was written by another version of parbench; {remedy}")
    try:
        return validated(ProgramComparison, known, str(path))
    except ParbenchError as error:
        raise ParbenchError(f"{error}; or {remedy}") from None
