"""Models without weights, on torch's meta device: what they are made of, and what they accept."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from parbench.printable import printable

if TYPE_CHECKING:
    from torch import nn

CLASSES = 10  # of a trial
# Sides of images for certificates, in pixels; the smallest that a model takes is its own.
SIZES = (32, 64, 96, 128, 160, 192, 224, 240, 256, 288, 320, 384, 448, 512)


def outline(build: Callable[[], nn.Module]) -> nn.Module:
    """Return the model that ``build`` returns, on the meta device: its tensors hold nothing."""
    try:
        with _on_meta():
            return build()
    except (NotImplementedError, RuntimeError):  # it computes with tensors as it is built
        return build().to("meta")


@contextlib.contextmanager
def _on_meta() -> Iterator[None]:
    """Make tensors on the meta device within."""
    import torch

    # torch 2.8 fails to import its compiler on that device, which libraries do when imported.
    torch.compiler.list_backends()
    with torch.device("meta"):
        yield


def problem(build: Callable[[], nn.Module], image_size: int) -> str | None:
    """Return why the model that ``build`` makes for CLASSES classes cannot train on images of this
    size, in words; None if it can. Nothing is computed but what ``build`` itself computes."""
    import torch

    try:
        model = outline(build)
    except (Exception, SystemExit) as error:
        return f"`build` raises {described(error)}"
    if not isinstance(model, torch.nn.Module):
        return f"`build` returns a {type(model).__name__}, and no nn.Module"
    size = f"images of {image_size}x{image_size}"
    try:
        with _on_meta():
            output = model.train()(torch.empty(2, 3, image_size, image_size))
    except NotImplementedError:
        return None  # an operator that the meta device lacks: only training itself will tell
    except Exception as error:
        return f"it does not take {size}: {described(error)}"
    shape = tuple(getattr(output, "shape", ()))
    if shape != (2, CLASSES):
        found = f"a tensor {shape}" if shape else f"a {type(output).__name__}"
        return f"of 2 {size} it makes {found}, and no logits (2, {CLASSES}) for {CLASSES} classes"
    return None


def small_size(build: Callable[[int], nn.Module]) -> int:
    """Return the smallest of SIZES at which the model that ``build`` makes for it can train."""
    return next((size for size in SIZES if problem(partial(build, size), size) is None), SIZES[0])


def described(error: BaseException) -> str:
    """Return an exception of others' code on one short line."""
    text = " ".join(printable(str(error)).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
