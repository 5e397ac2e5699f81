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

    def agree(self, found: int | None) -> int | None:
        """``found``, where the others have found a checkpoint, too.

        Else all start afresh: they would be at the same time for a part only. Raises Stopped.
        """
        run, name = self.run, self.run.cell.model.name
        told = self.meet("found", "start-up", {"model": name, "found": found})
        without = [each["model"] for each in told if each["found"] is None]
        if found is None or not without:
            return found
        if run.strategy.rank == 0 and run.store is not None:
            names = f"{' and '.join(without)}, trained at the same time"
            print(f"checkpoint: {name} starts afresh: there is none of {names}", flush=True)
            run.store.clear()
        run.kept = run.place.told()
        return None

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

        Raises CompanionDiverged. What devices use while they wait is no energy of this model.
        """
        run = self.run
        joules = run.meters.joules()
        told = self.meet("trained", "waiting", self.tell_end(seconds))
        self.heed()
        self.others = [each for n, each in enumerate(told) if n != run.strategy.companion]
        run.meters.go_on_from(joules)

    def leave(self) -> None:
        """The first process goes last: it may keep what they meet by."""
        while self.run.strategy.meet("left") is None and not self.run.strategy.companion:
            self.run.beat("waiting")
            time.sleep(MEET_SECONDS)
