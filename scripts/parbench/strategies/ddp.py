"""DistributedDataParallel (Li et al. 2020): whole models, gradients averaged in buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, ClassVar

from parbench.cell import Options
from parbench.strategies import _process_group

if TYPE_CHECKING:
    import torch
    from torch import nn

# Steps before PowerSGD begins: DDP rebuilds its buckets after the first.
STEPS_BEFORE = 2
# The attributes in which PowerSGD keeps tensors from step to step, one per bucket.
REMEMBERED = ("error_dict", "p_memory_dict", "q_memory_dict")


class Strategy(_process_group.DataParallelGroup):
    """One rank of a process group, with a whole model."""

    OPTIONS: ClassVar[dict[str, dict]] = {
        "bucket_cap_mb": {
            "description": "gradients are averaged in buckets of this size, in MiB",
            "type": "number",
            "exclusiveMinimum": 0,
            "default": 25,
        },
        "backend": {
            "description": "communication library; auto: nccl between GPUs, gloo between CPUs",
            "enum": ["auto", "gloo", "nccl"],
            "default": "auto",
        },
        "hook": {
            "description": "gradients are averaged unchanged (none), rounded to float16 (fp16) "
            "or bfloat16 (bf16), or, from the third step on, the earliest that DDP allows, as "
            "products of two thin matrices, whose errors are added to the next step's gradients "
            "(powersgd, Vogels et al. 2019)",
            "enum": ["none", "fp16", "bf16", "powersgd"],
            "default": "none",
            "implied": True,
        },
        "powersgd_rank": {
            "description": "number of columns of the matrices of hook powersgd",
            "type": "integer",
            "minimum": 1,
            "default": 1,
            "implied": True,
        },
    }

    def check(self) -> Iterator[str]:
        """Reject NCCL without GPUs, and options that do not go with PowerSGD."""
        if self.options["backend"] == "nccl" and self.cell.hardware.device == "cpu":
            yield (
                "backend nccl works between GPUs only; choose backend: gloo or auto for CPU devices"
            )
        hook, rank = self.options["hook"], self.options["powersgd_rank"]
        if hook != "powersgd" and rank != 1:
            yield (
                f"powersgd_rank {rank} applies to hook powersgd only, not {hook}; remove it, or "
                "choose powersgd"
            )
        if hook == "powersgd" and self.cell.training.precision == "fp16":
            yield (
                "hook powersgd: its error feedback would carry infinities from the loss scaler of "
                "precision fp16 into every later gradient; choose bf16 or fp32"
            )

    @classmethod
    def lossy(cls, options: Options) -> str | None:
        """Return how a hook changes gradients; None if it does not."""
        rank = options.get("powersgd_rank", 1)
        return {
            "fp16": "gradients are rounded to float16 (hook fp16)",
            "bf16": "gradients are rounded to bfloat16 (hook bf16)",
            "powersgd": f"gradients are approximated by matrices of rank {rank} (hook powersgd)",
        }.get(options.get("hook", "none"))

    def least_torch(self) -> str | None:
        """Return 2.15, the tested version, for bfloat16 over Gloo, which torch 2.1 rejects."""
        gloo = self.options["backend"] == "gloo" or self.cell.hardware.device == "cpu"
        return "2.15" if self.options["hook"] == "bf16" and gloo else super().least_torch()

    def library(self) -> str:
        """Return the communication library that the study chose."""
        backend = self.options["backend"]
        return super().library() if backend == "auto" else backend

    def wrap(self, blocks: nn.Sequential) -> nn.Module:
        """Return the model; its backward pass averages gradients over the ranks."""
        from torch.nn.parallel import DistributedDataParallel

        model = super().wrap(blocks)
        device_ids = [self.devices[0]] if self.devices[0].type == "cuda" else None
        bucket_size = self.options["bucket_cap_mb"]
        model = DistributedDataParallel(model, device_ids=device_ids, bucket_cap_mb=bucket_size)
        self._forget()
        # DDP takes only one hook: with profile phases, `watch` registers it.
        if self.options["hook"] != "none" and self.cell.training.profile != "phases":
            model.register_comm_hook(None, self._average())
        return model

    def _average(self) -> Callable:
        """Return the communication hook, without annotations, since DDP rejects string
        annotations."""
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

        name = self.options["hook"]
        hook = {
            "none": default_hooks.allreduce_hook,
            "fp16": default_hooks.fp16_compress_hook,
            "bf16": default_hooks.bf16_compress_hook,
            "powersgd": powerSGD_hook.powerSGD_hook,
        }[name]
        # Gloo's threads send PowerSGD's later messages. With several buckets, their order differs
        # between ranks and they hang; one bucket at a time works.
        waits = name == "powersgd" and self.backend == "gloo"

        def average(state, bucket):
            future = hook(self.memory, bucket)
            if waits:
                future.wait()
            return future

        return average

    def _forget(self) -> None:
        """Reset the state of PowerSGD to that before the first step."""
        self.memory: Any = None
        if self.options["hook"] == "powersgd":
            from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

            state: Any = powerSGD_hook.PowerSGDState  # torch annotates a float as an int
            self.memory = state(
                None,  # all ranks
                matrix_approximation_rank=self.options["powersgd_rank"],
                start_powerSGD_iter=STEPS_BEFORE,
                orthogonalization_epsilon=1e-8,  # a gradient may be all zeros
            )

    def load(self, model: nn.Module, whole: dict[str, torch.Tensor]) -> None:
        """Set the weights, and reset PowerSGD, whose state belonged to other weights."""
        super().load(model, whole)
        self._forget()

    def optimizer_state(
        self, optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Return the optimizer state with each rank's PowerSGD state, since errors differ by
        rank."""
        import torch
        from torch import distributed

        state = super().optimizer_state(optimizer, parameters)
        if self.memory is not None:
            state["iter.powersgd"] = torch.tensor(self.memory.iter)
            for key in REMEMBERED:
                for bucket, tensor in getattr(self.memory, key).items():
                    rows = [torch.empty_like(tensor) for _ in range(self.world_size)]
                    distributed.all_gather(rows, tensor)
                    state[f"{key}.{bucket}"] = torch.stack(rows).cpu()
        return state

    def load_optimizer_state(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Mapping[str, torch.Tensor],
        whole: dict[str, torch.Tensor],
    ) -> None:
        """Restore PowerSGD's state as well; the first step has made the same buckets again."""
        super().load_optimizer_state(optimizer, parameters, whole)
        if self.memory is not None:
            self.memory.iter = int(whole["iter.powersgd"])
            for label, rows in whole.items():
                key, _, bucket = label.partition(".")
                if key in REMEMBERED:
                    getattr(self.memory, key)[int(bucket)] = rows[self.rank].to(self.devices[0])

    def watch(self, phases: Any, model: Any, optimizer: Any) -> None:
        """Count as exchange the broadcast of buffers before the forward pass and, in the backward
        pass, the time from the last bucket on, when no gradient is left to compute. Earlier buckets
        are exchanged during computation.
        """
        average = self._average()
        if self.options["hook"] == "powersgd":  # this hook itself waits
            average = phases.exchanging(average)

        def watched(state, bucket):  # without annotations: DDP rejects strings
            if bucket.is_last():
                phases.enter("exchange")
            return average(state, bucket)

        model.register_comm_hook(None, watched)
        # Before the model's own forward pass, DDP broadcasts buffers.
        broadcast = ExitStack()
        model.register_forward_pre_hook(
            lambda *arguments: broadcast.enter_context(phases.phase("exchange"))
        )
        model.module.register_forward_pre_hook(lambda *arguments: broadcast.close())

    def accumulating(self, model: Any) -> AbstractContextManager[None]:
        """Return a context in which gradients stay on this rank."""
        return model.no_sync()

    def unwrap(self, model: Any) -> nn.Module:
        """Return the model without DDP, since evaluation needs no collective calls."""
        return model.module
