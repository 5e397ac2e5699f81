"""Run a comparison of two programs, from a user's arguments to the result."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from parbench import machine
from parbench.errors import ParbenchError
from parbench.files import make_folder
from parbench.launch import devices
from parbench.runs.parts import Machine
from parbench.training.program import Program
from parbench.versus import record
from parbench.versus.measuring import RESTARTS, compare, is_decided, minutes_left
from parbench.versus.page import Result
from parbench.versus.record import ComparedProgram, ProgramComparison


def cores_of(text: str | None) -> list[int]:
    """Return the cores that ``text`` lists, such as 0,1; if None, all that may be used. Raises
    ParbenchError for any other core."""
    usable = machine.usable_cores()
    if text is None:
        return usable
    listed = text.split(",")
    for name in listed:
        if not name.isdecimal() or int(name) not in usable:
            raise ParbenchError(
                f"--cores {text}: {name!r} is not a core that this process may use; it may use "
                f"{', '.join(map(str, usable))}"
            )
    return sorted(set(map(int, listed)))


def variables(entries: list[str]) -> dict[str, str]:
    """Return the values of ``NAME=VALUE`` entries by name. Raises ParbenchError."""
    for entry in entries:
        if not entry.partition("=")[0] or "=" not in entry:
            raise ParbenchError(f"--env {entry}: write NAME=VALUE")
    return dict(entry.split("=", 1) for entry in entries)


@dataclass(frozen=True)
class VersusRequest:
    """What to compare: the commands and their labels, the folder and variables with which they run,
    the cores of both, and the folder of the result."""

    commands: tuple[str, str]
    labels: tuple[str, str]
    folder: Path
    variables: dict[str, str]
    cores: list[int]
    out: Path


def new_request(
    commands: tuple[str, str],
    labels: tuple[str, str],
    entries: list[str],
    cores: str | None,
    out: Path | None,
) -> VersusRequest:
    """Return a new comparison of two ``commands``, which run in the current folder.

    ``entries``: variables of both, NAME=VALUE; ``cores``: as for ``cores_of``; ``out``: the folder
    of the result, by default a new one in results/versus. Raises ParbenchError.
    """
    if labels[0] == labels[1]:
        raise ParbenchError(f"--label {shlex.join(labels)}: give two different labels")
    default = Path(f"results/versus/{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}")
    return VersusRequest(
        commands, labels, Path.cwd(), variables(entries), cores_of(cores), out or default
    )


def continued_request(folder: Path) -> VersusRequest:
    """Return the comparison whose result is in ``folder``. Raises ParbenchError if it cannot be
    continued on this machine."""
    kept = record.read(folder)
    missing = set(kept.cores) - set(machine.usable_cores())
    if kept.machine.fingerprint != machine.describe()["fingerprint"] or missing:
        raise ParbenchError(
            f"--continue {folder}: was measured on another machine, or on cores that this process "
            f"may not use ({kept.machine.cpu}, cores {', '.join(map(str, kept.cores))}); start "
            "over without --continue"
        )
    if not Path(kept.folder).is_dir():
        raise ParbenchError(
            f"--continue {folder}: its programs ran in {kept.folder}, which is not a folder; "
            "restore it, or start over without --continue"
        )
    return VersusRequest(
        (kept.a.command, kept.b.command),
        (kept.a.label, kept.b.label),
        Path(kept.folder),
        kept.environment,
        kept.cores,
        folder,
    )


def earlier_result(
    folder: Path, sides: tuple[ComparedProgram, ComparedProgram]
) -> ProgramComparison:
    """Return the comparison in ``folder``. Raises ParbenchError unless it is of the same
    ``sides``."""
    kept = record.read(folder)
    for now, then in zip(sides, (kept.a, kept.b), strict=True):
        if now != then:
            raise ParbenchError(
                f"--continue {folder}: {then.label} ({then.command}) differs from before: "
                f"a file that the command names has changed, or it ran {then.path} and would run "
                f"{now.path}; start over without --continue"
            )
    return kept


def run(request: VersusRequest, minutes: float, patience: float, *, continues: bool) -> None:
    """Compare for at most ``minutes``, write the result and print it. Raises ParbenchError.

    ``patience``: seconds to wait for a first step, or for a turn; ``continues``: whether to add to
    the existing result.
    """
    # No single wait may exceed the time for the whole comparison.
    patience, patience_key = min((60 * minutes, "--minutes"), (patience, "--patience"))
    programs = [
        Program(
            label,
            command,
            request.variables,
            request.out / f"{side}.log",
            patience,
            folder=request.folder,
            patience_key=patience_key,
        )
        for label, command, side in zip(request.labels, request.commands, "ab", strict=True)
    ]
    a, b = map(record.side_of, programs)
    make_folder(request.out)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # ends both programs
    with devices.lock_cores_and_gpus(request.cores, "versus"):
        # Read only now, as another comparison may have added restarts while this one waited.
        kept = earlier_result(request.out, (a, b)) if continues else None
        earlier, taken = (kept.measured(), kept.minutes) if kept else ([], 0.0)
        os.sched_setaffinity(0, request.cores)  # both programs inherit it
        first, second = programs
        found = compare(first, second, minutes, lambda line: print(line, flush=True), earlier)
    if len(found) > len(earlier):
        taken += minutes
    result = Result(
        *(a, b, request.variables, str(request.folder), found),
        *(Machine.model_validate(machine.describe()), request.cores, taken),
    )
    page = result.write(request.out)
    print(f"\n{result.sentence}\nA beside itself: {result.equality}\n{page}")
    if not result.equal_sides.biased:
        least = minutes_left(found)
        more = max(5 if is_decided(found) else 15, least)
        arguments = f"--continue {shlex.quote(str(request.out))} --minutes {more}"
        purpose = "narrow the interval" if is_decided(found) else "add restarts"
        if len(found) < RESTARTS:
            purpose += f" (the fewest that can decide take {least} min; it may take more)"
        print(f"To {purpose}: parbench versus {arguments}")
