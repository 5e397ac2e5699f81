"""Profile a few steps of training and of inference by operator, with torch.profiler.

Only rank 0's process is profiled. Warm-up precedes both recordings, so that neither includes first
allocations or the choice of kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Literal

from parbench.measure import clocks
from parbench.measure.profiling import none

if TYPE_CHECKING:
    import torch
    from torch.profiler import profile

    from parbench.measure.metrics_types import (
        OperatorJson,
        OperatorsJson,
        OperatorTotals,
        ProfiledJson,
    )

STEPS = 5  # training steps, or batches of inference
KEPT = 40  # operators per recording: those with the largest self time by either clock


Part = Literal["training", "inference"]


class Profile(none.Profile):
    """Record the first ``STEPS`` steps of training, and as many batches of the last evaluation.

    A recording ends sooner if its epoch or test set ends or a checkpoint is due; it reports how
    many steps it has.
    """

    def __init__(self, run: Any):
        super().__init__(run)
        self._timed = False
        self._found: dict[Part, ProfiledJson] = {}
        self._profiler: profile | None = None
        self._steps = 0

    def __enter__(self) -> Profile:
        """Begin to record steps, as warm-up is over."""
        self._timed = True
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop the profiler, even if the run ended within a recording."""
        self._end("inference")

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Record a step, from ``compute`` to the end of ``update``, or a test batch as one step."""
        part: Part = "inference" if name == "inference" else "training"
        recording = self._timed and self.run.strategy.rank == 0 and part not in self._found
        if part == "inference":
            recording = recording and self.run.in_last_epoch
        if not recording or name not in ("compute", "update", "inference"):
            return none.NOTHING
        return self._recorded(part, ends_step=name != "compute")

    @contextmanager
    def _recorded(self, part: Part, ends_step: bool) -> Iterator[None]:
        if self._profiler is None:
            self._begin()
        yield
        self._steps += ends_step
        if self._steps == STEPS:
            self._end(part)

    def add_stretch(self, own: float, slowest: float) -> None:
        """End the recording of training, so that none spans two epochs or a checkpoint."""
        self._end("training")

    def _begin(self) -> None:
        devices = self.run.strategy.devices
        with _profiler(devices):  # the first session spends time loading the tracer
            pass
        clocks.synchronize(devices)
        self._profiler = _profiler(devices)
        self._profiler.start()
        self._steps = 0

    def _end(self, part: Part) -> None:
        if self._profiler is None:
            return
        clocks.synchronize(self.run.strategy.devices)
        self._profiler.stop()
        if self._steps:
            on_accelerator = self.run.strategy.devices[0].type != "cpu"
            averages = self._profiler.key_averages()
            self._found[part] = {"steps": self._steps, **summary(averages, on_accelerator)}
        self._profiler = None

    def state(self) -> dict[Part, ProfiledJson]:
        """Return the finished recordings."""
        return self._found

    def resume(self, state: dict[Part, ProfiledJson]) -> None:
        """Keep the finished recordings instead of making them again."""
        self._found = state

    def result(self) -> OperatorsJson:
        """Return both recordings, in seconds."""
        return {
            "kind": "operators",
            "training": self._found.get("training"),
            "inference": self._found.get("inference"),
        }


def _profiler(devices: list[torch.device]) -> profile:
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if devices[0].type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    return profile(activities=activities)


def summary(averages: Any, on_accelerator: bool) -> OperatorTotals:
    """Return totals and operators of torch.profiler's ``averages``; device times None on a CPU.

    Self time excludes the operators that an operator calls: self times add up, totals do not. Work
    on an accelerator counts for the operator that launched it.
    """
    operators: list[OperatorJson] = []
    cpu, device = 0.0, 0.0
    for operator in averages:
        own, whole = _device_times(operator)
        if operator.device_type.name != "CPU":  # a kernel, or a named range's device copy
            device += 0.0 if getattr(operator, "is_user_annotation", False) else own
            continue
        cpu += operator.self_cpu_time_total
        operators.append(
            {
                "name": operator.key,
                "calls": operator.count,
                "cpu_self_seconds": operator.self_cpu_time_total / 1e6,
                "cpu_total_seconds": operator.cpu_time_total / 1e6,
                "device_self_seconds": own / 1e6 if on_accelerator else None,
                "device_total_seconds": whole / 1e6 if on_accelerator else None,
            }
        )
    by_name: dict[str, OperatorJson] = {}
    for seconds_of in (_cpu_seconds, _device_seconds):
        ordered = sorted(operators, key=seconds_of, reverse=True)
        by_name |= {each["name"]: each for each in ordered[:KEPT] if seconds_of(each) > 0}
    return {
        "cpu_self_seconds": cpu / 1e6,
        "device_self_seconds": device / 1e6 if on_accelerator else None,
        "operators": list(by_name.values()),
    }


def _cpu_seconds(operator: OperatorJson) -> float:
    return operator["cpu_self_seconds"]


def _device_seconds(operator: OperatorJson) -> float:
    return operator["device_self_seconds"] or 0.0


def _device_times(each: Any) -> tuple[float, float]:
    """Return (self, total) time on an accelerator, in microseconds."""
    if hasattr(each, "self_device_time_total"):
        return each.self_device_time_total, each.device_time_total
    return each.self_cuda_time_total, each.cuda_time_total  # torch < 2.4
