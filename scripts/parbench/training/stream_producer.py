"""Write test images into a folder at a fixed rate, until the time is over and all kills are done.

Images have ids from 0 upwards; files that are not images have ids below 0. Next to the
folders, the file MADE has the time of each, and the file COST the CPU time of all of them.
"""

from __future__ import annotations

import io
import json
import math
import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import BinaryIO

import torch
from PIL import Image
from safetensors.torch import load_file

from parbench.files import write_json
from parbench.training import launched

MADE, COST = "produced.csv", "cost.json"


def main() -> None:
    """Produce images in the folder given as the argument."""
    folder = Path(sys.argv[1])
    launched.begin()
    options = json.loads((folder / "stream.json").read_text())["options"]
    images = load_file(folder / "test.safetensors")["images"]
    rate, count = options["rate"], round(options["rate"] * options["seconds"])
    broken = {int((index + 0.5) * count / options["broken"]) for index in range(options["broken"])}
    enter = renamed if options["coordinated"] else InPlace(options["write_seconds"])
    begun, cost = time.monotonic(), time.process_time()
    with open(folder / MADE, "w", buffering=1) as log:
        index = 0
        while index < count or not (folder / "enough").exists():
            time.sleep(max(0.0, begun + index / rate - time.monotonic()))
            content_by_id = {index: encoded(images[index % len(images)])}
            if index in broken:
                content_by_id[-1 - index] = b"this is no image"
            for id_, content in content_by_id.items():
                enter(folder, id_, content)
                log.write(f"{id_},{time.time()}\n")
            index += 1
        if isinstance(enter, InPlace):
            enter.finish(math.inf)
    write_json(folder / COST, {"cpu_seconds": time.process_time() - cost})


def encoded(image: torch.Tensor) -> bytes:
    """Return the PNG file of an image [3, H, W] as bytes."""
    file = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(file, "png")
    return file.getvalue()


def renamed(folder: Path, id_: int, content: bytes) -> None:
    """Move a file into the watched folder atomically."""
    coming = folder / "coming" / f"{id_}.png"
    coming.write_bytes(content)
    os.rename(coming, folder / "images" / coming.name)


class InPlace:
    """Writes files directly into the watched folder, as over a network: in two halves, the second
    ``seconds`` after the first."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._begun: deque[tuple[float, BinaryIO, bytes]] = deque()

    def __call__(self, folder: Path, id_: int, content: bytes) -> None:
        """Write the first half of a file, and the second halves of others that are due."""
        half = len(content) // 2
        file = open(folder / "images" / f"{id_}.png", "wb", buffering=0)  # noqa: SIM115
        file.write(content[:half])
        self._begun.append((time.monotonic() + self._seconds, file, content[half:]))
        self.finish(time.monotonic())

    def finish(self, now: float) -> None:
        """Write all second halves that are due by ``now``."""
        while self._begun and self._begun[0][0] <= now:
            _, file, rest = self._begun.popleft()
            with file:
                file.write(rest)


if __name__ == "__main__":
    main()
