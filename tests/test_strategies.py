"""What strategies tell the plan: contradictory settings, and reasons not to run.

tests/expected has their work in the plans of all studies, and most of the contradictions.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parbench import strategies
from parbench.software import Software
from training import altered, cell


def gpus_only(value):
    return altered(value, hardware={"device": "cuda", "name": "gpu2"})


def test_work_that_no_plan_of_a_study_holds():
    assert strategies.of(altered(cell("ddp", 2), hardware={"nodes": 3})).data_parallel_size == 6
    together = strategies.of(cell("fsdp", 2, batch_norm="synchronized"))
    assert together.batch_norm_scope == "the whole batch, over all ranks"
    on_cpus = cell("gpipe", 2, balance=[1, 1])
    gpipe = strategies.of(gpus_only(on_cpus))
    assert gpipe.pipeline_bound == 1.6
    assert not gpipe.notes()
    assert "one worker" in strategies.of(on_cpus).notes()["speedup"]


def test_a_pipeline_of_several_stages_a_rank():
    """Its bound: the first micro-batch reaches the second rank after half as long."""

    def bound(**options):
        value = cell("pipeline", 2, **options)
        return strategies.of(value).pipeline_bound

    assert bound(chunks=4) == 8 / 5
    assert bound(chunks=4, stages_per_rank=2) == 16 / 9
    assert bound(chunks=1, stages_per_rank=2) == 1  # nothing overlaps
    assert bound(chunks=4, stages_per_rank=2, schedule="zbv") == 2

    def refusal(**options):
        value = cell("pipeline", 2, **{"global_batch": 60, **options})
        return next(strategies.of(value).check(), None)

    assert refusal(schedule="zbv") == "schedule zbv needs stages_per_rank: 2, not 1"
    assert "choose a multiple of the 2 ranks" in refusal(chunks=5, stages_per_rank=2)
    assert refusal(chunks=6, stages_per_rank=2) is None
    assert "chunks 8 do not divide global_batch 60" in refusal(chunks=8, stages_per_rank=2)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 40))
def test_a_bound_of_a_pipeline_is_between_one_rank_and_all(ranks, each, chunks):
    value = cell("pipeline", ranks, chunks=chunks, stages_per_rank=each)
    assert 1 <= strategies.of(value).pipeline_bound <= ranks


def test_a_horovod_without_nccl_is_a_reason_not_to_run_on_gpus():
    class Without(Software):
        def without_horovod(self):
            return None

        def without_nccl(self):
            return "needs NCCL"

    assert strategies.of(cell("horovod", 2)).unavailable(Without()) is None
    assert strategies.of(gpus_only(cell("horovod", 2))).unavailable(Without()) == "needs NCCL"


@pytest.mark.parametrize(
    ("value", "least"),
    [
        (cell("pipeline", 2), "2.10"),
        (cell("fsdp", 2), "2.7"),
        (cell("ddp", 2, hook="bf16"), "2.15"),
    ],
)
def test_an_older_torch_is_a_reason_not_to_run(value, least):
    software = Software()
    assert strategies.of(value).unavailable(software) is None
    reason = strategies.of(altered(value, stack="paper")).unavailable(software)
    assert reason == f"needs torch {least}, and stack paper has 2.1.2: choose stack: current"
