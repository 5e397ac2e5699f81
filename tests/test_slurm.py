"""What cells ask Slurm for, and what is found wrong before anything is submitted."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest

from parbench.errors import ParbenchError
from parbench.files import write_json
from parbench.launch import slurm, slurm_cluster
from parbench.plan import config as configuration
from parbench.plan import expansion, places, state, writing
from workspace import ROOT, add_pairs

slurm_site = pytest.importorskip(
    "parbench.launch.slurm_site", reason="the stack `paper` has no Slurm plugin"
)

# As sites report it: sockets behind a count, slices of a GPU, untyped GPUs, no memory stated.
PARTITIONS = """\
PartitionName=cpu AllowGroups=ALL Default=YES MaxTime=1-12:00:00 Nodes=c[1-2]
PartitionName=gpu AllowGroups=ALL Default=NO MaxTime=UNLIMITED Nodes=a[1-3],h1
"""
NODES = """\
NodeName=c1 CPUTot=64 CPUEfctv=62 RealMemory=250000 Gres=(null) Partitions=cpu
NodeName=c2 CPUTot=64 CPUEfctv=62 RealMemory=250000 Gres=(null) Partitions=cpu
NodeName=a1 CPUTot=32 RealMemory=1 Gres=gpu:a100:4(S:0-1),shard:8 Partitions=gpu
NodeName=a2 CPUTot=32 RealMemory=1 Gres=gpu:nvidia_a100_80gb_pcie:2,gpu:1g.5gb:7 Partitions=gpu
NodeName=a3 CPUTot=32 RealMemory=1 Gres=gpu:a100:4 Partitions=gpu State=DOWN
NodeName=h1 CPUTot=32 RealMemory=1 Gres=gpu:8 Partitions=gpu
"""
SITE = slurm_cluster.parsed(PARTITIONS, NODES)


@pytest.fixture
def config() -> dict:
    """Return config.yaml for the partitions above."""
    value = configuration.load()
    value["slurm"]["partition"] = "gpu"
    value["hardware"] |= {
        "cpu8": {"device": "cpu", "devices": 8, "slurm": {"partition": "cpu"}},
        "cpu2t4": {"device": "cpu", "devices": 2, "threads": 4, "slurm": {"partition": "cpu"}},
        "apple": {"device": "mps", "devices": 1},
        "2x2": {"device": "cuda", "devices": 2, "nodes": 2, "gpu_model": "A100"},
        "9x1": {"device": "cpu", "devices": 1, "nodes": 9},
        "2x1": {"device": "cpu", "devices": 1, "nodes": 2, "slurm": {"partition": "cpu"}},
        "h200x4": {"device": "cuda", "devices": 4, "gpu_model": "H200"},
        "gpu4": {"device": "cuda", "devices": 4, "slurm": {"constraint": "h200"}},
    }
    return configuration.checked(value)


def line(config: dict, name: str, **asked) -> str:
    """Return the sbatch line of a hardware, as the plugin makes it."""
    settings = slurm.settings(config, name) | asked
    hardware = configuration.hardware(name, config)
    return slurm_site.sbatch_line(slurm.resources(hardware, settings, SITE))


def missing(config: dict, name: str, **asked) -> str | None:
    settings = slurm.settings(config, name) | asked
    return slurm.missing(SITE, configuration.hardware(name, config), settings)


# ---------------------------------------------------------------- resources


TWO_NODES = (
    "sbatch -p gpu --nodes=2 --requeue --ntasks=2 --cpus-per-task=8 --open-mode=append"
    " --ntasks-per-node=1"
)
GPU = "sbatch -p gpu --nodes=1 --requeue --cpus-per-task=8 --open-mode=append"
LINES = [
    ("cpu8", {}, "sbatch -p cpu --mem 48000 --nodes=1 --requeue --ntasks=1 --cpus-per-task=8 "),
    ("cpu2t4", {}, "--ntasks=1 --cpus-per-task=8"),
    # Memory is left out: these nodes state none, and Slurm would refuse any.
    ("a100x2", {}, f"{GPU} --gpus=a100:2"),
    ("a100x2", {"gpus": "gres"}, f"{GPU} --gres=gpu:a100:2"),
    ("gpu2", {}, "--gpus=2"),
    ("gpu4", {}, "-C h200 "),  # GPUs without a type are selected by a feature
    ("2x2", {}, f"{TWO_NODES} --gpus-per-node=a100:2"),
    ("2x2", {"gpus": "gres"}, f"{TWO_NODES} --gres=gpu:a100:2"),
    ("2x1", {}, "--nodes=2 --requeue --ntasks=2 --cpus-per-task=1"),
    ("a100x1", {"account": "phys", "qos": "long"}, "-A phys -p gpu --qos=long"),
    ("a100x1", {"constraint": "ib&rome", "exclusive": True}, "-C 'ib&rome'"),
    ("a100x1", {"exclusive": True}, "--exclusive"),
]


@pytest.mark.parametrize(("name", "asked", "words"), LINES)
def test_what_a_cell_asks_for(config, name, asked, words):
    assert words in line(config, name, **asked)


# ---------------------------------------------------------------- missing hardware


LACKING = [
    ("2x2", {}, None),
    ("gpu4", {}, None),
    ("h200x4", {}, "needs 4x H200, 16 cores (partition gpu has none)"),
    ("a30x2", {}, "needs 2x A30, 8 cores (partition gpu has none)"),
    ("9x1", {}, "needs 9 nodes with 1 cores (partition gpu has 4)"),
    ("gpu1", {"partition": "cpu"}, "needs 1x GPU, 4 cores, 6000 MiB of memory (partition cpu has"),
    ("a100x2", {"cpus_per_gpu": 20}, "needs 2x A100, 40 cores (partition gpu"),
    ("apple", {}, "needs an Apple GPU"),
    ("cpu8", {"memory_mib": 40_000}, "needs 8 cores, 320000 MiB of memory (partition cpu has"),
]


@pytest.mark.parametrize(("name", "asked", "reason"), LACKING)
def test_hardware_that_no_nodes_of_the_partition_have_is_not_run(config, name, asked, reason):
    """A node that is down counts: it comes back."""
    found = missing(config, name, **asked)
    assert found is None if reason is None else found.startswith(reason)


def test_a_partition_that_does_not_exist_is_named_with_its_key(config, tmp_path):
    base, own = ROOT / "config.yaml", tmp_path / "mine.yaml"
    config["slurm"]["partition"] = "gpus"
    expected = "^config.yaml: slurm.partition: there is no partition 'gpus'; did you mean 'gpu"
    with pytest.raises(ParbenchError, match=expected):
        slurm.check(SITE, config, [base], "a100x2")
    own.write_text("hardware: {cpu8: {slurm: {partition: nope}}}")
    config["hardware"]["cpu8"]["slurm"]["partition"] = "nope"
    with pytest.raises(ParbenchError, match="mine.yaml: hardware.cpu8.slurm.partition: there is"):
        slurm.check(SITE, config, [base, own], "cpu8")


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("00:01:30", 1), ("12:00:00", 720), ("2-06:30:00", 3270), ("UNLIMITED", None)],
)
def test_walltimes_of_slurm(text, minutes):
    assert slurm_cluster.minutes(text) == minutes


# ---------------------------------------------------------------- from earlier runs


@pytest.fixture
def planned(monkeypatch, tmp_path) -> expansion.Plan:
    """Return the quickstart's plan, in a work folder without results."""
    monkeypatch.chdir(tmp_path)
    config = configuration.checked(configuration.load())
    settled = {**config, "deployment": "host", "reason": "", "auto": False}
    settled["override"] = {"quickstart": {"seeds": [0, 1]}}
    return expansion.plan(settled, lacking=lambda group, cell: None)


