"""Images of a converted dataset, read from its file one by one."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import torch

from parbench.errors import ParbenchError


class Rows:
    """The images of one part of a converted dataset, read by number; uint8 [N, 3, H, W]."""

    def __init__(self, path: Path, name: str, positions: torch.Tensor | None):
        """Open the tensor ``name`` of the safetensors file ``path``; ``positions``: the images to
        number 0, 1, ...; None for all."""
        self._path, self._positions = path, positions
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115  open until the process ends
        length = int.from_bytes(self._file.read(8), "little")
        entry = json.loads(self._file.read(length))[name]
        self._begin = 8 + length + entry["data_offsets"][0]
        self.shape = tuple(entry["shape"][1:])

    def read(self, indices: torch.Tensor, pinned: bool = False) -> torch.Tensor:
        """Return the images ``indices`` (int64 [B], on the CPU), uint8 [B, 3, H, W] on the CPU.

        Raises ParbenchError if the file has become shorter.
        """
        if self._positions is not None:
            indices = self._positions[indices]
        images = torch.empty(len(indices), *self.shape, dtype=torch.uint8, pin_memory=pinned)
        size, rows = math.prod(self.shape), images.view(len(indices), -1).numpy()
        for row, index in zip(rows, indices.tolist(), strict=True):
            found = os.pread(self._file.fileno(), size, self._begin + index * size)
            if len(found) < size:
                raise ParbenchError(f"{self._path}: ends too early; delete it and run again")
            row[:] = np.frombuffer(found, np.uint8)  # copied by one thread, unlike with torch
        return images
