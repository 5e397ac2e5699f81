"""Inference on a stream: images arrive as files at a given rate, and Spark predicts them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from parbench.strategies import spark


class Strategy(spark.Strategy):
    """One process that starts, on this machine, a producer of images and the driver of a streaming
    query, and counts the results."""

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
            "description": "images enter by a rename, and results are read by Spark's own log; "
            "false: they are written in place, and all files of results are read",
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
            "description": "how often the driver, an executor or a worker is killed (SIGKILL), at "
            "random moments; images come until all have been",
        },
        "broken": {
            "type": "integer",
            "minimum": 0,
            "default": 0,
            "description": "number of files among the images that are not images",
        },
    }

    def check(self) -> Iterator[str]:
        """Reject text models: the files hold images."""
        yield from super().check()
        if self.cell.training.max_length is not None:
            yield "a stream sends images; choose another model, or strategy spark for texts"
