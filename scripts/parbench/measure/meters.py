"""Energy, throttling and memory of all ranks in the timed steps, across interruptions of a
training."""

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

MIB = 2**20


class Meters:
    """Usage of all ranks of ``strategy`` in ``timed`` stretches, plus that before an interruption.

    A process and its accelerators are the places of memory, always in this order. Made before data
    and model are loaded: what a place has in use then is its baseline. What is unknown is NaN.
    """

    def __init__(self, strategy: Strategy):
        self.strategy = strategy
        self._accelerators = [device for device in strategy.devices if device.type == "cuda"]
        self._counted = np.zeros(2)  # of this rank: joules, throttled seconds
        self._peaks = [0.0 for _ in self._places()]
        self._baseline = in_use_mib(self._accelerators)
        self._held = {"dataset": self._peaks, "state": self._peaks}

    def _places(self) -> list[torch.device | None]:
        return [None, *self._accelerators]

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """Count energy, throttling and peak memory of a stretch of steps."""
        is_reset = reset_peak(self._accelerators)
        before = counters(self._accelerators)
        yield
        self._counted += counters(self._accelerators) - before
        process, *devices = peak_mib(self._accelerators)
        peaks = [process if is_reset else math.nan, *devices]
        self._peaks = np.maximum(self._peaks, peaks).tolist()

    def hold(self, dataset: Iterable[torch.Tensor], state: Iterable[torch.Tensor]) -> None:
        """Note the memory of the ``dataset`` and of the model's ``state`` between two steps."""
        self._held = {
            name: [mib_of(tensors, device) for device in self._places()]
            for name, tensors in (("dataset", list(dataset)), ("state", list(state)))
        }

    @property
    def own_joules(self) -> float:
        """The energy of this rank's accelerators so far, in joules; NaN if unknown."""
        return float(self._counted[0])

    def totals(self) -> tuple[float | None, float | None]:
        """Return what the accelerators of all ranks used in joules, and the seconds in which power
        or heat held their clocks down; None where any rank's is unknown."""
        joules, throttled = self.strategy.reduced(self._counted.tolist(), "sum")
        return _known(joules), _known(throttled)

    def keep(self) -> dict:
        """Return what a checkpoint stores for ``resume``, by rank; all ranks call it."""
        rows = self.strategy.gathered([*self._counted, *self._peaks])
        return {"by_rank": [list(map(_known, row)) for row in rows]}

    def resume(self, kept: dict) -> None:
        """Continue from what a checkpoint stored."""
        row = kept["by_rank"][self.strategy.rank]
        values = [math.nan if value is None else value for value in row]
        self._counted, self._peaks = np.array(values[:2]), values[2:]

    def peak_memory(self) -> dict:
        """Return `peak_memory_mib` of metrics.json: for every process and accelerator."""
        parts = {"mib": self._peaks, "baseline_mib": self._baseline}
        parts |= {f"{name}_mib": values for name, values in self._held.items()}
        width = len(self._accelerators)
        flat = [value for values in parts.values() for value in values]
        processes, devices = [], []
        for rank, row in enumerate(self.strategy.gathered(flat)):
            for place in range(width + 1):
                values = map(_known, row[place :: width + 1])
                entry = {"rank": rank, **dict(zip(parts, values, strict=True))}
                if place == 0:
                    processes.append(entry)
                else:  # numbered across ranks: with several ranks, each has one device
                    devices.append({"device": f"cuda:{rank * width + place - 1}", **entry})
        return {"processes": processes, "devices": devices}


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors and arrays that an object of ours holds, at any depth."""
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
    """Return the memory of ``tensors`` on an accelerator, or on the CPU (None), in MiB: of a
    sharded one this rank's part, and storage that several share once."""
    sizes = {}
    for tensor in tensors:
        sharded: Any = tensor if hasattr(tensor, "to_local") else None
        local = tensor if sharded is None else sharded.to_local()
        if local.device.type == "cpu" if device is None else local.device == device:
            storage = local.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values()) / MIB


def _status_mib(key: str) -> float:
    """Return a field of this process's /proc/self/status, which is in KiB, in MiB."""
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
    """Reset the peaks of this process and the accelerators; return whether the kernel did, which a
    sandbox with a /proc of its own does not."""
    import torch

    for device in accelerators:
        torch.cuda.reset_peak_memory_stats(device)
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak alone: proc(5)
    except OSError:
        return False
    return True


def peak_mib(accelerators: list[torch.device]) -> list[float]:
    """Return this process's peak RSS, then each accelerator's peak allocation, in MiB."""
    import torch

    peaks = (torch.cuda.max_memory_allocated(device) / MIB for device in accelerators)
    return [_status_mib("VmHWM"), *peaks]


def counters(accelerators: list[torch.device]) -> np.ndarray:
    """Return, from NVML's counters, the joules that accelerators have used so far, and the seconds
    in which power or heat has held their clocks down (added up over them); NaN where unknown.

    CPU cells have no energy: a CPU's counter covers the whole package, including other cells.
    """
    unknown = np.full(2, math.nan)
    if not accelerators:
        return unknown
    import torch

    try:
        import pynvml
    except ModuleNotFoundError:  # a bare machine
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
        except pynvml.NVMLError:  # an old GPU or a slice (MIG)
            return math.nan

    try:
        pynvml.nvmlInit()
        uuids = [torch.cuda.get_device_properties(device).uuid for device in accelerators]
        cards = [pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}") for uuid in uuids]
    except (AttributeError, pynvml.NVMLError):  # torch 2.1 has no UUID
        return unknown
    return np.array([total(millijoules) / 1e3, total(nanoseconds) / 1e9])
