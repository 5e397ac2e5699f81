"""Run one rank of a side of a pair, which trains or predicts when it is its side's turn.

The launcher sends lines to the standard input; after each turn the rank prints a line. Between
turns a rank waits for a line, never in a collective, and is stopped (SIGSTOP), because some
libraries have threads that stay busy while they wait.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

import torch

from parbench.cell import Pair
from parbench.cell import read as read_cell
from parbench.errors import ParbenchError
from parbench.files import write_json
from parbench.measure import clocks, load
from parbench.strategies._base import Strategy
from parbench.training import compiling, evaluation, infer, launched
from parbench.training.progress import Heartbeat
from parbench.training.run import Run
from parbench.training.set_up import rank_of, set_up


def take_turns(
    pair: Pair, number: int, data_folder: Path, strategy: Strategy, heartbeat: Heartbeat
) -> None:
    """Set up side ``number`` of ``pair`` and take turns until the launcher ends the process."""
    run, environment = set_up(pair.sides[number], data_folder, strategy, heartbeat, of=pair)
    if strategy.leads:
        write_json(Path(os.environ["PARBENCH_STATE"]) / "environment.json", environment)
    helpers: list[int] = []
    if pair.inference:
        if run.training.compile != "none":
            compiling.compile_all(run, evaluation.passes(run))
        step, helpers = infer.engine(strategy).turns(run)
    else:
        step = training_steps(run)

    def turn(steps: int) -> dict:
        report = _timed(step, steps, run, helpers)
        if not pair.inference:
            run.meters.hold(*run.held_tensors())
            report["peak_memory_mib"] = run.meters.peak_memory()
        return report

    # A companion of a compared model is not timed; it only takes its share of the machine.
    compared = run.cell.model.name in {side.model.name for side in pair.sides}
    serve(turn, [os.getpid(), *helpers], compared, strategy.local_rank == 0)


def serve(
    turn: Callable[[int], dict], processes: list[int], compared: bool, leads: bool
) -> NoReturn:
    """Take a turn whenever the launcher sends {"steps": number of timed steps, "stop": {node:
    processes of other sides}}.

    ``turn`` takes the steps and returns what it measured. ``processes``: PIDs to be stopped between
    turns; ``compared``: whether the pair compares the work of this process; ``leads``: whether this
    process is the one on its node that stops the other sides.
    """
    identity = {"rank": int(os.environ["RANK"]), "node": node(), "pids": processes}
    report = identity = identity | {"compared": compared}
    while True:
        print(f"{launched.MARK}{json.dumps(report)}", flush=True)
        given = json.loads(launched.received.get())
        with _others_stopped(given["stop"].get(node(), []), leads):
            report = identity | turn(given["steps"])


def node() -> str:
    """Return this node's name; in tests one machine may play several nodes."""
    return os.environ.get("SLURMD_NODENAME", socket.gethostname())


@contextlib.contextmanager
def _others_stopped(others: list[int], leads: bool) -> Iterator[None]:
    """Stop the processes ``others`` of this node within the context; one rank per node
    ``leads``."""
    with launched.stopping:
        launched.stopped = others if leads else []
        launched.send(signal.SIGSTOP, launched.stopped)
    try:
        yield
    finally:
        launched.send(signal.SIGCONT, launched.stopped)


def _timed(step: Callable[[], int], steps: int, run: Run, helpers: list[int]) -> dict:
    """Time ``steps`` after an untimed one; return samples, seconds, joules and the load.

    Samples are those of all ranks; joules are this rank's, None if unknown. ``helpers``: PIDs of
    processes that work for this one.
    """
    strategy, meters = run.strategy, run.meters
    step()
    before = meters.own_joules
    with meters.timed():
        _barrier(strategy)
        earlier = load.now(helpers)
        with clocks.Stopwatch(strategy.devices) as watch:
            samples = sum(step() for _ in range(steps))
        usage = load.now(helpers) - earlier
    _barrier(strategy)  # the other side must not continue while this one computes
    joules = meters.own_joules - before
    # The counter covers a whole card, which companions may share.
    known = joules > 0 and not strategy.companions  # false for NaN
    report = {"samples": samples, "seconds": watch.seconds, "joules": joules if known else None}
    return report | asdict(usage)


def _barrier(strategy: Strategy) -> None:
    """Wait for the other ranks and for the devices."""
    strategy.reduce(torch.zeros(1, device=strategy.devices[0]))
    clocks.synchronize(strategy.devices)


def training_steps(run: Run) -> Callable[[], int]:
    """Return a function that takes the next step, at a constant learning rate, and returns its
    number of samples. All batches have full size.
    """
    size = run.training.global_batch
    spans = [(start, stop) for start, stop in run.bounds if stop - start == size] or run.bounds
    if run.training.compile != "none":
        compiling.compile_all(run, run.passes(spans))
    batches = run.ahead(
        (order[start:stop], epoch)
        for epoch in itertools.count()
        for order in [run.order(epoch)]
        for start, stop in spans
    )
    torch.manual_seed(run.cell.seed * 1_000_003 + run.strategy.rank)
    run.model.train()

    def step() -> int:
        batch, epoch = next(batches)
        run.step(batch, epoch)
        run.beat("turn")
        return len(batch)

    return step


def run_rank(cell_path: Path, side: int, data: Path) -> None:
    """Run one rank of side number ``side`` of the pair in ``cell_path``, on the dataset in
    ``data``.

    Raises ParbenchError if there is no such side.
    """
    launched.begin()
    pair = read_cell(cell_path)
    if not 0 <= side < len(pair.sides):
        raise ParbenchError(f"--side {side}: {cell_path} has {len(pair.sides)} sides, from 0")
    with rank_of(pair.sides[side]) as (strategy, heartbeat):
        module = importlib.import_module(f"parbench.training.{strategy.TURNS}")
        module.take_turns(pair, side, data, strategy, heartbeat)
