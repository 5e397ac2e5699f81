"""Strategies compute the same gradients as eager training, and say what they need."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn import functional

import models
import strategies
from training import cell


def blocks_of(value, dtype=torch.float64):
    torch.manual_seed(3)
    model = models.load(value["model"]["name"]).build(10, 32, value["model"]["options"])
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eval()  # it sees micro-batches by nature: frozen, the rest must be equal
            module.train = lambda mode=True, module=module: module
    return model.to(dtype)


def gradients(value, dtype=torch.float64):
    """Loss and gradients of one batch of 37 samples under the cell's strategy."""
    strategy = strategies.load(value["strategy"]["name"]).Strategy(value)
    strategy.setup()
    model = strategy.wrap(blocks_of(value, dtype))
    generator = torch.Generator().manual_seed(5)
    images = torch.randn(37, 3, 32, 32, generator=generator, dtype=torch.float64).to(dtype)
    labels = torch.randint(10, (37,), generator=generator)
    loss = functional.cross_entropy(model(images), labels)
    loss.backward()
    return loss.detach(), [parameter.grad for parameter in model.parameters()]


@pytest.fixture(scope="module", params=["resnet18", "swin"])
def eager(request):
    return request.param, gradients(cell(model=request.param))


@pytest.mark.parametrize("checkpoint", ["never", "except_last", "always"])
@pytest.mark.parametrize("chunks", [1, 2, 4])
@pytest.mark.parametrize("balance", [[2], [1, 1]])
def test_gpipe_has_the_gradients_of_eager(eager, balance, chunks, checkpoint):
    name, (loss, expected) = eager
    options = {"balance": balance, "chunks": chunks, "checkpoint": checkpoint}
    ours, found = gradients(cell("gpipe", len(balance), model=name, **options))
    assert torch.allclose(ours, loss, rtol=1e-10)
    for a, b in zip(found, expected, strict=True):
        assert (a - b).norm() <= 1e-9 * (1 + b.norm())


def test_gpipe_places_stages_by_the_balance():
    value = cell("gpipe", 2, balance=[1, 1])
    strategy = strategies.load("gpipe").Strategy(value)
    strategy.setup()
    model = strategy.wrap(blocks_of(value))
    assert model.balance == [1, 1]
    assert len(model.partitions) == 2
    one = cell("gpipe", 1, balance=[2])
    strategy = strategies.load("gpipe").Strategy(one)
    strategy.setup()
    assert len(strategy.wrap(blocks_of(one)).partitions) == 1


def test_deferred_batch_norm_is_handed_on():
    value = cell("gpipe", 1, model="resnet18", balance=[2], deferred_batch_norm=True)
    strategy = strategies.load("gpipe").Strategy(value)
    strategy.setup()
    model = strategy.wrap(blocks_of(value))
    assert any("Deferred" in type(module).__name__ for module in model.modules())


def on_gpus(value):
    value = copy.deepcopy(value)
    value["hardware"].update(device="cuda", name="gpu2")
    return value


def test_a_build_without_nccl_is_a_reason_not_to_run(monkeypatch):
    import machine

    monkeypatch.setattr(machine, "horovod", lambda: None)
    monkeypatch.setattr(machine, "nccl_missing", lambda name: f"{name} without NCCL")
    ddp, horovod = cell("ddp", 2), cell("horovod", 2)
    assert (
        strategies.load("ddp").unavailable(on_gpus(ddp), machine.Software()) == "ddp without NCCL"
    )
    assert (
        strategies.load("horovod").unavailable(on_gpus(horovod), machine.Software())
        == "horovod without NCCL"
    )
    assert strategies.load("ddp").unavailable(ddp, machine.Software()) is None
    gloo = on_gpus(cell("ddp", 2, backend="gloo"))  # asked for in so many words
    assert strategies.load("ddp").unavailable(gloo, machine.Software()) is None


@pytest.mark.parametrize(("name", "least"), [("pipeline", "2.10"), ("fsdp", "2.7")])
def test_an_older_torch_is_a_reason_not_to_run(monkeypatch, name, least):
    import machine

    value, software = cell(name, 2), machine.Software()
    assert strategies.load(name).unavailable(value, software) is None
    reason = strategies.load(name).unavailable({**value, "stack": "paper"}, software)
    assert reason == f"needs torch {least}, and stack paper has 2.1.2: choose stack: current"
    monkeypatch.setattr(machine, "nccl_missing", lambda name: "no NCCL")
    assert strategies.load(name).unavailable(on_gpus(value), software) == "no NCCL"


@pytest.mark.parametrize(
    ("devices", "changes", "problem"),
    [
        (1, {}, "needs two devices or more"),
        (2, {"batch_norm": "synchronized"}, "choose local, or chunks: 1"),
        (2, {"batch_norm": "synchronized", "chunks": 1}, None),
        (2, {"precision": "fp16"}, "choose bf16 or fp32"),
    ],
)
def test_a_pipeline_says_what_it_cannot(devices, changes, problem):
    found = list(strategies.load("pipeline").check(cell("pipeline", devices, **changes)))
    assert len(found) == (problem is not None)
    assert all(problem in sentence for sentence in found)


def test_ranks_of_a_pipeline_share_one_batch():
    """What the plan tells, and what the loop does."""
    value = cell("pipeline", 2, chunks=8)
    module = strategies.load("pipeline")
    rank = module.Strategy(value)
    rank.rank, rank.world_size = 1, 2
    assert module.shares(value) == rank.shares == 1
    assert (module.parts(value), module.stages(value)) == (8, 2)
    assert rank.shows


def test_a_rank_itself_refuses_gpus_without_nccl(monkeypatch):
    """The planner may be wrong about the machine that runs the cell."""
    from torch import distributed

    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(distributed, "is_nccl_available", lambda: False)
    with pytest.raises(RuntimeError, match="not run: this torch is built without NCCL"):
        strategies.load("ddp").Strategy(on_gpus(cell("ddp", 2))).setup()


def test_launchers():
    assert strategies.load("eager").launcher(cell(), "python") == ["python"]
    ddp = strategies.load("ddp").launcher(cell("ddp", 2), "python")
    assert ddp[:3] == ["python", "-m", "torch.distributed.run"]
    assert "--standalone" in ddp  # no fixed port: it would clash on a shared machine
    horovod = strategies.load("horovod").launcher(cell("horovod", 3), "python")
    assert horovod[horovod.index("--processes") + 1] == "3"
    assert "--port" not in horovod  # any free one, likewise


def test_launchers_of_a_node_among_several():
    node = strategies.Node(rank=1, count=2, address="10.0.0.1", port=29512, interface="ib0")
    ddp = strategies.load("ddp").launcher(cell("ddp", 2), "python", node)
    horovod = strategies.load("horovod").launcher(cell("horovod", 2), "python", node)
    for words, pairs in (
        (ddp, {"--nnodes": "2", "--node-rank": "1", "--master-port": "29512"}),
        (horovod, {"--nodes": "2", "--node": "1", "--address": "10.0.0.1", "--port": "29512"}),
    ):
        for name, value in pairs.items():
            assert words[words.index(name) + 1] == value
