"""profiles/gpu.yaml: what would be trained on one GPU, of a machine that is stated."""

from __future__ import annotations

import pytest

from parbench.plan import config, expansion
from workspace import ROOT

PROFILE = ROOT / "profiles" / "gpu.yaml"
ONE_GPU = {"available": {"cpu": 4, "cuda": {"H200": 1}}, "deployment": "host"}


@pytest.fixture(scope="module")
def plan():
    value = config.load(PROFILE) | ONE_GPU
    return expansion.plan(config.checked(value, [PROFILE]), [PROFILE])


def test_every_cell_for_one_gpu_is_planned_and_no_other_of_a_gpu(plan):
    assert list(plan.studies) == ["gorantla2024", "rangoju2025", "laharsh", "kamoji", "torchgpipe"]
    for name, study in plan.studies.items():
        content, variants = study.stated(), config.study(name).variants
        for group in content["groups"]:
            hardware, told = group["hardware"], group["not_run"]
            if hardware["device"] != "cuda":
                continue
            asked = variants[group["variant"]].hardware
            if asked.startswith("a30"):  # on any GPU, the cells of the A100 once more
                assert told == f"needs {hardware['devices']}x A30"
            elif hardware["devices"] == hardware["nodes"] == 1:
                assert told is None, (name, group["variant"])
            elif hardware["nodes"] == 2:
                assert told == "needs 2 nodes"
            else:
                assert told == f"needs {hardware['devices']} GPUs"
    # Two models at once take a GPU each.
    told = {g.not_run for g in plan.studies["laharsh"].groups if g.variant == "concurrent"}
    assert told == {"needs 2 GPUs"}


def test_its_plan_says_how_it_was_asked_for(plan):
    asked = plan.studies["kamoji"].arguments
    assert asked == ["--configfile", "profiles/gpu.yaml", "--config", "studies=[kamoji]"]
