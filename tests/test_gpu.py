"""`make gpu-evidence`: what it would train on one GPU, and its end where there is none.

No GPU is needed here: the plans are of a machine that is stated.
"""

from __future__ import annotations

import subprocess

import pytest
import yaml

import gpu
from parbench import machine
from parbench.errors import ParbenchError
from parbench.plan import config, expansion, published
from parbench.verdicts import claims, words
from parbench.verdicts.groups import Group
from parbench.verdicts.published import Source
from test_tables import EAGER, TIME, one_group, row
from workspace import ROOT, Workspace

PROFILE = ROOT / "profiles" / "gpu.yaml"
ONE_GPU = {"available": {"cpu": 4, "cuda": {"H200": 1}}, "deployment": "host"}


@pytest.fixture(scope="module")
def plan():
    value = config.load(PROFILE) | ONE_GPU
    return expansion.plan(config.checked(value, [ROOT / "config.yaml", PROFILE]), [PROFILE])


def running(plan, study):
    return [group for group in plan.studies[study].stated()["groups"] if group["not_run"] is None]


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


def test_what_one_gpu_is_to_show_is_among_them(plan):
    found = running(plan, "gorantla2024")
    for model in ("resnet50", "swin"):
        own = [group for group in found if group["model"] == model]
        eager = next(group for group in own if group["variant"] == "eager")
        assert (eager["training"]["epochs"], eager["training"]["image_size"]) == (50, 224)
        assert eager["dataset"] == {"name": "cifar10", "train_samples": None, "test_samples": None}
        gpipe = [group["options"] for group in own if group["strategy"] == "gpipe"]
        assert {tuple(options["balance"]) for options in gpipe} == {(2,)}
        made = {(options["checkpoint"], options["chunks"]) for options in gpipe}
        assert made >= {(mode, 4) for mode in ("never", "except_last", "always")}
        assert made >= {("never", chunks) for chunks in (1, 2, 4, 8)}

    def batches(study):
        return {group["training"]["global_batch"] for group in running(plan, study)}

    assert batches("rangoju2025") == {16, 64}
    assert {group["training"]["precision"] for group in running(plan, "laharsh")} == {
        "fp16",
        "fp32",
    }
    devices = {"none": set(), "operators": set()}
    for group in running(plan, "kamoji"):
        devices[group["training"]["profile"]].add(group["hardware"]["device"])
    assert devices == {"none": {"cpu", "cuda"}, "operators": {"cpu", "cuda"}}
    assert all(len(group["seeds"]) == 3 for name in plan.studies for group in running(plan, name))


def test_times_of_another_gpu_are_not_judged_and_accuracies_are(plan):
    eager = running(plan, "gorantla2024")[0]
    h200 = {"accelerators": [{"name": "NVIDIA H200", "memory_mib": 1, "driver": "1"}]}
    study = {"override": plan.studies["gorantla2024"].stated()["study"]["override"]}
    frame = one_group(TIME, study, h200, published=EAGER, hardware=eager["hardware"])
    time, accuracy = (row(frame, name) for name in ("train_seconds", "test_accuracy"))
    assert time["verdict"] == words.NOT_COMPARABLE
    assert "published on 1x A100, here on 1x NVIDIA H200" in time["reason"]
    assert accuracy["verdict"] == words.REPRODUCED
    assert "seconds_to_published_accuracy" in set(frame["metric"])


def test_claims_about_two_gpus_say_what_they_need(plan, monkeypatch):
    """Both sides are moved alike, so that it is the hardware that is missing and not the cells."""
    monkeypatch.chdir(ROOT)
    content = plan.studies["gorantla2024"].stated()
    groups = tuple(Group.of(each, (), ()) for each in content["groups"])
    source = Source.read("gorantla2024", ["studies/published/published_results.csv"])
    study = claims.Rebuilt("gorantla2024", content["study"]["tolerance"], source, groups, {})
    name = "gorantla-horovod-speedup"
    claim = published.claims("studies/published/claims.yaml")[name]
    (made,) = claims.judge({name: claim}, {"gorantla2024": [study]}, [])
    assert made.reason == "needs 2 GPUs"


def test_without_a_gpu_it_ends_in_a_sentence_before_anything_else(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine, "accelerators", lambda: ())
    with pytest.raises(ParbenchError, match="no NVIDIA GPU, so that nothing was set up"):
        gpu.main()
    monkeypatch.setattr(machine, "accelerators", lambda: ({"name": "NVIDIA H200", "uuid": "u"},))
    gpu.main()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ParbenchError, match="no NVIDIA GPU that CUDA_VISIBLE_DEVICES leaves"):
        gpu.main()


def test_the_target_looks_for_a_gpu_then_runs_reports_and_keeps(plan):
    command = ["make", "--dry-run", "-j4", "gpu-evidence", "ARGS=mine.yaml --keep-going"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    overlay = "--configfile profiles/gpu.yaml mine.yaml"
    steps = [
        "scripts/gpu.py",
        f"scripts/config.py {overlay}",
        f"reports/final.html reports/final.pdf {overlay} --keep-going",
        "scripts/evidence.py write\n",
    ]
    places = [done.stdout.index(step) for step in steps]
    assert places == sorted(places)
    assert "environment.py" not in done.stdout[: places[0]]
    asked = plan.studies["kamoji"].arguments
    assert asked == ["--configfile", "profiles/gpu.yaml", "--config", "studies=[kamoji]"]


def test_a_dry_run_of_it_names_all_its_jobs(plan, tmp_path):
    work = Workspace(tmp_path / "a work folder")
    (work.folder / "here.yaml").write_text(yaml.safe_dump(ONE_GPU))
    jobs = work.jobs("--configfile", "profiles/gpu.yaml", "here.yaml")
    assert jobs["train"] == len(plan.cells) - len(plan.not_run)
    assert (jobs["table"], jobs["report"], jobs["dataset"]) == (5, 1, 2)
