"""Run torch.compile while nothing is timed: its cache, its time, a guard against recompiling."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator

import torch

from parbench.cell import Cell
from parbench.measure.clocks import Stopwatch
from parbench.training.progress import BEAT_SECONDS
from parbench.training.run import Run

# Passes for each shape. On a GPU the first compiles the graph and the second records it.
PASSES = 3
# Seconds for which a compiling pass counts as progress: max-autotune tries kernels for minutes.
LIMIT_SECONDS = 3600.0


@contextlib.contextmanager
def own_cache(cell: Cell) -> Iterator[None]:
    """Give this process an empty cache, so that everything is compiled again."""
    if cell.training.compile == "none":
        yield
        return
    # The compiler, too, may use only the cores of this cell.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(torch.get_num_threads())
    state = os.environ.get("PARBENCH_STATE")
    with tempfile.TemporaryDirectory("", "compiled-", state, ignore_cleanup_errors=True) as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        yield


def compile_all(run: Run, passes: Iterable[Callable[[], object]]) -> float:
    """Compile by running each of ``passes``, one per shape; any other shape is then an error.

    Returns how many seconds longer the first passes took than the last ones, on the slowest rank.
    """
    strategy, seconds = run.strategy, 0.0
    for number, run_pass in enumerate(passes):
        durations = []
        for _ in range(PASSES):
            with _heartbeats(run, number), Stopwatch(strategy.devices) as watch:
                run_pass()
            durations.append(watch.seconds)
        seconds += max(0.0, durations[0] - durations[-1])
    torch.compiler.set_stance("fail_on_recompile")
    return strategy.reduced([seconds], "max")[0]


@contextlib.contextmanager
def _heartbeats(run: Run, number: int) -> Iterator[None]:
    """Send heartbeats within the context, for at most LIMIT_SECONDS."""
    ended = threading.Event()

    def beat() -> None:
        for _ in range(int(LIMIT_SECONDS / BEAT_SECONDS)):
            run.heartbeat.beat("warm-up", 0, number)
            if ended.wait(BEAT_SECONDS):
                return

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
