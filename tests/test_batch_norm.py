"""BatchNorm: synchronized ranks compute what one process does; what GPipe does to statistics."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torchgpipe.batchnorm import DeferredBatchNorm

import training
from parbench import models, strategies
from parbench.errors import ParbenchError
from parbench.plan import config_files, expansion
from parbench.training import batch_norm
from workspace import HANG_SECONDS


class Meeting:
    """An all-reduce among ranks that are threads; ``reduce`` sums as a strategy's does."""

    def __init__(self, ranks: int):
        self.barrier = threading.Barrier(ranks, timeout=HANG_SECONDS)
        self.lock = threading.Lock()
        self.total = None

    def reduce(self, values):
        with self.lock:
            self.total = values.clone() if self.total is None else self.total + values
        self.barrier.wait()
        values.copy_(self.total)
        if self.barrier.wait() == 0:
            self.total = None
        self.barrier.wait()
        return values


def layer():
    made = nn.BatchNorm2d(3).double()
    with torch.no_grad():
        made.weight.copy_(torch.tensor([0.5, 2.0, -1.0]))
        made.bias.copy_(torch.tensor([0.1, 0.0, 3.0]))
    return nn.Sequential(nn.Conv2d(3, 3, 1).double(), made)


def trained(model, images, target, weight=1.0):
    """Run two forward and backward passes; return the output of the second."""
    for _ in range(2):
        output = model(images)
        ((output - target).square().sum() * weight).backward()
    return output.detach()


def test_ranks_of_any_share_are_one_batch():
    torch.manual_seed(0)
    whole = layer()
    images = torch.randn(8, 3, 2, 2, dtype=torch.float64) * 5 + 100
    target = torch.randn(8, 3, 2, 2, dtype=torch.float64)
    expected = trained(whole, images, target)
    shares = torch.arange(8).split([5, 3, 0])
    meeting = Meeting(len(shares))

    def rank(share):
        with meeting.lock:  # the random state is global
            torch.manual_seed(0)
            model = layer()
        ranks = batch_norm.RankSums(meeting.reduce)
        batch_norm.synchronize(model, ranks)
        ranks.counts = len(share) > 0
        if not ranks.counts:  # as in Run.micro_batches: others' samples with weight 0
            trained(model, images[:2], target[:2], 0.0)
            return model, expected[:0]
        return model, trained(model, images[share], target[share])

    with ThreadPoolExecutor(len(shares)) as pool:
        models, outputs = zip(*pool.map(rank, shares), strict=True)
    close = {"rtol": 1e-10, "atol": 1e-10}
    assert torch.allclose(torch.cat(outputs), expected, **close)
    for index, parameter in enumerate(whole.parameters()):
        together = sum(list(model.parameters())[index].grad for model in models)
        assert torch.allclose(together, parameter.grad, **close)
    for model in models:  # also of the rank without samples
        assert list(model.state_dict()) == list(whole.state_dict())
        for name, value in whole.named_buffers():
            assert torch.allclose(model.get_buffer(name), value, **close), name
        assert torch.allclose(model.eval()(images), whole.eval()(images), **close)


def test_half_precision_keeps_its_dtype_and_its_statistics():
    model = nn.Sequential(nn.BatchNorm1d(4))
    batch_norm.synchronize(model, batch_norm.RankSums(lambda values: values))
    values = torch.randn(64, 4) + 300  # bfloat16 has a spacing of 2 here
    assert model(values.bfloat16()).dtype == torch.bfloat16
    expected = nn.BatchNorm1d(4)
    expected(values.bfloat16().float())
    assert torch.allclose(model[0].running_var, expected.running_var, rtol=1e-4)


def test_a_kind_of_batch_norm_that_nobody_knows_is_refused():
    class Activated(nn.BatchNorm2d):
        pass

    model = nn.Sequential(nn.Sequential(Activated(3)))
    with pytest.raises(
        ParbenchError, match="there is no replacement for Activated .layer 0.; choose"
    ):
        batch_norm.synchronize(model, batch_norm.RankSums(lambda values: values))


@pytest.fixture
def gpipe():
    """Yield a function that returns a strategy gpipe of one stage and ResNet-18 in it."""

    def make(**options):
        strategy = strategies.of(training.cell("gpipe", model="resnet18", balance=[1], **options))
        strategy.setup()
        torch.manual_seed(0)
        blocks = models.load("resnet18").build(10, 16, {})
        return strategy, strategy.wrap(blocks)

    return make


def first_batch_norm(model):
    return next(layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d))


@pytest.mark.parametrize(("samples", "chunks"), [(8, 1), (8, 4), (9, 4)])  # 9 in 4: 3 parts
@pytest.mark.parametrize("checkpoint", ["never", "except_last", "always"])
def test_gpipe_updates_running_statistics_as_often_as_it_says(gpipe, samples, chunks, checkpoint):
    strategy, model = gpipe(chunks=chunks, checkpoint=checkpoint, global_batch=samples)
    model(torch.randn(samples, 3, 16, 16)).sum().backward()
    updates = int(first_batch_norm(model).num_batches_tracked)
    times = {1: "once", 2: "twice"}.get(updates, f"{updates} times")
    assert strategy.batch_norm_scope.endswith(f"running statistics updated {times} a batch")
    assert strategy.equal_batch_norm == (chunks == updates == 1)


def test_deferred_statistics_are_of_whole_batches_after_an_uneven_one(gpipe):
    """Of 9 samples torch.chunk makes 3 micro-batches, not 4."""
    strategy, model = gpipe(chunks=4, deferred_batch_norm=True)
    assert strategy.batch_norm_scope == "each micro-batch, running statistics of whole batches"
    layer = next(each for each in model.modules() if isinstance(each, DeferredBatchNorm))
    taken = []
    layer.register_forward_hook(lambda layer, inputs, output: taken.append(inputs[0].detach()))
    expected = torch.zeros(layer.num_features)
    for size in (8, 9, 8, 6, 8):
        model(torch.randn(size, 3, 16, 16))
        expected = 0.9 * expected + 0.1 * torch.cat(taken).mean((0, 2, 3))
        taken.clear()
        torch.testing.assert_close(layer.running_mean, expected)


def test_a_plan_says_of_each_group_how_batch_norm_is_computed():
    config = config_files.read([], {"deployment": "host", "studies": ["quickstart"]})
    deployment = config.resolved_deployment()
    plan = expansion.plan(config, deployment, why_unavailable=lambda group, cell: None)
    groups = plan.studies["quickstart"].groups
    scopes = {group.variant: group.work.batch_norm for group in groups}
    assert scopes["eager"] == "the whole batch"
    assert scopes["ddp"] == "each rank's share"
    updated = "each micro-batch, running statistics updated {} times a batch"
    assert scopes["gpipe-2"] == updated.format(4)
    assert scopes["gpipe-2-recompute"] == updated.format(8)
