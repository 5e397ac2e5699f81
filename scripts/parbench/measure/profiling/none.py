"""The profiler of timed cells, which records nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parbench.measure.metrics_types import OperatorsJson, PhasesJson

NOTHING = nullcontext()


class Profile:
    """The hooks that the training loop calls. Profilers override those they need.

    Created once model and optimizer exist, before warm-up; entered around the timed epochs and the
    evaluations between them. ``run`` is a training.run.Run. All ranks call its methods at the same
    points, so that all methods but ``phase`` may communicate with the other ranks.
    """

    def __init__(self, run: Any):
        self.run = run

    def __enter__(self) -> Profile:
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing to clean up."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Return a context for the phase ``name``.

        While the loop's clock runs, ``other`` is open, and within it ``compute`` (a step's forward
        and backward pass), ``input``, ``update`` (by the optimizer) or ``exchange`` (with other
        ranks). While the clock is stopped, ``inference`` (a test batch) may be open.
        """
        return NOTHING

    def add_stretch(self, own: float, slowest: float) -> None:
        """Record the time since the clock started, called when it stops at an epoch's end or for a
        checkpoint: the seconds of this rank (``own``) and of the ``slowest``, which count.
        """

    def state(self) -> object:
        """Return what a checkpoint stores of the profile of all ranks, as JSON."""
        return None

    def resume(self, state: Any) -> None:
        """Continue from the ``state`` stored in the checkpoint."""

    def result(self) -> PhasesJson | OperatorsJson | None:
        """Return `profile` of metrics.json, after the last epoch."""
        return None
