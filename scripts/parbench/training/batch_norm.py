"""BatchNorm over the whole global batch: the training setting `batch_norm: synchronized`.

torch's SyncBatchNorm takes no tensor of a CPU, and Horovod's neither. This one needs nothing but a
strategy's own `reduce`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from parbench.errors import ParbenchError

LAYERS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Ranks:
    """All ranks, as their BatchNorm layers see them; ``reduce`` is a strategy's.

    ``counts``: whether this rank's samples are in the batch. One without samples computes with
    some that are not, since all ranks must join.
    """

    def __init__(self, reduce: Callable[[torch.Tensor], torch.Tensor]):
        self.reduce = reduce
        self.counts = True

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of everybody's ``values`` [N], differentiable."""
        return _Sum.apply(values if self.counts else values * 0, self.reduce)


class _Sum(torch.autograd.Function):
    """What is trained on is the sum of all ranks' losses, in each of which the sum stands."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, reduce: Callable) -> torch.Tensor:
        context.reduce = reduce
        return reduce(values.clone())

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple:
        return context.reduce(gradient.clone()), None


class Synchronized(_BatchNorm):
    """A BatchNorm layer, of any dimension, whose training sees the batches of all ``ranks``.

    It takes the parameters and buffers of ``layer``, under their names.
    """

    def __init__(self, layer: _BatchNorm, ranks: Ranks):
        super().__init__(layer.num_features, layer.eps, layer.momentum, affine=False)
        self.affine, self.track_running_stats = layer.affine, layer.track_running_stats
        self.weight, self.bias = layer.weight, layer.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            setattr(self, name, getattr(layer, name))
        self.train(layer.training)
        self.ranks = ranks

    def _check_input_dim(self, value: torch.Tensor) -> None:
        """Channels are the second dimension, whatever follows."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """[B, C, ...] -> the same shape and dtype."""
        if not self.training:
            return super().forward(value)
        # Statistics of half precision need more digits than it has.
        x = value.to(torch.promote_types(value.dtype, torch.float32))
        axes, shape = [0, *range(2, x.dim())], [1, -1, *[1] * (x.dim() - 2)]
        # Twice over the ranks, as the mean of squares less the square of the mean loses digits.
        values = x.new_tensor([x.numel() / x.shape[1]])
        total = self.ranks.sum(torch.cat([x.sum(axes), values]))
        mean, count = total[:-1] / total[-1], total[-1]
        centred = x - mean.view(shape)
        variance = self.ranks.sum(centred.square().sum(axes)) / count
        self._track(mean.detach(), variance.detach(), count.detach())
        x = centred * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            # The product gives the bias a gradient of its own. Of a single value torch would hand
            # on the sum's, which Horovod averages in place while others still need it.
            x = x * self.weight.view(shape) + (self.bias * 1.0).view(shape)
        return x.to(value.dtype)

    @torch.no_grad()
    def _track(self, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
        """Running statistics, as torch keeps them: of the unbiased variance."""
        if not self.track_running_stats:
            return
        self.num_batches_tracked += 1
        momentum = self.momentum
        if momentum is None:  # the mean of all batches
            momentum = 1 / float(self.num_batches_tracked)
        unbiased = variance * (count / (count - 1))
        self.running_mean.lerp_(mean.to(self.running_mean), momentum)
        self.running_var.lerp_(unbiased.to(self.running_var), momentum)


def synchronize(model: nn.Module, ranks: Ranks) -> None:
    """Put a Synchronized in the place of every BatchNorm layer of ``model``.

    ParbenchError for a kind of BatchNorm that it does not stand for.
    """
    for name, child in model.named_children():
        if type(child) in LAYERS:
            setattr(model, name, Synchronized(child, ranks))
        elif isinstance(child, _BatchNorm):
            raise ParbenchError(
                f"batch_norm: synchronized: nothing stands for {type(child).__name__} (layer "
                f"{name}); choose batch_norm: local"
            )
        else:
            synchronize(child, ranks)
