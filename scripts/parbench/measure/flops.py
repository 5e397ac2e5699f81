"""Count the operations of a training step, and measure the best rate of a device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from parbench.measure.clocks import Stopwatch
from parbench.models._outline import outline

if TYPE_CHECKING:
    import torch
    from torch import nn

BACKWARD = 2  # forward passes that a backward pass counts as
# Sizes that keep such a device busy: the side of square matrices; images, channels and side of a
# convolution's input.
PRODUCT = {"cpu": 768, "cuda": 8192}
CONVOLUTION = {"cpu": (8, 256, 16), "cuda": (256, 512, 28)}
KERNEL = 3
REPEATS = 5


def per_sample(build: Callable[[], nn.Module], image_size: int) -> int:
    """Count the operations of a forward and a backward pass of the model for one image.

    Only matrix products, convolutions and attention count, a multiplication and an addition as two
    operations; torch.utils.flop_counter ignores all other operators. The backward pass is derived
    from the forward pass, since flop_counter mistakes the gradient of a grouped convolution for
    that of a full one. What a strategy computes twice (activations that GPipe recomputes) counts
    once. Nothing is computed: the model is on the meta device.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    model = outline(build).eval()
    image = torch.empty(1, 3, image_size, image_size, device="meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(image)
    return (1 + BACKWARD) * counter.get_total_flops()


def best_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Return the best rate of ``device`` in operations per second.

    It is the faster of a large matrix product and a large convolution, each the best of REPEATS,
    with this process's settings. Both are measured since libraries differ in what they are fast at.
    """
    import torch
    from torch.nn import functional

    side, (count, channels, edge) = PRODUCT[device.type], CONVOLUTION[device.type]
    draw = partial(torch.randn, device=device, dtype=dtype)
    matrix, kernels = draw(side, side), draw(channels, channels, KERNEL, KERNEL)
    images = draw(count, channels, edge, edge).contiguous(memory_format=torch.channels_last)
    product = 2 * side**3
    convolution = 2 * count * edge**2 * channels**2 * KERNEL**2
    return max(
        _best(lambda: matrix @ matrix, product, device),
        _best(lambda: functional.conv2d(images, kernels, padding="same"), convolution, device),
    )


def _best(work: Callable[[], object], operations: int, device: torch.device) -> float:
    """Return the best rate, in operations per second, of ``work``, which takes ``operations``."""
    seconds = []
    for _ in range(1 + REPEATS):  # the first one chooses the kernel and does not count
        with Stopwatch([device]) as watch:
            work()
        seconds.append(watch.seconds)
    return operations / max(min(seconds), 1e-9)  # a coarse clock may not have advanced
