"""Divide the time of epochs into phases: input, compute, communication, waiting, bubble.

All time within the loop's clock belongs to the innermost open phase, so that a rank's phases sum to
the clock's seconds. Between phases the clock is read after the device has finished its work. This
slows a profiled run, which is therefore kept apart from timed runs.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from parbench.measure.profiling import none

if TYPE_CHECKING:
    import torch
    from torch import nn

    from parbench.measure.metrics_types import PhaseSecondsJson, PhasesJson

PHASES = ("input", "compute", "communication", "waiting", "bubble", "other")
EXCHANGE = "exchange"

Interval = tuple[float, float]  # begin and end, in seconds of this machine's clock


def clock() -> float:
    """Return the seconds of a clock that all processes of a machine share (CLOCK_MONOTONIC)."""
    return time.perf_counter()


class Profile(none.Profile):
    """Measure seconds by phase, of this rank and, in the result, of all ranks.

    A strategy's ``watch`` reports what only the strategy knows: which functions exchange data with
    other ranks (``exchanging``, ``exchanging_in``, or ``enter("exchange")`` when all that remains
    of the current phase is communication), whether its ranks work ``in_turns``, and the stages of a
    pipeline within one process (``watch_stage``).
    """

    def __init__(self, run: Any):
        super().__init__(run)
        # Clocks of different machines are not comparable: with several, lateness is unknown.
        self.one_machine = run.cell.hardware.nodes == 1
        self.in_turns = False  # ranks wait for each other by design: the wait is a bubble
        self._open: list[tuple[str, float]] = []  # open phases and when they began; innermost last
        self._since = 0.0
        self._total: dict[str, float] = dict.fromkeys(PHASES, 0.0)  # until the clock stopped last
        self._busy: dict[str, list[Interval]] = defaultdict(list)  # by pipeline device
        self._put_back = ExitStack()
        run.strategy.watch(self, run.model, run.optimizer)

    def _forget(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._exchanges: list[Interval] = []
        for busy in self._busy.values():
            busy.clear()

    # ------------------------------------------------------------ called by the loop

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Open the phase ``name``; when it ends, all phases entered within it end, too."""
        depth = len(self._open)
        if depth == 0:
            self._forget()  # drop time while the clock was stopped: warm-up, evaluation
        self.enter(name)
        try:
            yield
        finally:
            now = self._charge()
            closed = self._open[depth:]
            self._exchanges += [(begun, now) for phase, begun in closed if phase == EXCHANGE]
            del self._open[depth:]

    def enter(self, name: str) -> None:
        """Open the phase ``name`` until the phase that is open now ends."""
        self._open.append((name, self._charge()))

    def exchanging(self, function: Callable) -> Callable:
        """Return ``function``, which communicates with other ranks, wrapped in the phase exchange.

        A call within an exchange is part of that exchange.
        """

        def exchanged(*given: Any, **named: Any) -> Any:
            # Calls while the clock is stopped do not count.
            if not self._open or any(name == EXCHANGE for name, _ in self._open):
                return function(*given, **named)
            with self.phase(EXCHANGE):
                return function(*given, **named)

        return exchanged

    def exchanging_in(self, module: object, name: str) -> None:
        """Replace ``module.name`` by its ``exchanging`` version until the profile ends."""
        function = getattr(module, name)
        setattr(module, name, self.exchanging(function))
        self._put_back.callback(setattr, module, name, function)

    def __exit__(self, *exception: object) -> None:
        """Restore the functions that ``exchanging_in`` replaced."""
        self._put_back.close()

    def _charge(self) -> float:
        """Add the time since the last call to the innermost phase; return the current time."""
        for device in self.run.strategy.devices:
            wait_for(device)
        now = clock()
        if self._open:
            self._seconds[self._open[-1][0]] += now - self._since
        self._since = now
        return now

    def add_stretch(self, own: float, slowest: float) -> None:
        """Add the seconds by phase since the clock started; ``PHASES`` sum to ``slowest``."""
        seconds, charged = self._seconds, sum(self._seconds.values())
        exchange = seconds[EXCHANGE] + slowest - own  # including the wait for the slowest
        late, final_wait = (self._late(), slowest - own) if self.one_machine else (0.0, 0.0)
        bubble = idle(self._busy)
        by_phase = {
            "input": seconds["input"],
            "compute": seconds["compute"] + seconds["update"] - bubble,
            "communication": exchange - late - final_wait,
            "waiting": final_wait,
            "bubble": bubble,
            "other": seconds["other"] + own - charged,
        }
        by_phase["bubble" if self.in_turns else "waiting"] += late
        for name, value in by_phase.items():
            self._total[name] += value

    def _late(self) -> float:
        """Return the seconds that exchanges spent waiting for a rank that was still computing."""
        # Padded so that all messages have the same length: some ranks have more neighbors.
        most = round(self.run.strategy.reduced([float(len(self._exchanges))], "max")[0])
        spans = [*self._exchanges, *[(0.0, 0.0)] * (most - len(self._exchanges))]
        if not spans:
            return 0.0
        rows = self.run.strategy.gathered([moment for span in spans for moment in span])
        ranks = [list(zip(row[::2], row[1::2], strict=True)) for row in rows]
        if self.in_turns:
            return covered(spans) - together(ranks)
        return waited(spans, [[begun for begun, _ in rank] for rank in ranks])

    # ------------------------------------------------------------ called by a pipeline

    def watch_stage(self, stage: nn.Module, device: torch.device) -> None:
        """Record when ``device`` is busy with ``stage``, forward and backward.

        A micro-batch is one call of ``stage``, with one tensor in and one out.
        """
        busy = self._busy[str(device)]
        forward, backward = Span(device, busy), Span(device, busy)

        def begin(module: nn.Module, inputs: tuple) -> None:
            nonlocal backward
            backward = Span(device, busy)  # of this micro-batch
            forward.begin()

        def took(layer: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
            # Images have no gradient whose arrival would end the first stage's backward pass: it
            # ends with the layers that take them.
            if output.requires_grad and not _need_gradient(inputs):
                for node in _last(output.grad_fn):
                    node.register_hook(backward.end)

        def end(module: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
            forward.end()
            if output.requires_grad:  # not if activations are recomputed later
                output.register_hook(backward.begin)
                if _need_gradient(inputs):
                    inputs[0].register_hook(backward.end)

        stage.register_forward_pre_hook(begin)
        for layer in stage.modules():
            if not list(layer.children()):
                layer.register_forward_hook(took)
        stage.register_forward_hook(end)

    # ------------------------------------------------------------ checkpoints and results

    def state(self) -> list[list[float]]:
        """Return the seconds by rank and phase."""
        return self.run.strategy.gathered([self._total[name] for name in PHASES])

    def resume(self, state: list[list[float]]) -> None:
        """Continue from the seconds of ``state``."""
        self._total = dict(zip(PHASES, state[self.run.strategy.rank], strict=True))

    def result(self) -> PhasesJson:
        """Return the seconds of all epochs by phase, of each rank and as their mean."""
        rows = self.state()
        mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        return {
            "kind": "phases",
            "waiting_known": self.one_machine,
            "mean": _by_phase(mean),
            "ranks": [{"rank": rank, **_by_phase(row)} for rank, row in enumerate(rows)],
        }


def _by_phase(row: list[float]) -> PhaseSecondsJson:
    """Return the seconds in ``row``, which are in the order of ``PHASES``, by phase."""
    input_, compute, communication, waiting, bubble, other = row
    return {
        "input": input_,
        "compute": compute,
        "communication": communication,
        "waiting": waiting,
        "bubble": bubble,
        "other": other,
    }


class Span:
    """Record when ``device`` began and ended a task; each end adds an interval to ``kept``.

    Its methods serve as hooks of modules and tensors: they accept any arguments and return None.
    """

    def __init__(self, device: torch.device, kept: list[Interval]):
        self._device, self._kept = device, kept
        self._begun = float("nan")

    def begin(self, *given: object) -> None:
        """Record that the task has begun."""
        wait_for(self._device)
        self._begun = clock()

    def end(self, *given: object) -> None:
        """Record that the task, or a part of it, has ended."""
        wait_for(self._device)
        self._kept.append((self._begun, clock()))


def _need_gradient(inputs: tuple[torch.Tensor, ...]) -> bool:
    return any(tensor.requires_grad for tensor in inputs)


def _last(node: Any) -> Iterable[Any]:
    """Yield the nodes of a layer's autograd graph that lead only to its weights."""
    waiting, seen = [node], {node}
    while waiting:
        node = waiting.pop()
        further = [
            other
            for other, _ in node.next_functions
            if other is not None and type(other).__name__ != "AccumulateGrad"
        ]
        if not further:
            yield node
        waiting += [other for other in further if other not in seen]
        seen.update(further)


def wait_for(device: torch.device) -> None:
    """Wait for the current stream of ``device`` only: messages may still be in flight."""
    if device.type == "cuda":
        import torch

        torch.cuda.current_stream(device).synchronize()


def waited(exchanges: list[Interval], arrivals: list[list[float]]) -> float:
    """Return the seconds of one rank's ``exchanges`` until the last rank had arrived.

    ``arrivals``: when each rank arrived at each exchange, by rank.
    """
    lasts = map(max, zip(*arrivals, strict=True))
    return sum(
        max(0.0, min(end, last) - begun)
        for (begun, end), last in zip(exchanges, lasts, strict=True)
    )


def idle(busy: dict[str, list[Interval]]) -> float:
    """Return the seconds in which a device idled while another one of the pipeline worked, as the
    mean over devices. Intervals in ``busy`` may overlap; a single device has no bubble.
    """
    any_busy = covered(interval for intervals in busy.values() for interval in intervals)
    return sum(any_busy - covered(intervals) for intervals in busy.values()) / max(1, len(busy))


def together(ranks: list[list[Interval]]) -> float:
    """Return the seconds covered by all ``ranks`` at once; intervals of one do not overlap."""
    moments = [
        moment for spans in ranks for begin, end in spans for moment in ((begin, 1), (end, -1))
    ]
    total, since, active = 0.0, 0.0, 0
    for moment, change in sorted(moments):
        if active == len(ranks):
            total += moment - since
        active, since = active + change, moment
    return total


def covered(intervals: Iterable[Interval]) -> float:
    """Return the seconds covered by any of ``intervals``."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total
