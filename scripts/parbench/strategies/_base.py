"""The base class of strategies. Its defaults fit one process on one device; each strategy's file
has one class ``Strategy``, which derives from it and defines only what differs.

Strategies must not import torch at module level: the workflow imports them when it is parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from parbench import models
from parbench.cell import Cell, Model, Options, OptionSchema
from parbench.errors import ParbenchError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from parbench.software import Software

    # (logits [N, classes], labels [N]) -> sum over the samples, weighted for the batch.
    Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Strategy:
    """How ``cell`` uses its devices: queried by the plan, and used for training in each rank.

    ``rank`` and ``world_size`` count training processes; ``devices`` are those of this process,
    input on the first, output on the last; ``backend`` is the communication library; ``model`` is
    what this process trains; ``companion`` is 0 if that is the cell's own model, else the number of
    the companion. All of them are valid after ``setup``.
    """

    IMAGE = "torch"  # containers/torch.def
    TEXT_IMAGE = "text"  # for text models
    ENGINE = "evaluation"  # parbench/training/<name>.py: predicts the test set
    # parbench/training/<name>.py: takes turns as a side of a pair; None: cannot be part of a pair.
    TURNS: ClassVar[str | None] = "pair_rank"
    # Whether turns of a tenth of a second leave its speed unchanged; else turns last a second.
    SHORT_TURNS: ClassVar[bool] = True
    # Why its cells run only as sides of pairs; None: they also run by themselves.
    PAIRS_ONLY: ClassVar[str | None] = None
    EXACT = "float64"  # the arithmetic in which it must equal eager training up to rounding
    # A JSON schema, with a default, for each option. Cells omit an `implied` option at its default,
    # so that adding the option does not change the ids of existing cells.
    OPTIONS: ClassVar[dict[str, OptionSchema]] = {}
    REFUSES: ClassVar[dict[str, str]] = {}  # by setting of cell.TUNING that it cannot use: why

    def __init__(self, cell: Cell):
        self.cell = cell
        defaults = {
            key: schema["default"] for key, schema in self.OPTIONS.items() if "default" in schema
        }
        self.options = defaults | cell.strategy.options
        self.model: Model = cell.model
        self.rank = 0
        self.local_rank = 0
        self.world_size = 1
        self.companion = 0
        self.devices: list[torch.device] = []
        self.backend: str | None = None

    # ------------------------------------------------------------ queried by the plan

    @property
    def ranks_per_node(self) -> int:
        """The number of training processes per node."""
        return 1

    @property
    def companions(self) -> dict[str, Options]:
        """Other models that train at the same time, each in its own process: by name, the options
        that differ from their defaults."""
        return {}

    @property
    def data_parallel_size(self) -> int:
        """The number of ranks, over all nodes, that share each global batch."""
        return 1

    @property
    def data_parallel_rank(self) -> int:
        """The index, from 0, of this rank's share of each global batch; valid after ``setup``."""
        return 0

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches in a rank's share of a batch."""
        return self.cell.training.gradient_accumulation

    @property
    def stages(self) -> int:
        """The number of stages that the model is split into."""
        return 1

    @property
    def batch_norm_scope(self) -> str:
        """A description of the samples over which BatchNorm normalizes."""
        if self.micro_batches > 1:
            return "each micro-batch, running statistics not deferred"
        return "the whole batch"

    @property
    def equal_batch_norm(self) -> bool:
        """Whether a model with unsynchronized BatchNorm computes the same as in eager training, up
        to rounding."""
        return self.data_parallel_size == 1 and self.micro_batches == 1

    @property
    def pipeline_bound(self) -> float | None:
        """The upper bound on a pipeline's speedup; None without a pipeline."""
        return None

    def check(self) -> Iterator[str]:
        """Yield a sentence for each contradiction among the options or between them and the
        hardware."""
        yield from ()

    def unavailable(self, software: Software) -> str | None:
        """Return why ``software`` cannot run the cell although the devices exist; None if it
        can."""
        return None

    @classmethod
    def resolved(cls, options: Options, folder: Path, where: str) -> Options:
        """Return ``options`` as a cell stores them; ``folder``: the study's folder.

        Raises ParbenchError, whose message begins with ``where``, if an option names something
        that does not exist.
        """
        return options

    @classmethod
    def certified(cls) -> Iterator[tuple[int, Options]]:
        """Yield (devices, options other than the defaults) to compare with eager training."""
        yield 1, {}

    @classmethod
    def lossy(cls, options: Options) -> str | None:
        """Return how ``options`` deliberately deviate from eager training; None if they do not."""
        return None

    def notes(self) -> dict[str, str]:
        """Return notes that a reader needs to understand the numbers, by metric."""
        return {}

    # ------------------------------------------------------------ used in each rank

    def setup(self) -> None:
        """Join the other processes (none here) and choose this process's devices."""
        self.devices = [self.device(self.local_rank)]

    def device(self, index: int) -> torch.device:
        """Return the ``index``-th device of this node that the cell may use."""
        import torch

        kind = self.cell.hardware.device
        return torch.device(kind) if kind == "cpu" else torch.device(kind, index)

    @property
    def leads(self) -> bool:
        """Whether this process reports and writes the cell's results."""
        return self.rank == 0 and not self.companion

    @property
    def takes_images(self) -> bool:
        """Whether this rank's part of the model takes images or texts; if not, none are loaded."""
        return True

    def sample(self) -> torch.Tensor:
        """Return a batch of one sample, all zeros, in the shape and dtype that the model takes."""
        import torch

        training, device = self.cell.training, self.devices[0]
        if training.max_length is not None:
            return torch.zeros(1, training.max_length, dtype=torch.int64, device=device)
        return torch.zeros(1, 3, training.image_size, training.image_size, device=device)

    @property
    def prints_progress(self) -> bool:
        """Whether this rank prints the progress of all ranks; it must be one that knows the
        loss."""
        return self.leads

    @property
    def autocast(self) -> str:
        """The precision in which torch.autocast runs each stage; fp32 means no autocast."""
        return self.cell.training.precision

    def staged(self, blocks: nn.Sequential) -> nn.Sequential:
        """Group ``blocks`` into stages, each with autocast, in the cell's memory format."""
        import torch

        from parbench.strategies._stages import group

        training = self.cell.training
        cuts = models.load(self.model.name).cuts(self.stages, self.model.options)
        stages = group(blocks, cuts, self.autocast, self.cell.hardware.device)
        if training.memory_format == "channels_last":
            stages.to(memory_format=torch.channels_last)
        return stages

    def compile(self, *modules: nn.Module, **how: Any) -> None:
        """Compile each of ``modules`` separately if the cell sets `compile`, in place, so that
        parameters keep their names. ``how``: further arguments of torch.compile."""
        import torch

        if (mode := self.cell.training.compile) != "none":
            torch.compiler.reset()  # graphs of earlier models count towards a limit
            torch.compiler.set_stance("default")
            for module in modules:
                module.compile(mode=mode, dynamic=False, **how)

    def wrap(self, blocks: nn.Sequential) -> nn.Module:
        """Return the model to train, made of ``blocks``, on this process's devices."""
        model = self.staged(blocks).to(self.devices[0])
        self.compile(model)
        return model

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Return the model to evaluate, which maps images to logits, or to None on ranks
        without."""
        return model

    def optimizer(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> Any:
        """Return the optimizer whose steps train the model."""
        return optimizer

    def backward(
        self,
        model: nn.Module,
        images: torch.Tensor,
        labels: torch.Tensor,
        loss: Loss,
        scaler: torch.amp.GradScaler,
    ) -> torch.Tensor:
        """Add the gradients for this rank's share of a batch, or a micro-batch of it: ``images``
        [B, 3, S, S] float32 or tokens [B, L] on the first device ([B, 0] if not ``takes_images``),
        ``labels`` [B].

        Returns the loss, detached; zero if another rank computes it.
        """
        value = loss(model(images), labels)
        scaler.scale(value).backward()
        return value.detach()

    def accumulating(self, model: nn.Module) -> AbstractContextManager[None]:
        """Return a context for `backward` of every micro-batch of a step except the last one.

        Within it gradients are added up and not exchanged.
        """
        return nullcontext()

    def step(self, optimizer: Any, scaler: torch.amp.GradScaler) -> None:
        """Take one step with ``optimizer``; ``scaler`` is disabled unless the precision is fp16."""
        scaler.step(optimizer)
        scaler.update()

    def held_tensors(self, model: nn.Module, optimizer: Any) -> Iterator[torch.Tensor]:
        """Yield the tensors that this rank holds between two steps: weights, buffers, gradients and
        the optimizer's state."""
        yield from model.buffers()
        groups = (parameter for group in optimizer.param_groups for parameter in group["params"])
        for parameter in (*model.parameters(), *groups):
            yield parameter.detach()
            if parameter.grad is not None:
                yield parameter.grad
        for state in optimizer.state.values():
            yield from (value for value in state.values() if hasattr(value, "untyped_storage"))

    def watch(self, phases: Any, model: nn.Module, optimizer: Any) -> None:
        """Register with ``phases`` (profiling/phases.py) where this rank waits for others, and the
        stages of a pipeline. Called only for cells with that profile, before the first step.

        Raises ParbenchError if the strategy does not support that profile.
        """
        name = self.cell.strategy.name
        raise ParbenchError(
            f"{self.cell.id}: profile: phases: strategy {name} does not report when it exchanges "
            f"or idles (`watch` in scripts/parbench/strategies/{name}.py); choose profile: none"
        )

    def full_tensors(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the whole model's tensors (weights, buffers, optimizer state) by name, in order,
        from the ``tensors`` of each rank. All ranks must call it, and all get the result.
        """
        return tensors

    def own_part(self, whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of a tensor of the ``whole`` model, sharded like ``like``."""
        return whole

    def load(self, model: nn.Module, whole: dict[str, torch.Tensor]) -> None:
        """Set this rank's weights and buffers from those of the ``whole`` model."""
        import torch

        with torch.no_grad():
            for name, value in model.state_dict().items():
                value.copy_(self.own_part(whole[name], value))

    def optimizer_state(
        self, optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Return the optimizer state of the whole model by `<key>.<parameter>`. ``parameters`` are
        this rank's. All ranks must call it, and all get the result."""
        import torch

        names = list(parameters)
        return self.full_tensors(
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
        parameters: Mapping[str, torch.Tensor],
        whole: dict[str, torch.Tensor],
    ) -> None:
        """Load this rank's part of the optimizer state ``whole``; at least one step must be
        done."""
        import torch

        state: dict[int, dict[str, torch.Tensor]] = {}
        indices = {name: index for index, name in enumerate(parameters)}
        for label, value in whole.items():
            key, _, name = label.partition(".")
            if name in indices:
                like = parameters[name]
                part = self.own_part(value, like)
                if part.shape == like.shape and part.stride() != like.stride():
                    part = torch.empty_like(like).copy_(part)  # fused kernels need equal strides
                state.setdefault(indices[name], {})[key] = part
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})

    def reduce(self, values: torch.Tensor, op: str = "sum") -> torch.Tensor:
        """Reduce ``values`` (any shape, on devices[0]) over all ranks; ``op`` is sum or max."""
        return values

    def reduced(self, values: list[float], op: str) -> list[float]:
        """Reduce numbers over all ranks in double precision; ``op`` is sum or max."""
        import torch

        tensor = torch.tensor(values, dtype=torch.float64, device=self.devices[0])
        return self.reduce(tensor, op).tolist()

    def gathered(self, values: list[float]) -> list[list[float]]:
        """Return the numbers of every rank, by rank. All ranks must pass equally many."""
        table = [[0.0] * len(values) for _ in range(self.world_size)]
        table[self.rank] = values
        flat, width = self.reduced([value for row in table for value in row], "sum"), len(values)
        return [flat[rank * width : (rank + 1) * width] for rank in range(len(table))]

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Copy the buffers (BatchNorm's running statistics) of rank 0 to every rank."""

    def exchange_messages(self, what: str, message: object = None) -> list[Any] | None:
        """Send ``message`` (JSON) to the other models' processes when this one has reached
        ``what``.

        Does not wait: returns None until the messages of all have arrived, then these messages by
        companion.
        """
        return [message]

    def messages(self, what: str) -> list[Any]:
        """Return the messages that all processes, including this one, have sent at ``what`` so
        far."""
        return []

    def close(self) -> None:
        """Disconnect from the other processes. Called after the wrapped model is released."""
