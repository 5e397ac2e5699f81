"""A converted dataset on one device, the order of its samples, and their augmentation.

Everything random is an integer hash of (seed, epoch, sample index), independent of any generator's
state. So every strategy, rank, batch composition, device and torch version sees the same images in
the same order, and a resumed run needs no state of the loader.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from parbench import files
from parbench.data import tokens
from parbench.data.stored_images import Rows
from parbench.errors import ParbenchError

PARTS = ("train", "test")
PADDING = 4  # zero pixels on each side before a random crop: the usual CIFAR augmentation
# Mean and standard deviation of each channel, by the name with which a cell replaces those of its
# dataset. As in torchvision's transforms for its published weights.
MOMENTS = {
    "imagenet": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    "none": ([0.0] * 3, [1.0] * 3),
}

# Distinct constants keep the order of samples independent of their augmentation.
_ORDER, _AUGMENT = 1, 2


@dataclass(frozen=True)
class LoadedDataset:
    """A dataset on one device.

    Images are uint8 [N, 3, H, W], labels int64 [N] in 0..len(classes)-1. ``mean`` and ``std`` are
    per channel, of the whole training set, on the scale 0..1. ``sha256`` is of the whole file, even
    if only a part of the samples was loaded.

    For texts, ``images`` are padded tokens, int32 [N, max_length], of ``vocabulary``; their
    ``lengths`` [N] are on the CPU.

    ``on_disk``: by part, images that stay on disk and are read from there; tensors of images are
    then empty.
    """

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor
    classes: list[str]
    sha256: str
    mean: list[float] | None = None
    std: list[float] | None = None
    vocabulary: tokens.Vocabulary | None = None
    train_lengths: torch.Tensor | None = None
    test_lengths: torch.Tensor | None = None
    on_disk: dict[str, Rows] | None = None

    def without_train_images(self) -> LoadedDataset:
        """Return a copy without training images, for a caller that holds them in another form."""
        return replace(self, train_images=self.train_images[:0].clone())

    def require_every_class(self) -> None:
        """Raise ParbenchError if a class has no sample: its recall would count as 0."""
        noun = "images" if self.vocabulary is None else "texts"
        for part, labels in (("train", self.train_labels), ("test", self.test_labels)):
            present = set(labels.tolist())
            missing = [name for at, name in enumerate(self.classes) if at not in present]
            if missing:
                raise ParbenchError(
                    f"dataset: {part}_samples: none of {len(labels)} {noun} has the class "
                    f"{missing[0]!r}; ask for more, or null for all, or put some into the folder"
                )


def load(
    folder: str | Path,
    device: str | torch.device,
    train_samples: int | None = None,
    test_samples: int | None = None,
    verify: bool = True,
    vocabulary: str | None = None,
    max_length: int | None = None,
    keeps_on_disk: bool = False,
) -> LoadedDataset:
    """Return the dataset in ``folder``/data.safetensors, on ``device``, or with images on disk.

    ``train_samples`` and ``test_samples`` select a class-balanced subset that depends only on the
    file (see ``balanced``); None takes all. ``verify`` first compares the file's SHA-256 with
    digest.json: a process may skip it only if another one on its node has just done so.
    ``vocabulary`` is the kind of tokens that a text model takes, at most ``max_length`` per text.
    ``keeps_on_disk``: leave images in the file, to be read batch by batch.

    Raises ParbenchError, with the file and a remedy, if a file is missing, damaged or differs from
    its digest, or if more samples are asked for than there are.
    """
    folder = Path(folder)
    path, record = folder / "data.safetensors", folder / "digest.json"
    digest = files.read_record(record, "sha256")
    if not path.is_file() or (verify and files.sha256_file(path) != digest["sha256"]):
        raise ParbenchError(
            f"{path}: missing, damaged or replaced: it is not what {record} describes; delete "
            f"{folder} and prepare the dataset again"
        )
    tensors, fields = _read(path, vocabulary, max_length)
    positions: dict[str, torch.Tensor] = {}
    for part, count in (("train", train_samples), ("test", test_samples)):
        labels = tensors[f"{part}_labels"]
        if count is None:
            continue
        if not 1 <= count <= len(labels):
            raise ParbenchError(
                f"{path}: {part}_samples is {count}, but the dataset has {len(labels)} "
                f"{part} samples; ask for 1 to {len(labels)}, or null for all"
            )
        positions[part] = balanced(labels, count)
        for name in [name for name in tensors if name.startswith(part)]:
            if not (keeps_on_disk and name.endswith("images")):
                tensors[name] = tensors[name][positions[part]]
    if keeps_on_disk:
        names = {part: f"{part}_images" for part in PARTS}
        fields["on_disk"] = {
            part: Rows(path, name, positions.get(part)) for part, name in names.items()
        }
        tensors |= {name: tensors[name][:0] for name in names.values()}
    # copy=True: a tensor of the mapped file would crash the process if the file were truncated.
    copies: dict[str, Any] = {
        name: tensor.to("cpu" if name.endswith("lengths") else device, copy=True)
        for name, tensor in tensors.items()
    }
    return LoadedDataset(sha256=digest["sha256"], **fields, **copies)


def _read(
    path: Path, vocabulary: str | None, max_length: int | None
) -> tuple[dict[str, torch.Tensor], dict]:
    """Return the tensors and the other fields of a converted dataset, by LoadedDataset's names.

    Raises ParbenchError if it holds images and texts are requested, or the reverse.
    """
    with safe_open(path, framework="pt", device="cpu") as file:
        metadata = file.metadata()
        tensors = {f"{part}_labels": file.get_tensor(f"{part}_labels") for part in PARTS}
        fields: dict[str, Any] = {"classes": json.loads(metadata["classes"])}
        if vocabulary is not None:
            assert max_length is not None
            loaded_vocabulary = tokens.vocabulary(metadata, vocabulary, path)
            for part in PARTS:
                flat, offsets = (
                    file.get_tensor(f"{part}_{what}.{vocabulary}") for what in ("tokens", "offsets")
                )
                rows_and_lengths = tokens.rows(flat, offsets, loaded_vocabulary, max_length)
                tensors[f"{part}_images"], tensors[f"{part}_lengths"] = rows_and_lengths
            return tensors, fields | {"vocabulary": loaded_vocabulary}
        if "mean" not in metadata:
            raise ParbenchError(
                f"{path}: the model takes images, the dataset holds texts; choose another dataset "
                "or model"
            )
        tensors |= {f"{part}_images": file.get_tensor(f"{part}_images") for part in PARTS}
    return tensors, fields | {key: json.loads(metadata[key]) for key in ("mean", "std")}


def balanced(labels: torch.Tensor, n: int) -> torch.Tensor:
    """Choose ``n`` samples, the classes taking turns; return ascending int64 positions [n].

    ``labels`` is int64 [N] on the CPU. A class that has run out is skipped. Choices are nested (a
    smaller n gives a subset of a larger one's), and n = N gives every position.
    """
    turn = torch.empty_like(labels)  # for each sample, how many of its class precede it
    for label in labels.unique():
        members = (labels == label).nonzero().squeeze(1)
        turn[members] = torch.arange(len(members))
    rounds = torch.argsort(turn * (int(labels.max()) + 1) + labels, stable=True)
    return rounds[:n].sort().values


def order(seed: int, epoch: int, n: int) -> torch.Tensor:
    """Return the order of ``n`` training samples in ``epoch``: a permutation, int64 [n] on the CPU.

    It depends only on its arguments. torch.randperm is not used, since its stream may change
    between releases. The hash gives distinct keys, so sorting has no ties.
    """
    return torch.argsort(_hash(_key(_ORDER, seed, epoch), torch.arange(n)))


def batches(n: int, global_batch: int, min_tail: int) -> list[tuple[int, int]]:
    """Return consecutive (start, stop) that cover 0..n-1 in steps of ``global_batch``.

    A last batch smaller than ``min_tail`` is merged into the one before it, if there is one.
    """
    steps = [(start, min(start + global_batch, n)) for start in range(0, n, global_batch)]
    if len(steps) > 1 and steps[-1][1] - steps[-1][0] < min_tail:
        steps[-2:] = [(steps[-2][0], n)]
    return steps


def draws(
    seed: int, epoch: int, indices: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw the augmentation of the training samples ``indices`` (int64 [B]) in ``epoch``, int64 [B]
    each: the crop's top and left in the padded image, 0..8, and whether it is mirrored, 0 or 1.
    """
    bits = _hash(_key(_AUGMENT, seed, epoch), indices)
    # Three fields of one hash: 21 bits for each offset (bias below 5e-6) and one for the flip.
    top = ((bits & 0x1FFFFF) * (2 * PADDING + 1)) >> 21
    left = (((bits >> 21) & 0x1FFFFF) * (2 * PADDING + 1)) >> 21
    return top, left, (bits >> 42) & 1


MIRRORED = 1024  # number of images to mirror at a time


class Augment:
    """Batches of a dataset for a model: cropped, flipped and normalized, on the dataset's device.

    With ``augment`` a training image is padded by 4 zero pixels, cropped back to its size at one of
    81 offsets, and mirrored half of the time, all drawn from (seed, epoch, sample index), for an
    epoch at once. Nothing waits for the device, and samples are never processed one by one.

    If ``image_size`` S is not the dataset's, images are resized bilinearly after the crop.
    """

    def __init__(self, dataset: LoadedDataset, seed: int, image_size: int, augment: bool) -> None:
        self._data = dataset.without_train_images() if augment else dataset
        self._seed = seed
        self._size = image_size
        self._augment = augment
        self._epoch: int | None = None  # the epoch whose crops are drawn
        device = dataset.train_images.device
        mean = torch.tensor(dataset.mean, dtype=torch.float64)
        std = torch.tensor(dataset.std, dtype=torch.float64)
        # (x / 255 - mean) / std as x * scale + shift, in two steps: the rounding of one fused
        # multiply-add would differ between devices.
        self._scale = (1 / (255 * std)).float().view(1, 3, 1, 1).to(device)
        self._shift = (-mean / std).float().view(1, 3, 1, 1).to(device)
        if augment:
            self._prepare_crops(dataset.train_images)

    def _prepare_crops(self, images: torch.Tensor) -> None:
        # Every crop is 3 x H rows of W adjacent bytes of the padded images, or of the mirrored ones
        # behind them. `unfold` views all runs of W bytes as the rows of one table, without a copy,
        # so that a batch is a single index_select of whole rows: six times as fast as indexing
        # pixels. It also launches few kernels, which small models on a GPU would wait for.
        count, channels, height, width = images.shape
        self._padded_width = width + 2 * PADDING
        plane = (height + 2 * PADDING) * self._padded_width
        shape = (2, count, channels, height + 2 * PADDING, self._padded_width)
        padded = torch.zeros(shape, dtype=images.dtype, device=images.device)
        inner = padded[..., PADDING:-PADDING, PADDING:-PADDING]
        inner[0] = images
        for part in range(0, count, MIRRORED):  # in parts, to avoid a second copy of all images
            inner[1, part : part + MIRRORED] = images[part : part + MIRRORED].flip(-1)
        self._row_table = padded.view(-1).unfold(0, width, 1)
        self._sample_stride = channels * plane
        channel = torch.arange(channels, device=images.device) * plane
        row = torch.arange(height, device=images.device) * self._padded_width
        self._row_starts = (channel[:, None] + row).view(1, -1)

    def train_batch(self, indices: torch.Tensor, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the training samples ``indices`` (int64 [B], on any device) for ``epoch``.

        Images are float32 [B, 3, S, S], labels int64 [B], on the dataset's device. B may be 0: a
        rank without samples still takes part in a step.
        """
        indices = indices.to(self._data.train_labels.device, non_blocking=True)
        if self._augment:
            images = self._cropped(indices, epoch)
        else:
            images = self._data.train_images.index_select(0, indices)
        return self.finish(images), self._data.train_labels.index_select(0, indices)

    def test_batch(self, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return test samples start..stop-1, not augmented: float32 [B, 3, S, S], int64 [B]."""
        images = self._data.test_images[start:stop]
        return self.finish(images), self._data.test_labels[start:stop]

    def _draw(self, epoch: int) -> None:
        """Draw the row of ``_row_table`` at which the crop of each training sample begins."""
        samples = torch.arange(len(self._data.train_labels), device=self._data.train_labels.device)
        top, left, flip = draws(self._seed, epoch, samples)
        # In a mirrored image, what was left of the crop is to its right.
        left = left + flip * (2 * PADDING - 2 * left)
        images = (samples + flip * len(samples)) * self._sample_stride
        self._corners = images + top * self._padded_width + left
        self._epoch = epoch

    def _cropped(self, indices: torch.Tensor, epoch: int) -> torch.Tensor:
        if epoch != self._epoch:
            self._draw(epoch)
        corner = self._corners.index_select(0, indices)
        rows = (corner[:, None] + self._row_starts).view(-1)
        shape = (len(indices), *self._data.test_images.shape[1:])
        return self._row_table.index_select(0, rows).view(shape)

    def finish(self, images: torch.Tensor) -> torch.Tensor:
        """Return uint8 images [B, 3, H, W] as float32 [B, 3, S, S], normalized and resized."""
        images = images.float().mul_(self._scale).add_(self._shift)
        size = (self._size, self._size)
        if images.shape[2:] == size:
            return images
        return torch.nn.functional.interpolate(
            images,
            size=size,
            mode="bilinear",
            align_corners=False,
            antialias=self._size < min(images.shape[2:]),
        )


class ChannelsLast:
    """A wrapper around Augment whose images are in channels-last memory format."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def train_batch(self, indices: torch.Tensor, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what Augment.train_batch returns, channels last."""
        return self._laid(*self._batches.train_batch(indices, epoch))

    def test_batch(self, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what Augment.test_batch returns, channels last."""
        return self._laid(*self._batches.test_batch(start, stop))

    def _laid(
        self, images: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return images.contiguous(memory_format=torch.channels_last), labels


class Labels:
    """The counterpart of Augment for a rank that needs only labels.

    Its images are float32 [B, 0]: one empty image for each label.
    """

    def __init__(self, dataset: LoadedDataset, seed: int, image_size: int, augment: bool) -> None:
        self._train, self._test = dataset.train_labels, dataset.test_labels

    def train_batch(self, indices: torch.Tensor, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what Augment.train_batch returns, with empty images."""
        indices = indices.to(self._train.device, non_blocking=True)
        return self._without_images(self._train.index_select(0, indices))

    def test_batch(self, start: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what Augment.test_batch returns, with empty images."""
        return self._without_images(self._test[start:stop])

    def _without_images(self, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.empty(len(labels), 0, device=labels.device), labels


# splitmix64: https://prng.di.unimi.it/splitmix64.c. Integer arithmetic modulo 2**64 is the same
# on every device; torch provides it by int64, whose sums and products wrap.
_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def _signed(word: int) -> int:
    """Return the int64 with the bits of the unsigned 64-bit ``word``."""
    return word - (1 << 64) if word >> 63 else word


def _mix_word(word: int) -> int:
    for shift, factor in _MIX:
        word = ((word ^ (word >> shift)) * factor) & _WORD
    return word ^ (word >> 31)


def _key(*parts: int) -> int:
    """Return one 64-bit key of several integers, computed in Python, not on the device."""
    key = 0
    for part in parts:
        key = _mix_word((key + (part & _WORD) * _GOLDEN + _GOLDEN) & _WORD)
    return key


def _shift_right(words: torch.Tensor, by: int) -> torch.Tensor:
    # torch's >> on int64 shifts in the sign bit; a hash needs zeros.
    return (words >> by) & ((1 << (64 - by)) - 1)


def _hash(key: int, counters: torch.Tensor) -> torch.Tensor:
    """Return 64 distinct random bits (int64) for each of ``counters`` (int64, any shape)."""
    words = counters * _signed(_GOLDEN) + _signed(key)
    for shift, factor in _MIX:
        words = (words ^ _shift_right(words, shift)) * _signed(factor)
    return words ^ _shift_right(words, 31)
