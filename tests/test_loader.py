"""The loader: order, batches, subsets, and augmentation as PIL and torchvision do it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parbench.data import loader
from parbench.data.disk_input import DiskInput
from parbench.data.pil_input import PilInput
from parbench.errors import ParbenchError

MEAN, STD = [0.49, 0.48, 0.44], [0.25, 0.24, 0.26]


def made_up(
    n: int = 40, size: tuple[int, int] = (32, 32), classes: int = 4
) -> loader.LoadedDataset:
    generator = np.random.default_rng(1)
    images = generator.integers(0, 256, (n, 3, *size), dtype=np.uint8)
    labels = generator.integers(0, classes, n)
    return loader.LoadedDataset(
        train_images=torch.from_numpy(images),
        train_labels=torch.from_numpy(labels),
        test_images=torch.from_numpy(images[: n // 2]),
        test_labels=torch.from_numpy(labels[: n // 2]),
        classes=[str(at) for at in range(classes)],
        mean=MEAN,
        std=STD,
        sha256="0" * 64,
    )


# ---- augmentation ----


GREY_LEVEL = 1 / 255 / min(STD)


@pytest.mark.parametrize("augment", [True, False])
@pytest.mark.parametrize(
    ("size", "image_size", "apart"),
    # PIL resizes bytes, and rounds after each of the two axes.
    [((32, 32), 32, 1e-5), ((8, 12), 32, GREY_LEVEL), ((32, 32), 20, GREY_LEVEL)],
)
def test_both_inputs_make_the_same_samples(size, image_size, apart, augment):
    data = made_up(size=size)
    ours, theirs = (way(data, 3, image_size, augment) for way in (loader.Augment, PilInput))
    indices = loader.order(3, 0, 40)[:30]
    pairs = [(way.train_batch(indices, 0), way.train_batch(indices, 7)) for way in (ours, theirs)]
    pairs = [*zip(*pairs, strict=True), (ours.test_batch(3, 9), theirs.test_batch(3, 9))]
    for (expected, expected_labels), (images, labels) in pairs:
        assert (images.dtype, images.shape) == (expected.dtype, expected.shape)
        assert torch.equal(labels, expected_labels)
        assert (images - expected).abs().max() <= apart * 1.01


def test_augmentation_does_not_depend_on_the_batch():
    data = made_up()
    augment = loader.Augment(data, seed=0, image_size=32, augment=True)
    indices = loader.order(0, 4, 40)
    whole, labels = augment.train_batch(indices, 4)
    # Uneven shares of ranks; another object, as in another process.
    other = loader.Augment(data, seed=0, image_size=32, augment=True)
    parts = [other.train_batch(indices[a:b], 4) for a, b in ((0, 16), (16, 33), (33, 40), (40, 40))]
    assert torch.equal(torch.cat([images for images, _ in parts]), whole)
    assert torch.equal(torch.cat([labels for _, labels in parts]), labels)
    backwards, _ = augment.train_batch(indices.flip(0), 4)
    assert torch.equal(backwards.flip(0), whole)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_gives_the_same_bits():
    data = made_up()
    names = ("train_images", "train_labels", "test_images", "test_labels")
    moved = {name: getattr(data, name).cuda() for name in names}
    augment = loader.Augment(loader.LoadedDataset(**{**vars(data), **moved}), 0, 32, True)
    expected = loader.Augment(data, 0, 32, True).train_batch(torch.arange(40), 1)[0]
    augment.train_batch(torch.arange(40), 1)
    torch.cuda.set_sync_debug_mode("error")
    try:
        images, _ = augment.train_batch(torch.arange(40), 1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(images.cpu(), expected)


# ---- order and batches ----


@given(st.integers(0, 2**31), st.integers(0, 1000), st.integers(1, 500))
@settings(max_examples=50, deadline=None)
def test_order_is_a_permutation(seed, epoch, n):
    order = loader.order(seed, epoch, n)
    assert order.dtype == torch.int64
    assert order.device.type == "cpu"
    assert sorted(order.tolist()) == list(range(n))


def test_what_is_drawn_is_the_same_for_ever():
    # Measurements depend on it: no release of torch and no machine may change it.
    assert loader.order(0, 0, 12).tolist() == [4, 5, 10, 2, 11, 1, 3, 0, 9, 6, 8, 7]
    top, left, flip = loader.draws(3, 7, torch.arange(6))
    assert top.tolist() == [7, 8, 7, 8, 8, 6]
    assert left.tolist() == [6, 1, 8, 5, 1, 0]
    assert flip.tolist() == [0, 0, 0, 1, 0, 1]


def test_crops_and_flips_are_spread_evenly():
    top, left, flip = loader.draws(0, 0, torch.arange(90_000))
    for offsets in (top, left):
        assert torch.bincount(offsets).tolist() == pytest.approx([10_000] * 9, rel=0.05)
    assert flip.sum() == pytest.approx(45_000, rel=0.05)


@given(st.integers(0, 2000), st.integers(1, 300), st.integers(0, 400))
@settings(max_examples=300, deadline=None)
def test_batches_cover_each_index_once(n, global_batch, min_tail):
    steps = loader.batches(n, global_batch, min_tail)
    assert [at for start, stop in steps for at in range(start, stop)] == list(range(n))
    assert all(stop - start == global_batch for start, stop in steps[:-1])
    if len(steps) > 1:
        assert steps[-1][1] - steps[-1][0] >= min(min_tail, global_batch)
        assert steps[-1][1] - steps[-1][0] < global_batch + max(min_tail, 1)


# ---- reading ----


def test_a_part_is_balanced_fixed_and_nested(digits):
    whole = loader.load(digits, "cpu")
    part = loader.load(digits, "cpu", train_samples=205, test_samples=50)
    assert sorted(torch.bincount(part.train_labels).tolist()) == [20] * 5 + [21] * 5
    assert torch.bincount(part.test_labels).tolist() == [5] * 10
    assert len(part.train_images) == 205
    smaller = loader.balanced(whole.train_labels, 100).tolist()
    assert set(smaller) < set(loader.balanced(whole.train_labels, 205).tolist())
    # Asking for all of them by number gives the same dataset in the same order.
    same = loader.load(digits, "cpu", train_samples=1437, test_samples=360)
    assert torch.equal(same.train_images, whole.train_images)
    assert torch.equal(same.test_labels, whole.test_labels)
    assert (part.mean, part.sha256) == (whole.mean, whole.sha256)


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_part_without_some_class_is_none_to_learn_from(digits, part):
    loader.load(digits, "cpu", train_samples=10, test_samples=10).require_every_class()
    data = loader.load(digits, "cpu", **{f"{part}_samples": 9})
    with pytest.raises(ParbenchError, match=f"{part}_samples: none of 9 images has the class '9'"):
        data.require_every_class()


@pytest.fixture
def copied(digits, tmp_path) -> Path:
    shutil.copytree(digits, tmp_path / "a copy")
    return tmp_path / "a copy"


def test_a_file_that_is_missing_or_damaged_is_seen(copied):
    path = copied / "data.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ParbenchError, match=r"data\.safetensors: missing, damaged.*delete .*again"):
        loader.load(copied, "cpu")
    loader.load(copied, "cpu", verify=False)
    path.unlink()
    with pytest.raises(ParbenchError, match=r"data\.safetensors: missing"):
        loader.load(copied, "cpu", verify=False)


# ---- from disk ----


def count_calls(thing, name):
    """Let a method note its calls; return them."""
    calls, method = [], getattr(thing, name)

    def noted(*arguments):
        calls.append(arguments)
        return method(*arguments)

    setattr(thing, name, noted)
    return calls


@pytest.mark.parametrize("part", [{}, {"train_samples": 205, "test_samples": 50}])
@pytest.mark.parametrize("augment", [True, False])
@pytest.mark.parametrize("size", [32, 20])
def test_images_on_disk_are_the_same_to_the_bit(digits, part, augment, size):
    whole, kept = (loader.load(digits, "cpu", **part, keeps_on_disk=disk) for disk in (False, True))
    assert kept.train_images.numel() == kept.test_images.numel() == 0
    in_memory, on_disk = loader.Augment(whole, 5, size, augment), DiskInput(kept, 5, size, augment)
    order = loader.order(5, 1, len(whole.train_labels))
    batches = [(samples, 1) for samples in order.split(48)]
    read, asked = count_calls(on_disk, "_submit"), 0
    for samples, epoch in on_disk.ahead(iter(batches), lambda batch: batch.tensor_split(2)):
        for share in samples.tensor_split(2):
            asked += 1
            for ours, theirs in zip(
                on_disk.train_batch(share, epoch), in_memory.train_batch(share, epoch), strict=True
            ):
                assert ours.equal(theirs)
    assert asked == len(read) == 2 * len(batches)  # all were read ahead
    unexpected = order[3:9]  # as in a warm-up
    assert on_disk.train_batch(unexpected, 0)[0].equal(in_memory.train_batch(unexpected, 0)[0])
    for start in range(0, len(whole.test_labels), 16):
        stop = min(start + 16, len(whole.test_labels))
        for ours, theirs in zip(
            on_disk.test_batch(start, stop), in_memory.test_batch(start, stop), strict=True
        ):
            assert ours.equal(theirs)


def test_a_file_that_became_shorter_is_named(digits, tmp_path):
    folder = shutil.copytree(digits, tmp_path / "data")
    kept = loader.load(folder, "cpu", keeps_on_disk=True)
    path = folder / "data.safetensors"
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(ParbenchError, match=r"data\.safetensors: ends too early"):
        DiskInput(kept, 0, 32, True).train_batch(torch.arange(1000), 0)
