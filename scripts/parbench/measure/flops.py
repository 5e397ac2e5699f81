"""Arithmetic of a training step, and the best rate of a device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from parbench.measure.clocks import Stopwatch
from parbench.models._outline import outline

if TYPE_CHECKING:
    import torch
    from torch import nn

BACKWARD = 2  # passes forward that a pass backward counts as
# Of works that fill such a device: the side of square matrices, and images, channels and edge.
PRODUCT = {"cpu": 768, "cuda": 8192}
CONVOLUTION = {"cpu": (8, 256, 16), "cuda": (256, 512, 28)}
KERNEL = 3
REPEATS = 5


def per_sample(build: Callable[[], nn.Module], image_size: int) -> int:
    """Count the operations of a forward and a backward pass of the model for one image.

    Of matrix products, convolutions and attention, a multiplication and an addition as two; other
    operators have none in torch.utils.flop_counter. The backward pass is not counted by itself:
    flop_counter takes the gradient of a grouped convolution for that of a full one. What a strategy
    computes twice (activations that GPipe recomputes) counts once. Nothing is computed: the model
    is on the meta device.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    model = outline(build).eval()
    image = torch.empty(1, 3, image_size, image_size, device="meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(image)
    return (1 + BACKWARD) * counter.get_total_flops()


def best_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Return the best rate of ``device`` in operations a second: the faster of a large matrix
    product and a large convolution, both with this process's settings, the best of REPEATS.

    One of them alone would not do: libraries differ in what they are fast at.
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
    """Return the best rate at which ``work`` of so many ``operations`` is done."""
    seconds = []
    for _ in range(1 + REPEATS):  # the first chooses the kernel
        with Stopwatch([device]) as watch:
            work()
        seconds.append(watch.seconds)
    return operations / max(min(seconds), 1e-9)  # a clock may stand still
