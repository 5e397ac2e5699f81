"""Set up a rank before it trains or predicts, and close it afterwards."""

from __future__ import annotations

import contextlib
import gc
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from parbench import strategies
from parbench.cell import Cell, Pair
from parbench.measure import cores, environment, steering
from parbench.strategies._base import Strategy
from parbench.training import compiling
from parbench.training.progress import Heartbeat
from parbench.training.run import Run

if TYPE_CHECKING:
    from parbench.measure.metrics_types import EnvironmentJson


def prepare(cell: Cell) -> None:
    """Apply the settings of ``cell`` that affect the whole process."""
    if cell.hardware.device == "cpu":
        torch.set_num_threads(cell.hardware.threads)
    torch.backends.cuda.matmul.allow_tf32 = cell.training.tf32.matmul
    torch.backends.cudnn.allow_tf32 = cell.training.tf32.convolutions
    torch.backends.cudnn.benchmark = cell.training.cudnn_benchmark
    if cell.training.mode == "deterministic":
        # An operator without a deterministic algorithm then raises an error.
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # cuBLAS reads it when it starts
        torch.use_deterministic_algorithms(True)


def set_up(
    cell: Cell, data_folder: Path, strategy: Strategy, heartbeat: Heartbeat, of: Pair | None = None
) -> tuple[Run, EnvironmentJson]:
    """Join the other ranks; return the Run and `environment` for metrics.json.

    ``of``: the pair of which ``cell`` is a side, if any; its environment is then described.
    """
    prepare(cell)
    heartbeat.beat("start-up")
    if cell.hardware.device == "cuda":
        steering.log_nccl()
    strategy.setup()
    own_cores = cores.pin(strategy.local_rank, strategy.ranks_per_node)
    cell = replace(cell, model=strategy.model)
    run = Run(cell, data_folder, strategy, heartbeat)
    run.data.require_every_class()
    all_cores = _all_cores(run, own_cores)  # this collective also makes NCCL connect the ranks
    description = environment.describe(
        of or cell,
        run.data.sha256,
        world_size=strategy.world_size,
        backend=strategy.backend,
        cores=all_cores,
        side=cell if of else None,
    )
    return run, description


def _all_cores(run: Run, own: list[int]) -> list[int]:
    """Return the cores of all ranks, in rank order."""
    most = round(run.strategy.reduced([float(len(own))], "max")[0])
    rows = run.strategy.gathered([float(core) for core in own] + [math.nan] * (most - len(own)))
    return [int(core) for row in rows for core in row if not math.isnan(core)]


@contextlib.contextmanager
def rank_of(cell: Cell) -> Iterator[tuple[Strategy, Heartbeat]]:
    """Provide a rank's strategy and heartbeat; close the strategy, or report the error."""
    strategy = strategies.of(cell)
    heartbeat = Heartbeat(int(os.environ.get("RANK", "0")))
    try:
        with compiling.own_cache(cell):
            yield strategy, heartbeat
        gc.collect()  # release the wrapped model before its process group (_process_group.py)
        strategy.close()
    except BaseException as error:
        heartbeat.report_error(error)
        raise
