"""What a strategy is. The defaults fit one process on one device; a strategy's file holds one class
``Strategy`` that derives from this one, and says only what differs.

No torch at module level: the workflow reads strategies when it is parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from parbench import models
from parbench.cell import Cell, Model
from parbench.errors import ParbenchError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from parbench.machine import Software

    # Of some samples' logits [N, classes] and labels [N]: the sum, weighted for the batch.
    Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Strategy:
    """How ``cell`` uses its devices: asked by the plan, and at work in each rank.

    ``rank`` and ``world_size`` count training processes; ``devices`` are those of this process,
    input on the first, output on the last; ``backend`` is the communication library in use. They
    hold after ``setup``, and so do ``model``, which this process trains, and ``companion``: 0 where
    that is the cell's own model, else the number of the companion.
    """

    IMAGE = "torch"  # containers/torch.def
    TEXT_IMAGE = "text"  # for models of texts
    ENGINE = "evaluation"  # parbench/training/<name>.py: predicts the test set
    TAKES_TURNS = True  # whether it can be a side of a pair
    EXACT = "float64"  # the arithmetic in which it must equal eager training but for rounding
    # A JSON schema, with a default, for each option; of an `implied` one the default is left out of
    # cells, so that those from before there was such an option keep their ids.
    OPTIONS: ClassVar[dict[str, dict]] = {}
    REFUSES: ClassVar[dict[str, str]] = {}  # of cell.TUNING what it cannot take, and why

    def __init__(self, cell: Cell):
        self.cell = cell
        usual = {key: part["default"] for key, part in self.OPTIONS.items() if "default" in part}
        self.options = usual | cell.strategy.options
        self.model: Model = cell.model
        self.rank = 0
        self.local_rank = 0
        self.world_size = 1
        self.companion = 0
        self.devices: list[torch.device] = []
        self.backend: str | None = None

    # ------------------------------------------------------------ asked by the plan

    @property
    def ranks_per_node(self) -> int:
        """Training processes on each node."""
        return 1

    @property
    def companions(self) -> dict[str, dict]:
        """Further models that train at the same time, in processes of their own: by name, the
        options that differ from their defaults."""
        return {}

    @property
    def data_parallel_size(self) -> int:
        """Ranks, over all nodes, that divide each global batch among them."""
        return 1

    @property
    def micro_batches(self) -> int:
        """Pieces into which a rank cuts its share of a batch."""
        return 1

    @property
    def stages(self) -> int:
        """Stages into which the model is cut."""
        return 1

    @property
    def batch_norm_scope(self) -> str:
        """Over which samples BatchNorm normalizes, in words."""
        return "the whole batch"

    @property
    def pipeline_bound(self) -> float | None:
        """What a pipeline may at most speed up by; None where there is none."""
        return None

    def check(self) -> Iterator[str]:
        """Sentences about options that contradict each other or the hardware."""
        yield from ()

    def unavailable(self, software: Software) -> str | None:
        """Why ``software`` cannot run it although the devices are there; else None."""
        return None

    @classmethod
    def certified(cls) -> Iterator[tuple[int, dict]]:
        """(devices, options that differ from their defaults): what is compared with eager."""
        yield 1, {}

    @classmethod
    def lossy(cls, options: Mapping[str, Any]) -> str | None:
        """What by a cell's ``options`` is not meant to be as in eager training."""
        return None

    def notes(self) -> dict[str, str]:
        """What a reader must know beside a number, by metric."""
        return {}

    # ------------------------------------------------------------ at work in a rank

    def setup(self) -> None:
        """Join the other processes (none here) and choose this process's devices."""
        self.devices = [self.device(self.local_rank)]

    def device(self, index: int) -> torch.device:
        """The ``index``-th device of this node that the launcher gave to the cell."""
        import torch

        kind = self.cell.hardware.device
        return torch.device(kind) if kind == "cpu" else torch.device(kind, index)

    @property
    def leads(self) -> bool:
        """Whether this process tells and writes what comes of the cell."""
        return self.rank == 0 and not self.companion

    @property
    def takes_images(self) -> bool:
        """Whether images, or texts, go into this rank's part of the model; else none are made."""
        return True

    def sample(self) -> torch.Tensor:
        """A batch of one, of nothing, as the model takes it."""
        import torch

        training, device = self.cell.training, self.devices[0]
        if training.max_length is not None:
            return torch.zeros(1, training.max_length, dtype=torch.int64, device=device)
        return torch.zeros(1, 3, training.image_size, training.image_size, device=device)

    @property
    def shows(self) -> bool:
        """Whether this rank shows the progress of all: one of those that know a loss."""
        return self.leads

    def staged(self, blocks: nn.Sequential) -> nn.Sequential:
        """``blocks`` grouped into this strategy's stages, in the cell's precision and format."""
        import torch

        from parbench.strategies._stages import group

        training = self.cell.training
        cuts = models.load(self.model.name).cuts(self.stages, self.model.options)
        stages = group(blocks, cuts, training.precision, self.cell.hardware.device)
        if training.memory_format == "channels_last":
            stages.to(memory_format=torch.channels_last)
        return stages

    def compiled(self, model: nn.Module) -> nn.Module:
        """``model``, by torch.compile where the cell says so: in place, under its own names."""
        import torch

        if (mode := self.cell.training.compile) != "none":
            torch.compiler.reset()  # graphs of a model before count against a limit
            torch.compiler.set_stance("default")
            model.compile(mode=mode, dynamic=False)
        return model

    def wrap(self, blocks: nn.Sequential) -> nn.Module:
        """The model as it is trained, on this process's devices."""
        return self.compiled(self.staged(blocks).to(self.devices[0]))

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The model as it is evaluated: images to logits, or None where another rank has them."""
        return model

    def optimizer(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> Any:
        """The optimizer as it is stepped."""
        return optimizer

    def backward(
        self,
        model: nn.Module,
        images: torch.Tensor,
        labels: torch.Tensor,
        loss: Loss,
        scaler: torch.amp.GradScaler,
    ) -> torch.Tensor:
        """Gradients of the loss of this rank's share of a batch: ``images`` [B, 3, S, S] float32
        or tokens [B, L] on the first device ([B, 0] where it ``takes_images`` not), ``labels`` [B].

        Returns that loss, detached; zero where another rank computes it.
        """
        value = loss(model(images), labels)
        scaler.scale(value).backward()
        return value.detach()

    def step(self, optimizer: Any, scaler: torch.amp.GradScaler) -> None:
        """One step; ``scaler`` is disabled unless the precision is fp16."""
        scaler.step(optimizer)
        scaler.update()

    def watch(self, phases: Any, model: nn.Module, optimizer: Any) -> None:
        """Tell ``phases`` (profiling/phases.py) when this rank waits for others, and what the
        stages of a pipeline are. Called for cells of that profile alone, before the first step.
        """
        name = self.cell.strategy.name
        raise ParbenchError(
            f"{self.cell.id}: profile: phases: strategy {name} does not tell when it exchanges or "
            f"idles (`watch` in scripts/parbench/strategies/{name}.py); choose profile: none"
        )

    def whole(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The whole model's tensors (weights, buffers, what belongs to them) by name, in its order,
        of which this rank has ``tensors``. All ranks call it, and all get them.
        """
        return tensors

    def part(self, whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The inverse: this rank's part of one of the ``whole`` model's tensors, as of ``like``."""
        return whole

    def load(self, model: nn.Module, whole: dict[str, torch.Tensor]) -> None:
        """Set this rank's weights and buffers from those of the ``whole`` model."""
        import torch

        with torch.no_grad():
            for name, value in model.state_dict().items():
                value.copy_(self.part(whole[name], value))

    def optimizer_state(
        self, optimizer: torch.optim.Optimizer, parameters: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """The state of the whole model's optimizer by `<key>.<parameter>`; this rank has
        ``parameters``. All ranks call it, and all get it."""
        import torch

        names = list(parameters)
        return self.whole(
            {
                f"{key}.{names[index]}": value
                for index, values in optimizer.state_dict()["state"].items()
                for key, value in values.items()
                if isinstance(value, torch.Tensor)  # SGD without momentum has a None
            }
        )

    def load_optimizer_state(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: dict[str, torch.Tensor],
        whole: dict[str, torch.Tensor],
    ) -> None:
        """The inverse: this rank's part of it, after a step at least."""
        import torch

        own: dict[int, dict[str, torch.Tensor]] = {}
        indices = {name: index for index, name in enumerate(parameters)}
        for label, value in whole.items():
            key, _, name = label.partition(".")
            if name in indices:
                like = parameters[name]
                part = self.part(value, like)
                if part.shape == like.shape and part.stride() != like.stride():
                    part = torch.empty_like(like).copy_(part)  # fused kernels want them alike
                own.setdefault(indices[name], {})[key] = part
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": own, "param_groups": groups})

    def reduce(self, values: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """``values`` (any shape, on devices[0]) combined over all ranks, ``op`` sum or max."""
        return values

    def reduced(self, values: list[float], op: str) -> list[float]:
        """Numbers combined over all ranks, in double precision; ``op`` is sum or max."""
        import torch

        tensor = torch.tensor(values, dtype=torch.float64, device=self.devices[0])
        return self.reduce(tensor, op).tolist()

    def gathered(self, values: list[float]) -> list[list[float]]:
        """The numbers of every rank, by rank; all ranks give as many."""
        table = [[0.0] * len(values) for _ in range(self.world_size)]
        table[self.rank] = values
        flat, width = self.reduced([value for row in table for value in row], "sum"), len(values)
        return [flat[rank * width : (rank + 1) * width] for rank in range(len(table))]

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Give every rank the buffers (BatchNorm's running statistics) of rank 0."""

    def meet(self, what: str, mine: Any = None) -> list | None:
        """Tell the processes of other models that this one is at ``what``, with ``mine`` (JSON).

        Returns what each of them told once all are there, by companion, and None before that.
        """
        return [mine]

    def heard(self, what: str) -> list:
        """What the processes of other models, and this one, have told at ``what`` until now."""
        return []

    def close(self) -> None:
        """Leave the other processes. Called after the wrapped model is released."""
