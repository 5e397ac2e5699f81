"""Run a user's own program as a side of a pair: this rank starts it and passes turns on."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from parbench.cell import Pair
from parbench.files import read_record, write_json
from parbench.measure import cores, environment
from parbench.strategies._base import Strategy
from parbench.training import launched
from parbench.training.pair_rank import serve
from parbench.training.program import Program, ProgramError
from parbench.training.progress import Heartbeat


def take_turns(
    pair: Pair, number: int, data_folder: Path, strategy: Strategy, heartbeat: Heartbeat
) -> None:
    """Start the program of side ``number`` of ``pair`` and let it take turns until the launcher
    ends this process, and with it the program. Raises ProgramError."""
    cell, options = pair.sides[number], strategy.options
    own_cores = cores.pin(0, 1)  # the program inherits them
    state = Path(os.environ["PARBENCH_STATE"])
    mine = launched.place(0, 1, 1)  # the program has ranks of its own
    program = Program(
        "the program",
        options["command"],
        options["variables"],
        state / "program.log",
        cell.run.timeout_seconds,
        folder=Path(options["folder"]),
        hidden=[key for key in os.environ if key in mine or key.startswith("PARBENCH_")],
        patience_key="timeout_seconds in config.yaml",
        looked=lambda: heartbeat.beat("turn"),
    )

    def turn(steps: int) -> dict:
        done, load = program.turn(steps)
        if not done.samples.is_integer():
            raise ProgramError(
                f"{program}: {done.samples} samples in a turn; pass whole numbers to step()"
            )
        report = {"samples": int(done.samples), "seconds": done.seconds, "joules": None}
        return report | asdict(load)

    with _ended_with_launcher(program), program.started(state):
        program.wait_for_step()
        program.send(signal.SIGSTOP)
        rank = program.first_rank
        description = environment.describe(
            pair,
            read_record(data_folder / "digest.json", "sha256")["sha256"],
            world_size=rank.of,
            cores=own_cores,
            side=cell,
        )
        own = {"stack": "the program's own", "lock_mismatch": ["all: it is of no lock"]}
        own |= {"python": rank.python, "packages": rank.packages}
        write_json(state / "environment.json", description | own)
        serve(turn, [os.getpid()], compared=True, leads=True)


@contextmanager
def _ended_with_launcher(program: Program) -> Iterator[None]:
    """End ``program`` when the launcher ends; copy what it printed to the log."""

    def end() -> None:
        if program.process is not None:
            program.end()
        _show(program.log)

    launched.ending.append(end)
    try:
        yield
    except ProgramError:
        if launched.closed.is_set():  # this process ended the program, and ends, too
            threading.Event().wait()
        _show(program.log)
        raise


def _show(log: Path) -> None:
    if log.exists():
        sys.stderr.write(log.read_text("utf-8", "replace"))
        sys.stderr.flush()
