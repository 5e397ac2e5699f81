"""Energy and peak memory of all ranks, over the interruptions of a training."""

from __future__ import annotations

from parbench.measure import energy, memory
from parbench.strategies._base import Strategy


class Meters:
    """Begins when ``start`` is called; ``resume`` adds what earlier parts of the training used."""

    def __init__(self, strategy: Strategy):
        self.strategy = strategy
        self._joules: float | None = 0.0
        self._peaks: list[list[float]] = []

    def start(self) -> None:
        """Forget what setting up and warm-up took."""
        memory.reset_peak(self.strategy.devices)
        self._energy = energy.Energy(self.strategy.devices)

    def joules(self) -> float | None:
        """Energy of all ranks; None where any of it is not known."""
        mine = self._energy.joules()
        total, missing = self.strategy.reduced([mine or 0.0, float(mine is None)], "sum")
        return None if missing or self._joules is None else self._joules + total

    def peaks(self) -> list[list[float]]:
        """Peak memory in MiB of each rank: of its process, then of its accelerators."""
        process, accelerators = memory.peak_mib(self.strategy.devices)
        now = self.strategy.gathered([process, *accelerators])
        return [list(map(max, *rows)) for rows in zip(self._peaks or now, now, strict=True)]

    def keep_peaks(self) -> list[list[float]]:
        """Note the peaks until now, which ``forget_accelerators`` would lose."""
        self._peaks = self.peaks()
        return self._peaks

    def forget_accelerators(self) -> None:
        """Leave out what accelerators held since ``keep_peaks``. A process's own peak stays."""
        memory.reset_peak(self.strategy.devices)

    def resume(self, joules: float | None, peaks: list[list[float]]) -> None:
        """Go on from what a checkpoint has kept."""
        self._joules, self._peaks = joules, peaks

    def peak_memory(self) -> dict:
        """`peak_memory_mib` of metrics.json: of every process and accelerator."""
        rows = list(enumerate(self.peaks()))
        return {
            "processes": [{"rank": rank, "mib": row[0]} for rank, row in rows],
            # A rank's devices are numbered from its own: several ranks have one each.
            "devices": [
                {"device": f"cuda:{rank * (len(row) - 1) + index}", "rank": rank, "mib": mib}
                for rank, row in rows
                for index, mib in enumerate(row[1:])
            ],
        }
