"""The loader: order, batches, subsets, and augmentation against a slow implementation."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from errors import ParbenchError

ROOT = Path(__file__).resolve().parent.parent
MEAN, STD = [0.49, 0.48, 0.44], [0.25, 0.24, 0.26]


def made_up(n: int = 40, size: tuple[int, int] = (32, 32), classes: int = 4) -> loader.Dataset:
    generator = np.random.default_rng(1)
    images = generator.integers(0, 256, (n, 3, *size), dtype=np.uint8)
    labels = generator.integers(0, classes, n)
    return loader.Dataset(
        train_images=torch.from_numpy(images),
        train_labels=torch.from_numpy(labels),
        test_images=torch.from_numpy(images[: n // 2]),
        test_labels=torch.from_numpy(labels[: n // 2]),
        classes=[str(at) for at in range(classes)],
        mean=MEAN,
        std=STD,
        sha256="0" * 64,
    )


# ---- a second implementation, one sample at a time, from plain Python integers ----


def mixed(word: int) -> int:
    word &= 2**64 - 1
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) % 2**64
    return word ^ (word >> 31)


def random_word(stream: int, seed: int, epoch: int, index: int) -> int:
    golden, key = 0x9E3779B97F4A7C15, 0
    for part in (stream, seed, epoch):
        key = mixed(key + (part + 1) * golden)
    return mixed(key + index * golden)


def slowly(data: loader.Dataset, seed: int, epoch: int, index: int) -> np.ndarray:
    word = random_word(2, seed, epoch, index)
    top, left, flip = (word % 2**21) * 9 >> 21, (word >> 21) % 2**21 * 9 >> 21, word >> 42 & 1
    image = data.train_images[index].numpy()
    height, width = image.shape[1:]
    padded = np.pad(image, ((0, 0), (4, 4), (4, 4)))
    crop = padded[:, top : top + height, left : left + width]
    if flip:
        crop = crop[:, :, ::-1]
    mean, std = (np.array(values).reshape(3, 1, 1) for values in (MEAN, STD))
    return (crop / 255 - mean) / std


@pytest.mark.parametrize("size", [(32, 32), (8, 12)])
def test_augmentation_equals_the_slow_one(size):
    data = made_up(size=size)
    augment = loader.Augment(data, seed=3, image_size=32, augment=True)
    if size != (32, 32):  # compare before the resize, which the slow one does not have
        augment._finish = lambda images: images.float() * augment._scale + augment._shift
    for epoch in (0, 7):
        images, labels = augment.train_batch(torch.arange(40), epoch)
        assert images.dtype == torch.float32
        assert labels.dtype == torch.int64
        assert torch.equal(labels, data.train_labels)
        expected = np.stack([slowly(data, 3, epoch, index) for index in range(40)])
        np.testing.assert_allclose(images.numpy(), expected, atol=2e-6)


def test_order_equals_the_slow_one():
    # Keys are compared as signed numbers.
    signed = [(random_word(1, 5, 2, at) + 2**63) % 2**64 for at in range(100)]
    assert loader.order(5, 2, 100).tolist() == sorted(range(100), key=signed.__getitem__)


def test_augmentation_does_not_depend_on_the_batch():
    data = made_up()
    augment = loader.Augment(data, seed=0, image_size=32, augment=True)
    indices = loader.order(0, 4, 40)
    whole, labels = augment.train_batch(indices, 4)
    # Two ranks and an uneven tail; another object, as in another process.
    other = loader.Augment(data, seed=0, image_size=32, augment=True)
    parts = [other.train_batch(indices[a:b], 4) for a, b in ((0, 16), (16, 33), (33, 40), (40, 40))]
    assert torch.equal(torch.cat([images for images, _ in parts]), whole)
    assert torch.equal(torch.cat([labels for _, labels in parts]), labels)
    backwards, _ = augment.train_batch(indices.flip(0), 4)
    assert torch.equal(backwards.flip(0), whole)


def test_augmentation_differs_by_epoch_and_seed():
    data = made_up()
    first = loader.Augment(data, 0, 32, True).train_batch(torch.arange(40), 0)[0]
    assert not torch.equal(
        first, loader.Augment(data, 0, 32, True).train_batch(torch.arange(40), 1)[0]
    )
    assert not torch.equal(
        first, loader.Augment(data, 1, 32, True).train_batch(torch.arange(40), 0)[0]
    )


def test_all_offsets_and_half_of_the_flips():
    # An image whose pixels tell their own column, row and direction.
    n = 8100
    row, column = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
    image = torch.stack([row, column, torch.ones_like(row)]).to(torch.uint8)
    data = made_up(n=4)
    data = loader.Dataset(
        **{
            **vars(data),
            "train_images": image.expand(n, 3, 32, 32).clone(),
            "train_labels": torch.zeros(n, dtype=torch.int64),
            "mean": [0.0] * 3,
            "std": [1 / 255] * 3,
        }
    )
    seen, _ = loader.Augment(data, 0, 32, True).train_batch(torch.arange(n), 0)
    centre = seen[:, :, 16, 15:17].round().long()
    flips = centre[:, 1, 0] > centre[:, 1, 1]
    # Columns 15 and 16 of the crop show 11..19 and 12..20 of the image; mirrored, the other way.
    left = centre[:, 1].min(dim=1).values - 11
    top = centre[:, 0, 0] - 12
    counts = torch.bincount(top * 9 + left, minlength=81)
    assert len(counts) == 81
    assert counts.min() > 60  # 100 expected, standard deviation 10
    assert counts.max() < 140
    assert abs(flips.float().mean().item() - 0.5) < 0.02  # 3.6 standard deviations
    # Offsets and flips are independent of each other.
    assert abs(flips[top > 4].float().mean().item() - 0.5) < 0.03


def test_without_augmentation_only_normalised():
    data = made_up()
    plain = loader.Augment(data, 0, 32, False)
    images, labels = plain.train_batch(torch.tensor([3, 1]), 9)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    torch.testing.assert_close(images, (data.train_images[[3, 1]] / 255 - mean) / std)
    assert labels.tolist() == data.train_labels[[3, 1]].tolist()
    test_images, test_labels = loader.Augment(data, 0, 32, True).test_batch(2, 7)
    torch.testing.assert_close(test_images, (data.test_images[2:7] / 255 - mean) / std)
    assert torch.equal(test_labels, data.test_labels[2:7])


@pytest.mark.parametrize("size", [16, 32, 48])
@pytest.mark.parametrize("augment", [True, False])
def test_image_size(size, augment):
    batches = loader.Augment(made_up(), 0, size, augment)
    assert batches.train_batch(torch.arange(5), 0)[0].shape == (5, 3, size, size)
    assert batches.train_batch(torch.arange(0), 0)[0].shape == (0, 3, size, size)
    assert batches.test_batch(0, 4)[0].shape == (4, 3, size, size)


def test_resize_is_bilinear():
    data = made_up()
    small = loader.Augment(data, 0, 32, True).train_batch(torch.arange(6), 0)[0]
    large = loader.Augment(data, 0, 64, True).train_batch(torch.arange(6), 0)[0]
    expected = torch.nn.functional.interpolate(
        small, size=(64, 64), mode="bilinear", align_corners=False
    )
    torch.testing.assert_close(large, expected)


@pytest.mark.parametrize("size", [32, 64])
def test_nothing_waits_for_the_device(size):
    # A meta tensor has no values: whatever asks for one (a sync on a GPU) raises.
    data = made_up()
    names = ("train_images", "train_labels", "test_images", "test_labels")
    meta = {name: getattr(data, name).to("meta") for name in names}
    augment = loader.Augment(loader.Dataset(**{**vars(data), **meta}), 0, size, True)
    images, labels = augment.train_batch(torch.arange(8), 0)
    assert images.device.type == labels.device.type == "meta"
    assert images.shape == (8, 3, size, size)
    assert augment.test_batch(0, 8)[0].shape == (8, 3, size, size)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_gives_the_same_bits():
    data = made_up()
    names = ("train_images", "train_labels", "test_images", "test_labels")
    moved = {name: getattr(data, name).cuda() for name in names}
    augment = loader.Augment(loader.Dataset(**{**vars(data), **moved}), 0, 32, True)
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


def test_order_differs_by_epoch_and_seed():
    orders = [loader.order(seed, epoch, 1000) for seed in (0, 1, 2) for epoch in (0, 1, 2)]
    for at, one in enumerate(orders):
        for other in orders[:at]:
            assert (one == other).sum() < 20  # 1 is expected at random
    assert torch.equal(orders[0], loader.order(0, 0, 1000))


def test_order_is_the_same_for_ever():
    # It is part of what a measurement means: no release of torch, no machine may change it.
    assert loader.order(0, 0, 12).tolist() == [4, 5, 10, 2, 11, 1, 3, 0, 9, 6, 8, 7]


def test_order_is_shuffled():
    position = loader.order(0, 0, 10_000).double()
    together = torch.corrcoef(torch.stack([torch.arange(10_000).double(), position]))[0, 1]
    assert abs(together.item()) < 0.05


@given(st.integers(0, 2000), st.integers(1, 300), st.integers(0, 400))
@settings(max_examples=300, deadline=None)
def test_batches_cover_each_index_once(n, global_batch, min_tail):
    steps = loader.batches(n, global_batch, min_tail)
    assert [at for start, stop in steps for at in range(start, stop)] == list(range(n))
    assert all(stop - start == global_batch for start, stop in steps[:-1])
    if len(steps) > 1:
        assert steps[-1][1] - steps[-1][0] >= min(min_tail, global_batch)
        assert steps[-1][1] - steps[-1][0] < global_batch + max(min_tail, 1)


@pytest.mark.parametrize(
    ("n", "global_batch", "min_tail", "expected"),
    [
        (10, 4, 1, [(0, 4), (4, 8), (8, 10)]),
        (10, 4, 3, [(0, 4), (4, 10)]),
        (8, 4, 3, [(0, 4), (4, 8)]),
        (3, 4, 4, [(0, 3)]),  # nothing before it to join
        (0, 4, 4, []),
    ],
)
def test_batches(n, global_batch, min_tail, expected):
    assert loader.batches(n, global_batch, min_tail) == expected


def test_batches_refuse_an_empty_batch():
    with pytest.raises(ValueError, match="global_batch is 0"):
        loader.batches(10, 0, 1)


# ---- reading ----


def test_load(digits):
    data = loader.load(digits, "cpu")
    digest = json.loads((digits / "digest.json").read_text())
    assert data.train_images.shape == (1437, 3, 32, 32)
    assert data.test_images.shape == (360, 3, 32, 32)
    assert data.train_images.dtype == data.test_images.dtype == torch.uint8
    assert data.train_labels.dtype == data.test_labels.dtype == torch.int64
    assert data.classes == digest["classes"]
    assert data.sha256 == digest["sha256"]
    assert (data.mean, data.std) == (digest["mean"], digest["std"])
    scaled = data.train_images.double() / 255
    torch.testing.assert_close(
        scaled.mean(dim=(0, 2, 3)), torch.tensor(data.mean, dtype=torch.float64)
    )
    torch.testing.assert_close(
        scaled.std(dim=(0, 2, 3), correction=0), torch.tensor(data.std, dtype=torch.float64)
    )


def test_a_part_is_balanced_fixed_and_nested(digits):
    whole = loader.load(digits, "cpu")
    part = loader.load(digits, "cpu", train_samples=205, test_samples=50)
    assert sorted(torch.bincount(part.train_labels).tolist()) == [20] * 5 + [21] * 5
    assert torch.bincount(part.test_labels).tolist() == [5] * 10
    assert len(part.train_images) == 205
    smaller = loader.balanced(whole.train_labels, 100).tolist()
    assert set(smaller) < set(loader.balanced(whole.train_labels, 205).tolist())
    # All of them, asked for by number, is the same dataset in the same order.
    same = loader.load(digits, "cpu", train_samples=1437, test_samples=360)
    assert torch.equal(same.train_images, whole.train_images)
    assert torch.equal(same.test_labels, whole.test_labels)
    assert (part.mean, part.sha256) == (whole.mean, whole.sha256)


def test_a_part_takes_the_first_of_each_class():
    labels = torch.tensor([2, 2, 2, 0, 2, 1, 0, 2])
    # Rounds: (3, 5, 0), (6, 1), (2), (4), (7)
    assert loader.balanced(labels, 3).tolist() == [0, 3, 5]
    assert loader.balanced(labels, 4).tolist() == [0, 3, 5, 6]
    assert loader.balanced(labels, 6).tolist() == [0, 1, 2, 3, 5, 6]


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_part_without_some_class_is_none_to_learn_from(digits, part):
    loader.load(digits, "cpu", train_samples=10, test_samples=10).require_every_class()
    data = loader.load(digits, "cpu", **{f"{part}_samples": 9})
    with pytest.raises(ParbenchError, match=f"{part}_samples 9 hold no image of the class '9'"):
        data.require_every_class()


@pytest.mark.parametrize("wanted", [{"train_samples": 1438}, {"test_samples": 0}])
def test_more_samples_than_there_are(digits, wanted):
    key, value = next(iter(wanted.items()))
    with pytest.raises(ParbenchError, match=f"{key} is {value}.*ask for 1 to"):
        loader.load(digits, "cpu", **wanted)


@pytest.fixture
def copied(digits, tmp_path) -> Path:
    shutil.copytree(digits, tmp_path / "a copy")
    return tmp_path / "a copy"


def test_one_flipped_byte_is_seen(copied):
    path = copied / "data.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ParbenchError, match=r"data\.safetensors: its SHA-256 is .*delete .*again"):
        loader.load(copied, "cpu")
    loader.load(copied, "cpu", verify=False)


def test_a_truncated_file(copied):
    path = copied / "data.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    for verify in (True, False):
        with pytest.raises(ParbenchError, match=r"data\.safetensors"):
            loader.load(copied, "cpu", verify=verify)


def test_missing_and_broken_files(copied):
    digest = (copied / "digest.json").read_text()
    (copied / "digest.json").write_text("[]")
    with pytest.raises(ParbenchError, match=r"digest\.json: it holds no sha256"):
        loader.load(copied, "cpu")
    (copied / "digest.json").write_text("{")
    with pytest.raises(ParbenchError, match=r"digest\.json: not valid JSON"):
        loader.load(copied, "cpu")
    (copied / "digest.json").unlink()
    with pytest.raises(ParbenchError, match=r"digest\.json: no such file"):
        loader.load(copied, "cpu")
    (copied / "digest.json").write_text(digest)
    (copied / "data.safetensors").unlink()
    with pytest.raises(ParbenchError, match=r"data\.safetensors: no such file"):
        loader.load(copied, "cpu")


def test_another_safetensors_file(copied):
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(2)}, copied / "data.safetensors")
    with pytest.raises(ParbenchError, match="not a dataset of parbench"):
        loader.load(copied, "cpu", verify=False)


def test_the_loader_downloads_nothing():
    code = "import sys, loader; print(*sorted(sys.modules))"
    listed = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT / "scripts",
        capture_output=True,
        text=True,
        check=True,
    )
    assert "dataset" not in listed.stdout.split()


def test_a_loaded_dataset_does_not_need_its_file(copied):
    # In a process of its own: a tensor that were the mapped file would kill it with SIGBUS.
    code = (
        "import sys, loader; data = loader.load(sys.argv[1], 'cpu')\n"
        "open(sys.argv[1] + '/data.safetensors', 'w').close()\n"
        "print(int(data.train_images.sum()), int(data.test_labels.sum()))"
    )
    whole = loader.load(copied, "cpu")
    done = subprocess.run(
        [sys.executable, "-c", code, str(copied)],
        cwd=ROOT / "scripts",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.returncode
    assert done.stdout.split() == [
        str(int(t.sum())) for t in (whole.train_images, whole.test_labels)
    ]
