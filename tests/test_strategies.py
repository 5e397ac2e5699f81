"""What each strategy tells the plan of its cells: work, contradictions, what it cannot run on."""

from __future__ import annotations

import pytest

from parbench import machine, strategies
from training import altered, cell

LOCAL = "each micro-batch, running statistics not deferred"
# ranks of a node, data-parallel size, micro-batches, stages, what BatchNorm sees, pipeline's bound
WORK = {
    "eager": (cell(), (1, 1, 1, 1, "the whole batch", None)),
    "gpipe": (cell("gpipe", 2, balance=[1, 1]), (1, 1, 4, 2, LOCAL, None)),  # one worker on CPU
    "ddp": (cell("ddp", 2), (2, 2, 1, 1, "each rank's share", None)),
    "horovod": (cell("horovod", 3), (3, 3, 1, 1, "each rank's share", None)),
    "fsdp": (
        cell("fsdp", 2, batch_norm="synchronized"),
        (2, 2, 1, 1, "the whole batch, over all ranks", None),
    ),
    "pipeline": (cell("pipeline", 2), (2, 1, 4, 2, LOCAL, 1.6)),
    "deepspeed": (cell("deepspeed", 2), (2, 2, 1, 1, "each rank's share", None)),
    "concurrent": (
        cell("concurrent", 2, beside={"simple_cnn": {}}),
        (2, 1, 1, 1, "the whole batch", None),
    ),
}


def on_gpus(value):
    return altered(value, hardware={"device": "cuda", "name": "gpu2"})


@pytest.mark.parametrize("name", WORK)
def test_work(name):
    value, expected = WORK[name]
    asked = strategies.of(value)
    found = (asked.ranks_per_node, asked.data_parallel_size, asked.micro_batches, asked.stages)
    assert (*found, asked.batch_norm_scope, asked.pipeline_bound) == expected
    assert not list(asked.check())
    for option in asked.OPTIONS.values():
        assert option["description"]


def test_several_nodes_are_more_ranks_and_gpus_a_pipeline():
    assert strategies.of(altered(WORK["ddp"][0], hardware={"nodes": 3})).data_parallel_size == 6
    gpipe = strategies.of(on_gpus(WORK["gpipe"][0]))
    assert gpipe.pipeline_bound == 1.6
    assert not gpipe.notes()
    assert "one worker" in strategies.of(WORK["gpipe"][0]).notes()["speedup"]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (cell("eager", 2), "eager training uses one device"),
        (cell("ddp", 2, backend="nccl"), "choose backend: gloo or auto"),
        (cell("gpipe", 1, balance=[1, 1]), "make the two agree"),
        (cell("gpipe", balance=[2], batch_norm="synchronized"), "deferred_batch_norm: true"),
        (cell("gpipe", balance=[2], profile="operators"), "choose none or phases"),
        (cell("horovod", 3, mode="deterministic"), "needs fusion_threshold_mb: 0, not 128"),
        (cell("pipeline", 1), "needs two devices or more"),
        (cell("deepspeed", 1), "stage 2 divides a model among ranks, and there is one device"),
        (cell("deepspeed", 2, precision="fp16"), "choose bf16 or fp32"),
        (cell("ddp", 2, hook="powersgd", precision="fp16"), "choose bf16 or fp32"),
        (cell("ddp", 2, hook="fp16", powersgd_rank=2), "powersgd_rank 2 is not for hook fp16"),
        (cell("pipeline", 2, batch_norm="synchronized"), "choose local, or chunks: 1"),
        (cell("pipeline", 2, precision="fp16"), "choose bf16 or fp32"),
    ],
)
def test_contradictions_are_said(value, problem):
    (sentence,) = strategies.of(value).check()
    assert problem in sentence


def test_a_horovod_without_nccl_is_a_reason_not_to_run_on_gpus():
    class Without(machine.Software):
        def without_horovod(self):
            return None

        def without_nccl(self):
            return "needs NCCL"

    assert strategies.of(cell("horovod", 2)).unavailable(Without()) is None
    assert strategies.of(on_gpus(cell("horovod", 2))).unavailable(Without()) == "needs NCCL"


@pytest.mark.parametrize(
    ("value", "least"),
    [
        (cell("pipeline", 2), "2.10"),
        (cell("fsdp", 2), "2.7"),
        (cell("ddp", 2, hook="bf16"), "2.15"),
    ],
)
def test_an_older_torch_is_a_reason_not_to_run(value, least):
    software = machine.Software()
    assert strategies.of(value).unavailable(software) is None
    reason = strategies.of(altered(value, stack="paper")).unavailable(software)
    assert reason == f"needs torch {least}, and stack paper has 2.1.2: choose stack: current"
