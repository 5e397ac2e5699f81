"""Coordinate the processes of models that train at the same time (strategy concurrent).

With any other strategy a process has no companions, and never waits for one.
"""

from __future__ import annotations

import time
from typing import TypedDict

from parbench.training import snapshot
from parbench.training.endings import CompanionDiverged, Stopped
from parbench.training.run import Run

POLL_SECONDS = 0.02  # between two checks for the arrival of others


class EndMessage(TypedDict):
    """A process's message that its training ended; ``problem``: why it diverged, or None."""

    model: str
    train_seconds: float | None
    problem: str | None


class Companions:
    """The models that train beside that of ``run``."""

    def __init__(self, run: Run):
        self.run = run
        self.others: list[EndMessage] = []  # their results, set once all have ended

    def wait_for_all(self, what: str, phase: str, message: object = None) -> list:
        """Wait until all processes have reached ``what``; return the message of each.

        ``message``: this process's message, JSON. Raises Stopped or CompanionDiverged.
        """
        run = self.run
        while (messages := run.strategy.exchange_messages(what, message)) is None:
            self.check()
            run.beat(phase)
            if (
                run.checkpoint_timer.due(phase) and run.place.json() != run.kept
            ):  # else nothing is new
                snapshot.write(run)
            if run.checkpoint_timer.stop:
                raise Stopped
            time.sleep(POLL_SECONDS)
        return messages

    def check(self) -> None:
        """Raise CompanionDiverged if another process has announced that it diverged."""
        for message in self.run.strategy.messages("trained"):
            if message["problem"] is not None:
                raise CompanionDiverged(
                    f"{message['model']}, trained at the same time: {message['problem']}"
                )

    def end_message(self, seconds: float | None, problem: str | None = None) -> EndMessage:
        """Return the message that announces the end of this training."""
        name = self.run.cell.model.name
        return {"model": name, "train_seconds": seconds, "problem": problem}

    def end_together(self, seconds: float) -> None:
        """Wait after the last step until all have finished, since no device is free before that.

        Raises CompanionDiverged.
        """
        messages = self.wait_for_all("trained", "waiting", self.end_message(seconds))
        self.check()
        self.others = [
            message for n, message in enumerate(messages) if n != self.run.strategy.companion
        ]
