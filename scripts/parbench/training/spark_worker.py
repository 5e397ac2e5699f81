"""Load the model and predict records, in a Python worker of an executor.

A worker may run on another machine than the driver and knows only what Predictor holds.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from parbench import files, models, strategies
from parbench.cell import Cell, CellJson
from parbench.data import loader, text_input, tokens

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

WEIGHTS = "weights.safetensors"  # the name of the file in Spark


@dataclass(frozen=True)
class Predictor:
    """What a worker must know: the cell (as in cell.json), the number of classes, the shape of a
    record, and the fields of loader.LoadedDataset from which the model's input is made."""

    cell: CellJson
    classes: int
    shape: list[int]
    mean: list[float] | None
    std: list[float] | None
    vocabulary: tokens.Vocabulary | None

    def load(self) -> Callable[[Sequence[bytes]], np.ndarray]:
        """Load the model, once per worker; return a function from records [B] to classes [B]."""
        torch.set_num_threads(1)  # a task has one core
        cell = Cell.of(self.cell)
        model = self._model(cell)

        def predict(records: Sequence[bytes]) -> np.ndarray:
            with torch.no_grad():
                return model(self._batch(records, cell)).argmax(1).numpy()

        return predict

    def _model(self, cell: Cell) -> nn.Module:
        from pyspark import SparkFiles
        from safetensors.torch import load_file

        strategy = strategies.of(cell)
        strategy.setup()
        input_spec = self.vocabulary or cell.training.image_size
        blocks = models.load(cell.model.name).build(self.classes, input_spec, cell.model.options)
        model = strategy.wrap(blocks)
        model.load_state_dict(load_file(SparkFiles.get(WEIGHTS)))
        return model.eval()

    def _batch(self, records: Sequence[bytes], cell: Cell) -> torch.Tensor:
        """Return the model's input for ``records``, the same as in evaluation.py."""
        count, empty = len(records), torch.empty(0, dtype=torch.int64)
        labels = torch.zeros(count, dtype=torch.int64)
        data = loader.LoadedDataset(
            torch.empty(0, *self.shape), empty, empty, labels, [], "", self.mean, self.std
        )
        if self.vocabulary is None:
            values = np.frombuffer(b"".join(records), dtype=np.uint8).reshape(count, *self.shape)
            data = replace(data, test_images=torch.from_numpy(values.copy()))
            inputs = loader.Augment(data, cell.seed, cell.training.image_size, augment=False)
        else:
            rows = [torch.from_numpy(np.frombuffer(row, dtype=np.int32).copy()) for row in records]
            values = torch.full((count, *self.shape), self.vocabulary.pad, dtype=torch.int32)
            for row, text in zip(values, rows, strict=True):
                row[: len(text)] = text
            lengths = torch.tensor([len(row) for row in rows])
            data = replace(data, test_images=values, test_lengths=lengths)
            inputs = text_input.TextInput(data, cell.training.padding)
        return inputs.test_batch(0, count)[0]


@dataclass(frozen=True)
class OfFiles:
    """Predicts files that Spark's source binaryFile has read, with ``predictor``.

    A file that is not an image of the right size is copied to the folder ``dead`` with the reason
    and gets no result.
    """

    predictor: Predictor
    dead: str

    def __call__(self, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Map frames of path and content to frames of id and predicted class."""
        import pandas as pd

        predict = _loaded(self.predictor)
        for frame in frames:
            images: dict[int, bytes] = {}
            for path, content in zip(frame["path"], frame["content"], strict=True):
                name = path.rpartition("/")[2]
                try:
                    images[int(name.partition(".")[0])] = self._decoded(content)
                except (OSError, ValueError) as error:
                    self._dead_letter(name, content, str(error))
            if images:
                predicted = predict(list(images.values()))
                yield pd.DataFrame({"id": list(images), "predicted": predicted})

    def _decoded(self, content: bytes) -> bytes:
        """Return the bytes of an image [3, H, W]. Raises OSError or ValueError if it is not one."""
        from PIL import Image

        image = np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).transpose(2, 0, 1)
        if list(image.shape) != self.predictor.shape:
            raise ValueError(f"an image of {image.shape}, not {tuple(self.predictor.shape)}")
        return image.tobytes()

    def _dead_letter(self, name: str, content: bytes, reason: str) -> None:
        """Copy a file to ``dead`` with the ``reason``; a retried task overwrites the copy."""
        files.write_atomically(Path(self.dead, name), content)
        files.write_atomically(Path(self.dead, name).with_suffix(".txt"), f"{reason}\n")


_LOADED: list[Callable[[Sequence[bytes]], np.ndarray]] = []  # one model per worker process


def _loaded(predictor: Predictor) -> Callable[[Sequence[bytes]], np.ndarray]:
    if not _LOADED:
        _LOADED.append(predictor.load())
    return _LOADED[0]
