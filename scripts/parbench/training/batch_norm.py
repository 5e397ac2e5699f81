"""BatchNorm over the whole global batch, for the setting `batch_norm: synchronized`.

Neither torch's nor Horovod's SyncBatchNorm accepts CPU tensors. This module needs only a strategy's
`reduce`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from parbench.errors import ParbenchError

LAYERS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class RankSums:
    """Sums over all ranks for BatchNorm layers; ``reduce``: Strategy.reduce.

    ``counts``: whether this rank has samples of the batch. A rank without any must take part as
    well, so it computes with samples that do not count.
    """

    def __init__(self, reduce: Callable[[torch.Tensor], torch.Tensor]):
        self.reduce = reduce
        self.counts = True

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of ``values`` [N] over all ranks, differentiable."""
        return _Sum.apply(values if self.counts else values * 0, self.reduce)


class _Sum(torch.autograd.Function):
    """All-reduce. Its gradient is an all-reduce, too: every rank's loss depends on the sum."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, reduce: Callable) -> torch.Tensor:
        context.reduce = reduce
        return reduce(values.clone())

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple:
        return context.reduce(gradient.clone()), None


class Synchronized(_BatchNorm):
    """A BatchNorm layer of any dimension that normalizes over the batches of all ``ranks``.

    It takes the parameters and buffers of ``layer`` under the same names.
    """

    def __init__(self, layer: _BatchNorm, ranks: RankSums):
        super().__init__(layer.num_features, layer.eps, layer.momentum, affine=False)
        self.affine, self.track_running_stats = layer.affine, layer.track_running_stats
        self.weight, self.bias = layer.weight, layer.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            setattr(self, name, getattr(layer, name))
        self.train(layer.training)
        self.ranks = ranks

    def _check_input_dim(self, value: torch.Tensor) -> None:
        """Accept any number of dimensions; channels are the second."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Normalize ``value`` [B, C, ...]; return the same shape and dtype."""
        if not self.training:
            return super().forward(value)
        # Half precision has too few digits for statistics.
        x = value.to(torch.promote_types(value.dtype, torch.float32))
        axes, shape = [0, *range(2, x.dim())], [1, -1, *[1] * (x.dim() - 2)]
        # Two sums over ranks: mean of squares minus squared mean would lose digits.
        own_count = x.new_full((1,), x.numel() / x.shape[1])  # needs no copy from the host
        total = self.ranks.sum(torch.cat([x.sum(axes), own_count]))
        mean, count = total[:-1] / total[-1], total[-1]
        centred = x - mean.view(shape)
        variance = self.ranks.sum(centred.square().sum(axes)) / count
        self._track(mean.detach(), variance.detach(), count.detach())
        x = centred * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            # The product gives the bias its own gradient tensor. For a single value, torch would
            # pass on the sum's gradient, which Horovod averages in place while it is still needed.
            x = x * self.weight.view(shape) + (self.bias * 1.0).view(shape)
        return x.to(value.dtype)

    @torch.no_grad()
    def _track(self, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
        """Update the running statistics as torch does, with the unbiased variance."""
        if not self.track_running_stats:
            return
        assert self.num_batches_tracked is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        self.num_batches_tracked += 1
        momentum = self.momentum
        if momentum is None:  # cumulative mean
            momentum = 1 / float(self.num_batches_tracked)
        unbiased = variance * (count / (count - 1))
        self.running_mean.lerp_(mean.to(self.running_mean), momentum)
        self.running_var.lerp_(unbiased.to(self.running_var), momentum)


def synchronize(model: nn.Module, ranks: RankSums) -> None:
    """Replace every BatchNorm layer of ``model`` by a Synchronized one.

    Raises ParbenchError for an unsupported kind of BatchNorm.
    """
    for name, child in model.named_children():
        if isinstance(child, _BatchNorm) and type(child) in LAYERS:
            setattr(model, name, Synchronized(child, ranks))
        elif isinstance(child, _BatchNorm):
            raise ParbenchError(
                f"batch_norm: synchronized: there is no replacement for {type(child).__name__} "
                f"(layer {name}); choose batch_norm: local"
            )
        else:
            synchronize(child, ranks)
