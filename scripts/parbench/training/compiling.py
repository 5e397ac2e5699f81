"""torch.compile outside of every clock: where it writes, what it takes, and that it is done."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import torch

from parbench.cell import Cell
from parbench.measure.clocks import Stopwatch

if TYPE_CHECKING:
    from parbench.training.loop import Run

# Of each shape. A GPU's graph is compiled in the first, recorded in the second.
PASSES = 3


@contextlib.contextmanager
def own_cache(cell: Cell) -> Iterator[None]:
    """An empty cache for this process: what is compiled is always compiled anew."""
    if cell.training.compile == "none":
        yield
        return
    if cell.hardware.device == "cpu":  # a device is so many cores, for its compiler, too
        os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(cell.hardware.threads)
    state = os.environ.get("PARBENCH_STATE")
    with tempfile.TemporaryDirectory("", "compiled-", state, ignore_cleanup_errors=True) as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        yield


def compile_all(run: Run, passes: Iterable[Callable[[], object]]) -> float:
    """Do each of ``passes``, of every shape one; from then on a new shape is an error.

    Returns the seconds that the first of each took more than the last, on the slowest rank.
    """
    strategy, seconds = run.strategy, 0.0
    for number, work in enumerate(passes):
        took = []
        for _ in range(PASSES):
            with Stopwatch(strategy.devices) as watch:
                work()
            took.append(watch.seconds)
            run.heartbeat.beat("warm-up", 0, number)
        seconds += max(0.0, took[0] - took[-1])
    torch.compiler.set_stance("fail_on_recompile")
    return strategy.reduced([seconds], "max")[0]