def took(name: str, seconds: float) -> None:
    times = [datetime.fromtimestamp(each, UTC).isoformat() for each in (0, seconds)]
    found = dict(zip(("started", "finished"), times, strict=True))
    write_json(places.folder(name) / "metrics.json", found)


def test_the_walltime_of_a_cell(planned, config):
    name = next(cell for cell in planned.cells if "swin.eager.cpu1.s0" in cell)
    twin = next(cell for cell in planned.cells if "swin.eager.cpu1.s1" in cell)
    config["hardware"]["cpu1"]["slurm"] = {"partition": "cpu"}
    epochs = planned.cells[name].training.epochs

    def walltime() -> int:
        return slurm.Requests(planned, config, SITE, {}).of(name)["runtime"]

    assert walltime() == slurm.FIXED_MINUTES + math.ceil(epochs * slurm.UNKNOWN_SAMPLES / 20 / 60)
    write_json("results/data/digits/digest.json", {"sha256": "0" * 64, "train": 1200})
    # An epoch of 1,200 samples, 20 a second, takes a minute.
    assert walltime() == slurm.FIXED_MINUTES + epochs
    took(twin, 600)
    assert walltime() == slurm.FIXED_MINUTES + 20
    took(twin, 10**6)
    assert walltime() == 36 * 60  # no longer than the partition allows
    config["slurm"]["minutes"] = 7
    assert walltime() == 7


def test_a_pair_asks_for_all_that_its_sides_need(config, monkeypatch, tmp_path):
    """Exclusive nodes, and the memory of both sides, which are loaded at once."""
    monkeypatch.chdir(tmp_path)
    add_pairs(monkeypatch, tmp_path, "{compare: [{variant: ddp, baseline: eager}]}")
    for name in ("cpu1", "cpu2"):
        config["hardware"][name]["slurm"] = {"partition": "cpu", "memory_mib": 1000}
    settled = {**config, "studies": ["laharsh-cpu"], "deployment": "host", "reason": ""}
    plan = expansion.plan({**settled, "auto": False}, lacking=lambda group, cell: None)
    one, twin, *_ = plan.studies["laharsh-cpu"].pairs[0].cells

    def asked() -> dict:
        return slurm.Requests(plan, config, SITE, {}).of(one)

    line = slurm_site.sbatch_line(asked())
    assert "-p cpu -t 30 --mem 3000 --nodes=1 --requeue --ntasks=1 --cpus-per-task=2 " in line
    assert "--exclusive" in line
    assert asked()["runtime"] == slurm.PAIR_MINUTES + slurm.FIXED_MINUTES
    took(twin, 600)
    assert asked()["runtime"] == slurm.FIXED_MINUTES + 20


def test_a_compute_node_plans_what_the_submitter_planned(planned):
    """It may have other cores and GPUs, and tables made there must not differ."""
    plan = planned.studies["quickstart"].stated()
    plan["groups"][0]["not_run"] = "needs a moon"
    write_json("results/plan/quickstart.json", plan)
    lacking = expansion.lacking_as_planned(["quickstart"])
    assert lacking(plan["groups"][0]["id"], {}) == "needs a moon"
    assert lacking(plan["groups"][1]["id"], {}) is None
    assert lacking("of a study that nobody planned", {}) is None


def test_a_cells_job_reads_what_its_submitter_wrote_of_it(planned, config):
    """Only cell.json: a study may have thousands of cells, and be edited while jobs wait."""
    writing.write(planned)
    for name, cell in list(planned.cells.items())[:20]:
        alone = writing.plan_of(name, config)
        assert alone.cells == {name: cell}
        assert state.code_digest(alone.cells[name]) == state.code_digest(cell)
