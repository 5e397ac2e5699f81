"""versus.json: a comparison of two programs, as it is kept and gone on with."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import Field

from parbench.errors import ParbenchError
from parbench.files import read_json
from parbench.launch.interleaving import Slice
from parbench.plan.strict_model import validated
from parbench.runs import parts
from parbench.runs.parts import Count, Machine, Moment, Positive, Record, Sha256, Whole
from parbench.strategies.command import digest_of, named_files
from parbench.training.program import Program
from parbench.versus.measuring import KINDS, Kind, Measured, value_of

NAME = "versus.json"
VERSION = 2


class Side(Record):
    """One of the programs."""

    label: str
    command: str
    path: str = Field(description="of what its first word runs")
    sha256: Sha256 = Field(description="digest of the files that the command names, as it began")


def side_of(program: Program) -> Side:
    """Return the record of ``program``, with the digest of its files as they are now. Raises
    ParbenchError for a command without words, or whose quotes do not end."""
    names = named_files(program.folder, program.words)
    return Side(
        label=program.label,
        command=program.command,
        path=program.path,
        sha256=digest_of(program.folder, names),
    )


class KeptSlice(parts.Slice):
    """The turns of one side in a pair, together; a program's samples may be shares."""

    samples: Positive = Field(description="of all ranks")

    def slice(self) -> Slice:
        """Return it as measured."""
        return Slice(**self.model_dump(exclude={"disturbed"}))


class KeptRestart(Record):
    """One restart."""

    of: Kind
    ratio: Positive = Field(description="A's time for a sample over the other's")
    pairs: Whole
    disturbed: Count = Field(description="pairs")
    started: Moment
    finished: Moment
    slices: list[KeptSlice]


class Comparison(Record):
    """All of versus.json."""

    schema_version: Literal[2]
    a: Side
    b: Side
    environment: dict[str, str] = Field(description="variables added to that of both")
    folder: str = Field(description="where both run")
    machine: Machine
    cores: list[Count]
    minutes: Positive = Field(description="the most that it might take, of all runs")
    sentence: str
    verdict: str
    ratio: Positive | None = Field(description="A's time over B's; null before four restarts")
    low: Positive | None
    high: Positive | None
    equal_sides: str
    restarts: list[KeptRestart]

    def measured(self) -> list[Measured]:
        """Return its restarts, as measured."""
        found: list[Measured] = []
        for one in self.restarts:
            checks = one.of == KINDS[True]
            number = sum(each.beside_itself == checks for each in found)
            slices = tuple(each.slice() for each in one.slices)
            ends = map(datetime.fromisoformat, (one.started, one.finished))
            found.append(Measured(checks, value_of(number, slices, *ends), slices))
        return found


def read(folder: Path) -> Comparison:
    """Return what ``folder`` keeps. Raises ParbenchError."""
    path = folder / NAME
    if not path.is_file():
        raise ParbenchError(f"--continue {folder}: has no {NAME}; name a folder that versus wrote")
    anew = "begin anew, without --continue"
    content = read_json(path, anew)
    if not isinstance(content, dict) or content.get("schema_version") != VERSION:
        raise ParbenchError(f"{path}: is of another version of parbench; {anew}")
    try:
        return validated(Comparison, content, str(path))
    except ParbenchError as error:
        raise ParbenchError(f"{error}; or {anew}") from None
