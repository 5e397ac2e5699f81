"""DeepSpeed's ZeRO (Rajbhandari et al. 2020): each rank holds a shard of the optimizer state, in
stages 2 and 3 also a shard of the gradients, and in stage 3 also a shard of the weights."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from parbench.strategies import _process_group

if TYPE_CHECKING:
    import torch
    from torch import nn

    from parbench.software import Software
    from parbench.strategies._base import Loss


class Strategy(_process_group.DataParallelGroup):
    """One rank of a process group; its engine holds the model and steps torch's optimizer."""

    IMAGE = TEXT_IMAGE = "deepspeed"  # containers/deepspeed.def
    LEAST_TORCH = "2.15"  # the version that it was tested with
    EXACT = "float32"  # the engine takes no other weights
    REFUSES: ClassVar[dict[str, str]] = {
        "compile": "DeepSpeed's engine has its own configuration for compiling",
        "memory_format": "DeepSpeed copies weights into one flat tensor",
        "fused": "DeepSpeed has its own fused optimizers",
    }
    OPTIONS: ClassVar[dict[str, dict]] = {
        "stage": {
            "description": "what is divided among the ranks: nothing (0), the optimizer's state "
            "(1), also gradients (2), also weights (3)",
            "enum": [0, 1, 2, 3],
            "default": 2,
        },
        "bucket_cap_mb": {
            "description": "gradients are averaged in buckets of this size, in MiB, in stages 1 to "
            "3; DeepSpeed's own default is 1,907",
            "type": "number",
            "exclusiveMinimum": 0,
            "default": 25,
        },
        "mixed_precision": {
            "description": "with precision bf16: `autocast`, like other strategies, or `engine`, "
            "DeepSpeed's own: ranks compute in and send bfloat16, and keep float32 weights "
            "with their shards of the optimizer's state",
            "enum": ["autocast", "engine"],
            "default": "autocast",
            "implied": True,
        },
    }

    def check(self) -> Iterator[str]:
        """Require several ranks for shards; reject fp16, for which DeepSpeed has its own loss
        scaler."""
        yield from super().check()
        stage = self.options["stage"]
        if stage > 0 and self.data_parallel_size == 1:
            yield (
                f"option stage: {stage} (ZeRO) divides a model among ranks, which needs two "
                "devices or more; choose other hardware, or stage 0"
            )
        precision = self.cell.training.precision
        if precision == "fp16":
            yield "precision fp16: DeepSpeed would use its own loss scaler; choose bf16 or fp32"
        if self.options["mixed_precision"] == "engine" and (precision != "bf16" or stage == 0):
            yield (
                f"mixed_precision engine needs precision bf16 and stage 1, 2 or 3, not "
                f"{precision} and stage {stage}; choose autocast, or change these"
            )

    def unavailable(self, software: Software) -> str | None:
        """Return why ``software`` cannot run DeepSpeed; None if it can."""
        return super().unavailable(software) or software.without("deepspeed", "deepspeed")

    @classmethod
    def certified(cls) -> Iterator[tuple[int, dict]]:
        """Yield every stage on two ranks, and stage 3 on three, so that shards are uneven."""
        for stage in (0, 1, 2, 3):
            yield 2, {"stage": stage}
        yield 3, {"stage": 3}
        yield 2, {"stage": 2, "bucket_cap_mb": 0.01}
        for stage in (1, 2, 3):
            yield 2, {"stage": stage, "mixed_precision": "engine"}

    @property
    def casts(self) -> bool:
        """Whether the engine holds the model in bfloat16, and a separate float32 copy of
        weights."""
        in_bf16 = self.cell.training.precision == "bf16"
        return in_bf16 and self.options["mixed_precision"] == "engine"

    @property
    def autocast(self) -> str:
        """The precision of autocast: fp32 for a model in bfloat16, which needs no autocast."""
        return "fp32" if self.casts else super().autocast

    def setup(self) -> None:
        """Join the process group, which DeepSpeed then uses."""
        os.environ["DS_ACCELERATOR"] = self.cell.hardware.device
        super().setup()
        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)

    def notes(self) -> dict[str, str]:
        """Return a note that the engine also casts BatchNorm's statistics."""
        if not self.casts:
            return {}
        return {"test_accuracy": "DeepSpeed's engine keeps BatchNorm's statistics in bfloat16, too"}

    def wrap(self, blocks: nn.Sequential) -> nn.Module:
        """Return the model, which takes float32 images even when the engine has cast it."""

        def cast(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            return tuple(x.bfloat16() if x.is_floating_point() else x for x in inputs)

        model = super().wrap(blocks)
        if self.casts:
            model.register_forward_pre_hook(cast)
        return model

    def optimizer(self, optimizer: torch.optim.Optimizer, model: nn.Module) -> Any:
        """Return ``optimizer``, which holds the learning rate and the state of this rank's
        shard."""
        import deepspeed

        stage = self.options["stage"]
        # The number of float32 elements, in whole KiB: DeepSpeed requires an even number.
        elements = max(1, round(self.options["bucket_cap_mb"] * 1024)) * 256
        config = {
            # DeepSpeed requires it, although each rank computes its own share of each batch.
            "train_micro_batch_size_per_gpu": math.ceil(
                self.cell.training.global_batch / self.world_size / self.micro_batches
            ),
            "gradient_accumulation_steps": self.micro_batches,
            "zero_optimization": {
                "stage": stage,
                "reduce_bucket_size": elements,
                "allgather_bucket_size": elements,
                # No other strategy computes it, but DeepSpeed can omit it only in these stages.
                "compute_grad_norm": stage not in (1, 2),
            },
            "timers": {"throughput": {"enabled": False}},  # it waits for the device twice a step
            "zero_allow_untested_optimizer": True,
            "gradient_clipping": 0.0,  # off; the default clips at 1
        }
        if self.casts:
            # Buffers, too: on CPUs, BatchNorm does not accept float32 statistics with bfloat16
            # weights.
            config |= {"bf16": {"enabled": True}, "data_types": {"buffer_dtype": "bf16"}}
        self.parameters = dict(model.named_parameters())
        seeded = {name: v.clone() for name, v in model.state_dict().items() if self.casts}
        self.engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
        if self.casts:  # the engine makes its float32 weights from the bfloat16 ones
            self.load(model, seeded)
        return optimizer

    def unwrap(self, model: nn.Module) -> nn.Module:
        """Return the engine, which gathers weights for each forward pass."""
        return self.engine

    def backward(
        self,
        model: nn.Module,
        images: torch.Tensor,
        labels: torch.Tensor,
        loss: Loss,
        scaler: torch.amp.GradScaler,
    ) -> torch.Tensor:
        """Compute gradients; the engine averages them over the ranks."""
        self.engine.training = model.training  # the loop sets it only on the model
        value = loss(self.engine(images), labels)
        self.engine.backward(value, scale_wrt_gas=False)  # sum over micro-batches, no mean
        return value.detach()

    @contextmanager
    def accumulating(self, model: nn.Module) -> Iterator[None]:
        """Make the engine count the micro-batch, since it steps only at the last one."""
        yield
        self.engine.step()

    def step(self, optimizer: Any, scaler: torch.amp.GradScaler) -> None:
        """Make the engine step: each rank updates its shard, then shards are gathered."""
        self.engine.step()

    def held_tensors(self, model: nn.Module, optimizer: Any) -> Iterator[torch.Tensor]:
        """Also yield this rank's shards of weights, in stage 3."""
        yield from super().held_tensors(model, optimizer)
        if self.options["stage"] == 3:
            for parameter in self.parameters.values():
                owned: Any = parameter  # DeepSpeed adds the attribute
                yield owned.ds_tensor

    def full_tensors(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Gather sharded weights one by one, in float32, into host memory; other tensors are
        whole already."""
        from deepspeed.utils import safe_get_full_fp32_param

        if self.options["stage"] < 3 and not self.casts:
            return tensors
        return {
            name: _known(safe_get_full_fp32_param(self.parameters[name])).cpu()
            if name in self.parameters
            else value
            for name, value in tensors.items()
        }

    def load(self, model: nn.Module, whole: dict[str, torch.Tensor]) -> None:
        """Set weights (one by one in stage 3), buffers, and the engine's own copies of weights."""
        import deepspeed
        import torch
        from deepspeed.utils import safe_set_full_fp32_param

        stage = self.options["stage"]
        for name, parameter in self.parameters.items() if stage == 3 else ():
            with deepspeed.zero.GatheredParameters(parameter, modifier_rank=0), torch.no_grad():
                parameter.copy_(whole[name])
        with torch.no_grad():
            for name, value in model.state_dict().items():
                if stage < 3 or name not in self.parameters:
                    value.copy_(whole[name])
        if stage > 0:
            optimizer: Any = self.engine.optimizer
            optimizer.refresh_fp32_params()
        for name, parameter in self.parameters.items() if self.casts else ():
            safe_set_full_fp32_param(parameter, whole[name].to(self.devices[0]))

    def optimizer_state(
        self, optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Gather the state tensors one by one; scalars (step counts) are the same on all ranks."""
        from deepspeed.utils import safe_get_full_optimizer_state

        if self.options["stage"] == 0:
            return super().optimizer_state(optimizer, parameters)
        return {
            f"{key}.{name}": value.clone()
            if value.dim() == 0
            else _known(safe_get_full_optimizer_state(parameter, key)).cpu()
            for name, parameter in parameters.items()
            for key, value in self._state(optimizer).items()
        }

    def load_optimizer_state(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Mapping[str, torch.Tensor],
        whole: dict[str, torch.Tensor],
    ) -> None:
        """Set the state tensors, which a step has created, one by one."""
        from deepspeed.utils import safe_set_full_optimizer_state

        if self.options["stage"] == 0:
            super().load_optimizer_state(optimizer, parameters, whole)
            return
        for name, parameter in parameters.items():
            for key, value in self._state(optimizer).items():
                new = whole[f"{key}.{name}"].to(value.device)
                if value.dim() == 0:
                    value.copy_(new)
                else:
                    safe_set_full_optimizer_state(parameter, new, key)

    def _state(self, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
        """Return the state of this rank's shard of the only parameter group."""
        (state,) = optimizer.state.values()
        return state


def _known(tensor: torch.Tensor | None) -> torch.Tensor:
    """Return ``tensor``, which DeepSpeed never returns as None for its own parameters."""
    assert tensor is not None
    return tensor
