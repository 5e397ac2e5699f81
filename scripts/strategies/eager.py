"""Plain PyTorch on one device: what every other strategy is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import models

if TYPE_CHECKING:
    import torch
    from torch import nn

    from machine import Software
    from strategies import Node

    # Of some samples' logits [N, classes] and labels [N]: the sum, weighted for the batch.
    Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

IMAGE = "torch"  # containers/torch.def
OPTIONS: dict[str, dict] = {}


def processes(cell: dict) -> int:
    """One process."""
    return 1


def beside(cell: dict) -> list[str]:
    """Its own model alone trains."""
    return []


def shares(cell: dict) -> int:
    """The batch stays whole."""
    return 1


def parts(cell: dict) -> int:
    """The batch stays whole."""
    return 1


def stages(cell: dict) -> int:
    """The model stays whole."""
    return 1


def batch_norm(cell: dict) -> str:
    """The batch stays whole."""
    return "the whole batch"


def pipeline_bound(cell: dict) -> float | None:
    """Nothing is a pipeline."""
    return None


def launcher(cell: dict, python: str, node: Node | None = None) -> list[str]:
    """Started as it is."""
    return [python]


def check(cell: dict) -> Iterator[str]:
    """More devices than one would stand idle."""
    if cell["hardware"]["devices"] * cell["hardware"]["nodes"] != 1:
        yield "eager training uses one device; choose hardware with devices: 1 and nodes: 1"


def certified() -> Iterator[tuple[int, dict]]:
    """Itself: it repeats itself, in the precision that is asked for."""
    yield 1, {}


def notes(cell: dict) -> dict[str, str]:
    """Nothing beside its numbers."""
    return {}


def unavailable(cell: dict, software: Software) -> str | None:
    """Why ``software`` cannot run it although the devices are there; nothing is in the way."""
    return None


class Strategy:
    """One process on its device. Other strategies override what differs.

    ``rank`` and ``world_size`` count training processes; ``devices`` are those of this process,
    input on the first, output on the last; ``backend`` is the communication library in use.
    ``companion`` is 0 where the cell's own model trains, else the number of the one beside it.
    """

    backend: str | None = None
    companion = 0
    in_threads = False  # whether it computes in threads that it starts itself

    def __init__(self, cell: dict):
        self.cell = cell
        self.rank = 0
        self.local_rank = 0
        self.world_size = 1
        self.devices: list[torch.device] = []

    def setup(self) -> None:
        """Join the other processes (none here) and choose this process's devices."""
        self.devices = [self.device(self.local_rank)]

    @property
    def leads(self) -> bool:
        """Whether this process tells and writes what comes of the cell."""
        return self.rank == 0 and not self.companion

    def meet(self, what: str, mine: Any = None) -> list | None:
        """Tell the processes of other models that this one is at ``what``, with ``mine`` (JSON).

        Returns what each of them told once all are there, by companion, and None before that.
        """
        return [mine]

    def heard(self, what: str) -> list:
        """What the processes of other models, and this one, have told at ``what`` until now."""
        return []

    def device(self, index: int) -> torch.device:
        """The ``index``-th device of this node that the launcher gave to the cell."""
        import torch

        kind = self.cell["hardware"]["device"]
        return torch.device(kind) if kind == "cpu" else torch.device(kind, index)

    def staged(self, blocks: nn.Sequential) -> nn.Sequential:
        """``blocks`` grouped into this strategy's stages, in the cell's precision."""
        from stages import group
        from strategies import load

        model = self.cell["model"]
        number = load(self.cell["strategy"]["name"]).stages(self.cell)
        cuts = models.load(model["name"]).cuts(number, model["options"])
        training, device_type = self.cell["training"], self.cell["hardware"]["device"]
        return group(blocks, cuts, training["precision"], device_type)

    @property
    def shares(self) -> int:
        """Ranks that divide each global batch among them: all, as each has a whole model."""
        return self.world_size

    @property
    def takes_images(self) -> bool:
        """Whether images go into this rank's part of the model; elsewhere none are made."""
        return True

    @property
    def shows(self) -> bool:
        """Whether this rank shows the progress of all: one of those that know a loss."""
        return self.leads

    def wrap(self, blocks: nn.Sequential) -> nn.Module:
        """The model as it is trained, on this process's devices."""
        return self.staged(blocks).to(self.devices[0])

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The model as it is evaluated: images to logits, or None where another rank has them."""
        return model

    def backward(
        self,
        model: nn.Module,
        images: torch.Tensor,
        labels: torch.Tensor,
        loss: Loss,
        scaler: torch.amp.GradScaler,
    ) -> torch.Tensor:
        """Gradients of the loss of this rank's share of a batch: ``images`` [B, 3, S, S] float32
        on the first device ([B, 0] where it ``takes_images`` not), ``labels`` [B].

        Returns that loss, detached; zero where another rank computes it.
        """
        value = loss(model(images), labels)
        scaler.scale(value).backward()
        return value.detach()

    def optimizer(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> Any:
        """The optimizer as it is stepped."""
        return optimizer

    def watch(self, phases: Any, model: nn.Module, optimizer: Any) -> None:
        """Tell ``phases`` (profiling/phases.py) when this rank only hears from others, and what the
        stages of a pipeline are. Called for cells of that profile alone, before the first step.
        """

    def step(self, optimizer: Any, scaler: torch.amp.GradScaler) -> None:
        """One step; ``scaler`` is disabled unless the precision is fp16."""
        scaler.step(optimizer)
        scaler.update()

    def whole(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The whole model's tensors (weights, buffers, what belongs to them) by name, in its order,
        of which this rank has ``tensors``. All ranks call it, and all get them.
        """
        return tensors

    def part(self, whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The inverse: this rank's part of one of the ``whole`` model's tensors, as of ``like``."""
        return whole

    def reduce(self, values: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """``values`` (any shape, on devices[0]) combined over all ranks, ``op`` sum or max."""
        return values

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Give every rank the buffers (BatchNorm's running statistics) of rank 0."""

    def close(self) -> None:
        """Leave the other processes. Called after the wrapped model is released."""
