"""PIL's images are the tensor input's, up to rounding, and disturb nobody's random numbers."""

from __future__ import annotations

import pytest
import torch

from parbench import strategies
from parbench.data import loader
from parbench.data.pil_input import PilInput
from parbench.training import evaluation
from parbench.training.loop import Run
from parbench.training.progress import Heartbeat
from test_loader import STD, made_up
from training import cell

GREY_LEVEL = 1 / 255 / min(STD)


@pytest.mark.parametrize("augment", [True, False])
@pytest.mark.parametrize(
    ("size", "image_size", "apart"),
    # PIL resizes bytes: it rounds after the rows, and after the columns.
    [((32, 32), 32, 1e-5), ((8, 12), 32, GREY_LEVEL), ((32, 32), 20, GREY_LEVEL)],
)
def test_samples_are_those_of_the_tensor_input(size, image_size, apart, augment):
    data = made_up(size=size)
    ours, theirs = (way(data, 3, image_size, augment) for way in (loader.Augment, PilInput))
    for epoch in (0, 7):
        indices = loader.order(3, epoch, 40)[:30]
        images, labels = theirs.train_batch(indices, epoch)
        expected, expected_labels = ours.train_batch(indices, epoch)
        assert (images.dtype, images.shape) == (expected.dtype, expected.shape)
        assert torch.equal(labels, expected_labels)
        assert (images - expected).abs().max() <= apart * 1.01
    images, labels = theirs.test_batch(3, 9)
    expected, expected_labels = ours.test_batch(3, 9)
    assert torch.equal(labels, expected_labels)
    assert (images - expected).abs().max() <= apart * 1.01


def test_nothing_is_drawn_from_the_process_and_batches_may_be_asked_for_again():
    data = made_up()
    before = torch.get_rng_state()
    pil = PilInput(data, 0, 32, True)
    first = pil.train_batch(torch.arange(5), 0)[0]
    other = pil.train_batch(torch.arange(5), 1)[0]
    assert torch.equal(pil.train_batch(torch.tensor([3, 1]), 0)[0], first[[3, 1]])
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_loop_learns_the_same(digits):
    """Losses of four steps of both inputs: no resize, so that rounding is all that differs."""
    losses = []
    for way in ("tensor", "pil"):
        value = cell(input=way, train_samples=96, test_samples=20)
        strategy = strategies.of(value)
        strategy.setup()
        run = Run(value, digits, strategy, Heartbeat(0))
        run.begin()
        order = loader.order(0, 0, 96)
        losses.append([run.step(order[at : at + 24], 0).item() for at in range(0, 96, 24)])
        predicted, loss = evaluation.evaluate(run)
        losses[-1].append(loss)
        assert len(predicted) == 20
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
