"""Build models without weights, on torch's meta device, to see their parts and what they accept."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from parbench.printable import printable

if TYPE_CHECKING:
    from torch import nn

CLASSES = 10  # number of classes in a trial
# Sides of images for certificates, in pixels; a model's is the smallest that it accepts.
SIZES = (32, 64, 96, 128, 160, 192, 224, 240, 256, 288, 320, 384, 448, 512)


def outline(build: Callable[[], nn.Module]) -> nn.Module:
    """Return the model that ``build`` returns, on the meta device, where tensors have no data."""
    try:
        with _on_meta():
            return build()
    except (NotImplementedError, RuntimeError):  # it computes with values while it is built
        return build().to("meta")


@contextlib.contextmanager
def _on_meta() -> Iterator[None]:
    """Create tensors on the meta device within the context."""
    import torch

    # Libraries import torch's compiler, which torch 2.8 fails to do on that device.
    torch.compiler.list_backends()
    with torch.device("meta"):
        yield


def problem(build: Callable[[], nn.Module], image_size: int) -> str | None:
    """Return a sentence on why the model that ``build`` makes for CLASSES classes cannot train on
    images of this size; None if it can. Computes nothing except what ``build`` itself computes."""
    import torch

    try:
        model = outline(build)
    except (Exception, SystemExit) as error:
        return f"`build` raises {described(error)}"
    if not isinstance(model, torch.nn.Module):
        return f"`build` returns a {type(model).__name__}, not an nn.Module"
    size = f"images of {image_size}x{image_size}"
    try:
        with _on_meta():
            output = model.train()(torch.empty(2, 3, image_size, image_size))
    except NotImplementedError:
        return None  # the meta device lacks an operator, so only training itself will show it
    except Exception as error:
        return f"it does not accept {size}: {described(error)}"
    shape = tuple(getattr(output, "shape", ()))
    if shape != (2, CLASSES):
        found = f"a tensor {shape}" if shape else f"a {type(output).__name__}"
        return f"from 2 {size} it computes {found}, not logits (2, {CLASSES}) for {CLASSES} classes"
    return None


def small_size(build: Callable[[int], nn.Module]) -> int:
    """Return the smallest of SIZES at which the model that ``build`` makes for it can train."""
    return next((size for size in SIZES if problem(partial(build, size), size) is None), SIZES[0])


def described(error: BaseException) -> str:
    """Describe an exception from a library's or a user's code on one short line."""
    text = " ".join(printable(str(error)).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
