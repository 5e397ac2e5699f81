"""What the processes of models that train at the same time tell each other (strategy concurrent).

Every other strategy meets itself alone, at once.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from parbench.training import snapshot
from parbench.training.endings import CompanionDiverged, Stopped

if TYPE_CHECKING:
    from parbench.training.loop import Run

MEET_SECONDS = 0.02  # between two looks whether the others have come as far


class Companions:
    """The other models, as the process of ``run`` hears of them."""

    def __init__(self, run: Run):
        self.run = run
        self.others: list[dict] = []  # what came of them, once all have ended

    def meet(self, what: str, phase: str, mine: Any = None) -> list:
        """Wait until all are at ``what``; returns what each of them told there, ``mine`` among it.

        Raises Stopped, and CompanionDiverged.
        """
        run = self.run
        while (told := run.strategy.meet(what, mine)) is None:
            self.heed()
            run.beat(phase)
            if run.lookout.due(phase) and run.scheduler is not None:  # before: nothing to keep
                snapshot.write(run)
            if run.lookout.stop:
                raise Stopped
            time.sleep(MEET_SECONDS)
        return told

    def heed(self) -> None:
        """CompanionDiverged where another one has said that it did."""
        for each in self.run.strategy.heard("trained"):
            if each["trouble"] is not None:
                raise CompanionDiverged(
                    f"{each['model']}, trained at the same time: {each['trouble']}"
                )

    def tell_end(self, seconds: float | None, trouble: str | None = None) -> dict:
        """What the others hear of this one's end."""
        name = self.run.cell.model.name
        return {"model": name, "train_seconds": seconds, "trouble": trouble}

    def end_together(self, seconds: float) -> None:
        """After the last step: the devices of all are in use until all have done theirs.

        Raises CompanionDiverged.
        """
        told = self.meet("trained", "waiting", self.tell_end(seconds))
        self.heed()
        self.others = [each for n, each in enumerate(told) if n != self.run.strategy.companion]
