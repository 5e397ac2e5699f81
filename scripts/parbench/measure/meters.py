"""Measure energy, throttling and memory of all ranks in the timed steps, including those before an
interruption."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from parbench.files import read_text
from parbench.strategies._base import Strategy

if TYPE_CHECKING:
    import torch

    from parbench.measure.metrics_types import DeviceMemoryJson, MemoryJson, PeakMemoryJson

MIB = 2**20


class Meters:
    """What all ranks of ``strategy`` use during ``timed`` steps, including those before an
    interruption.

    Memory is listed for the process first, then for each of its accelerators. Create the ``Meters``
    before data and model are loaded: the memory in use at that time is the baseline. Unknown values
    are NaN.
    """

    def __init__(self, strategy: Strategy):
        self.strategy = strategy
        self._accelerators = [device for device in strategy.devices if device.type == "cuda"]
        self._counted = np.zeros(2)  # this rank's joules and throttled seconds
        self._peaks = [0.0 for _ in self._places()]
        self._baseline = in_use_mib(self._accelerators)
        self._held = {"dataset": self._peaks, "state": self._peaks}

    def _places(self) -> list[torch.device | None]:
        return [None, *self._accelerators]

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Measure energy, throttling and peak memory while the context is open."""
        is_reset = reset_peak(self._accelerators)
        before = counters(self._accelerators)
        yield
        self._counted += counters(self._accelerators) - before
        process, *devices = peak_mib(self._accelerators)
        peaks = [process if is_reset else math.nan, *devices]
        self._peaks = np.maximum(self._peaks, peaks).tolist()

    def hold(self, dataset: Iterable[torch.Tensor], state: Iterable[torch.Tensor]) -> None:
        """Record the memory of the ``dataset`` and of the model's ``state`` between two steps."""
        self._held = {
            name: [mib_of(tensors, device) for device in self._places()]
            for name, tensors in (("dataset", list(dataset)), ("state", list(state)))
        }

    @property
    def own_joules(self) -> float:
        """The energy of this rank's accelerators so far, in joules; NaN if unknown."""
        return float(self._counted[0])

    def totals(self) -> tuple[float | None, float | None]:
        """Return the joules that the accelerators of all ranks used, and the seconds in which power
        or heat limited their clocks; None where any rank's value is unknown."""
        joules, throttled = self.strategy.reduced(self._counted.tolist(), "sum")
        return _known(joules), _known(throttled)

    def keep(self) -> dict:
        """Return what a checkpoint stores for ``resume``, by rank. All ranks must call it."""
        rows = self.strategy.gathered([*self._counted, *self._peaks])
        return {"by_rank": [list(map(_known, row)) for row in rows]}

    def resume(self, kept: dict) -> None:
        """Continue from what a checkpoint stored."""
        row = kept["by_rank"][self.strategy.rank]
        values = [math.nan if value is None else value for value in row]
        self._counted, self._peaks = np.array(values[:2]), values[2:]

    def peak_memory(self) -> PeakMemoryJson:
        """Return `peak_memory_mib` of metrics.json: MiB of every process and accelerator."""
        parts = (self._peaks, self._baseline, self._held["dataset"], self._held["state"])
        width = len(self._accelerators)
        flat = [value for values in parts for value in values]
        processes: list[MemoryJson] = []
        devices: list[DeviceMemoryJson] = []
        for rank, row in enumerate(self.strategy.gathered(flat)):
            for place in range(width + 1):
                peak, baseline, dataset, state = map(_known, row[place :: width + 1])
                entry: MemoryJson = {
                    "rank": rank,
                    "mib": peak,
                    "baseline_mib": baseline,
                    "dataset_mib": dataset,
                    "state_mib": state,
                }
                if place == 0:
                    processes.append(entry)
                else:  # numbered across ranks: with several ranks, each has one device
                    devices.append({"device": f"cuda:{rank * width + place - 1}", **entry})
        return {"processes": processes, "devices": devices}


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Yield all tensors in a value, and its arrays as tensors, at any depth of lists and fields."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, np.ndarray):
        yield torch.from_numpy(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif type(value).__module__.startswith("parbench."):
        yield from tensors_in(list(vars(value).values()))


def mib_of(tensors: Iterable[torch.Tensor], device: torch.device | None) -> float:
    """Return the memory of ``tensors`` on an accelerator, or on the CPU (None), in MiB.

    Of a sharded tensor only this rank's part counts; storage that tensors share counts once.
    """
    sizes = {}
    for tensor in tensors:
        sharded: Any = tensor if hasattr(tensor, "to_local") else None
        local = tensor if sharded is None else sharded.to_local()
        if local.device.type == "cpu" if device is None else local.device == device:
            storage = local.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values()) / MIB


def _status_mib(key: str) -> float:
    """Return the field ``key`` of /proc/self/status, converted from KiB to MiB."""
    fields = dict(line.split(":", 1) for line in read_text("/proc/self/status").splitlines())
    return int(fields[key].split()[0]) / 1024 if key in fields else math.nan


def in_use_mib(accelerators: list[torch.device]) -> list[float]:
    """Return this process's resident memory, then each accelerator's allocations, in MiB."""
    import torch

    return [
        _status_mib("VmRSS"),
        *(torch.cuda.memory_allocated(device) / MIB for device in accelerators),
    ]


def reset_peak(accelerators: list[torch.device]) -> bool:
    """Reset the peaks of this process and the accelerators; return whether the kernel did so.

    A sandbox that emulates /proc does not.
    """
    import torch

    for device in accelerators:
        torch.cuda.reset_peak_memory_stats(device)
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # resets only the peak: proc(5)
    except OSError:
        return False
    return True


def peak_mib(accelerators: list[torch.device]) -> list[float]:
    """Return this process's peak RSS, then each accelerator's peak allocation, in MiB."""
    import torch

    peaks = (torch.cuda.max_memory_allocated(device) / MIB for device in accelerators)
    return [_status_mib("VmHWM"), *peaks]


def counters(accelerators: list[torch.device]) -> np.ndarray:
    """Return joules used and seconds in which power or heat limited clocks, as an array [2].

    Both are NVML's counters, summed over the accelerators; NaN where unknown. CPU cells have no
    energy: a CPU's counter covers the whole package, including other cells.
    """
    unknown = np.full(2, math.nan)
    if not accelerators:
        return unknown
    import torch

    try:
        import pynvml
    except ModuleNotFoundError:  # pynvml is not installed
        return unknown

    def millijoules(card: Any) -> float:
        return pynvml.nvmlDeviceGetTotalEnergyConsumption(card)

    def nanoseconds(card: Any) -> float:
        limits = (pynvml.NVML_PERF_POLICY_POWER, pynvml.NVML_PERF_POLICY_THERMAL)
        status: Any = pynvml.nvmlDeviceGetViolationStatus
        return sum(status(card, of).violationTime for of in limits)

    def total(read: Callable[[Any], float]) -> float:
        try:
            return sum(map(read, cards))
        except pynvml.NVMLError:  # old GPUs and MIG instances lack the counter
            return math.nan

    try:
        pynvml.nvmlInit()
        uuids = [torch.cuda.get_device_properties(device).uuid for device in accelerators]
        cards = [pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}") for uuid in uuids]
    except (AttributeError, pynvml.NVMLError):  # torch 2.1 has no UUID
        return unknown
    return np.array([total(millijoules) / 1e3, total(nanoseconds) / 1e9])
