"""Inference on a stream: images arrive as files at a given rate, and Spark predicts them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from parbench.strategies import spark


class Strategy(spark.Strategy):
    """One process, which starts a producer of images and the driver of a streaming query on this
    machine, and counts the results."""

    ENGINE = "stream_inference"
    TURNS = None
    OPTIONS: ClassVar[dict[str, dict]] = {
        "rate": {
            "type": "number",
            "exclusiveMinimum": 0,
            "description": "images that arrive per second",
        },
        "seconds": {
            "type": "number",
            "exclusiveMinimum": 0,
            "default": 30,
            "description": "seconds during which images arrive",
        },
        "coordinated": {
            "type": "boolean",
            "default": True,
            "description": "true: images are renamed into the watched folder, and only results in "
            "Spark's log are read; false: images are written in place, and all result files "
            "are read",
        },
        "write_seconds": {
            "type": "number",
            "minimum": 0,
            "default": 0.5,
            "description": "seconds between the two halves of a file that is written in place",
        },
        "kills": {
            "type": "integer",
            "minimum": 0,
            "default": 0,
            "description": "number of times that the driver, an executor or a worker is killed "
            "(SIGKILL) at random moments; images arrive until the last kill",
        },
        "broken": {
            "type": "integer",
            "minimum": 0,
            "default": 0,
            "description": "number of files that are not images, sent among the images",
        },
    }

    def check(self) -> Iterator[str]:
        """Reject text models, since the files hold images."""
        yield from super().check()
        if self.cell.training.max_length is not None:
            yield "a stream sends images; choose another model, or strategy spark for texts"
