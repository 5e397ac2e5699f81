"""No instrument: what timed cells have."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

NOTHING = nullcontext()


class Profile:
    """The hooks that the training loop calls. Instruments override those they need.

    Made when model and optimizer are there, before warm-up; entered around the timed epochs, with
    the evaluations between them. ``run`` is the loop.Run. All ranks have one, and call its methods
    at the same points, so that any of them but ``phase`` may talk to the other ranks.
    """

    def __init__(self, run: Any):
        self.run = run

    def __enter__(self) -> Profile:
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing to clean up."""

    def phase(self, name: str) -> AbstractContextManager:
        """What the loop does now, within its clock: ``other`` (all of it), and inside of that
        ``compute`` (a step, forwards and backwards), ``input``, ``update`` (by the optimizer) and
        ``exchange`` (with other ranks). Outside of the clock, ``inference`` is a batch that is
        tested.
        """
        return NOTHING

    def settle(self, own: float, slowest: float) -> None:
        """The clock stopped, for an epoch's end or a checkpoint: seconds of this rank, and of the
        slowest one, which count.
        """

    def state(self) -> Any:
        """What a checkpoint keeps of it, as JSON, of all ranks."""
        return None

    def resume(self, state: Any) -> None:
        """Go on from what ``state`` said when the checkpoint was written."""

    def result(self) -> dict | None:
        """`profile` of metrics.json, after the last epoch."""
        return None
