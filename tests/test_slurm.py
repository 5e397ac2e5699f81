"""What cells ask Slurm for, and what is found wrong before anything is submitted."""

from __future__ import annotations

import math
import os
from datetime import UTC, datetime

import pytest

from parbench.errors import ParbenchError
from parbench.files import write_json
from parbench.launch import slurm, slurm_cluster
from parbench.plan import config as configuration
from parbench.plan import expansion, places
from workspace import ROOT

slurm_site = pytest.importorskip(
    "parbench.launch.slurm_site", reason="the stack `paper` has no Slurm plugin"
)

# As sites say it: sockets behind a count, slices of a GPU, GPUs without a type, no memory stated.
PARTITIONS = """\
PartitionName=cpu AllowGroups=ALL Default=YES MaxNodes=UNLIMITED MaxTime=1-12:00:00 Nodes=c[1-2]
PartitionName=gpu AllowGroups=ALL Default=NO MaxNodes=2 MaxTime=UNLIMITED Nodes=a[1-3],h1
"""
NODES = """\
NodeName=c1 CPUTot=64 CPUEfctv=62 RealMemory=250000 AvailableFeatures=(null) Gres=(null) Partitions=cpu
NodeName=c2 CPUTot=64 CPUEfctv=62 RealMemory=250000 AvailableFeatures=(null) Gres=(null) Partitions=cpu
NodeName=a1 CPUTot=32 RealMemory=1 AvailableFeatures=ib,rome Gres=gpu:a100:4(S:0-1),shard:8 Partitions=gpu
NodeName=a2 CPUTot=32 RealMemory=1 AvailableFeatures=ib,rome Gres=gpu:nvidia_a100_80gb_pcie:2,gpu:1g.5gb:7 Partitions=gpu
NodeName=a3 CPUTot=32 RealMemory=1 AvailableFeatures=rome Gres=gpu:a100:4 Partitions=gpu State=DOWN
NodeName=h1 CPUTot=32 RealMemory=1 AvailableFeatures=h200 Gres=gpu:8 Partitions=gpu
"""  # noqa: E501
CONFIG = """\
Configuration data as of 2026-11-21T14:44:19
AccountingStorageType   = accounting_storage/none
SelectType              = select/cons_tres
"""
SITE = slurm_cluster.parsed(PARTITIONS, NODES, CONFIG)


@pytest.fixture
def config() -> dict:
    """config.yaml, for the partitions above."""
    value = configuration.load()
    value["slurm"]["partition"] = "gpu"
    value["hardware"] |= {
        "cpu8": {"device": "cpu", "devices": 8, "slurm": {"partition": "cpu"}},
        "cpu2t4": {"device": "cpu", "devices": 2, "threads": 4, "slurm": {"partition": "cpu"}},
        "apple": {"device": "mps", "devices": 1},
        "2x2": {"device": "cuda", "devices": 2, "nodes": 2, "gpu_model": "A100"},
        "2x1": {"device": "cpu", "devices": 1, "nodes": 2, "slurm": {"partition": "cpu"}},
        "h200x4": {
            "device": "cuda",
            "devices": 4,
            "gpu_model": "H200",
            "slurm": {"constraint": "h200"},
        },
    }
    return configuration.checked(value)


def line(config: dict, name: str, **asked) -> str:
    """The sbatch line of a hardware, as the plugin makes it."""
    settings = slurm.settings(config, name) | asked
    hardware = configuration.hardware(name, config)
    return slurm_site.sbatch_line(slurm.resources(hardware, settings, SITE))


def missing(config: dict, name: str, **asked) -> str | None:
    settings = slurm.settings(config, name) | asked
    return slurm.missing(SITE, configuration.hardware(name, config), settings)


# ---------------------------------------------------------------- resources


def test_a_cell_on_cores_asks_for_a_task_with_as_many(config):
    assert line(config, "cpu8") == (
        "sbatch -p cpu --mem 48000 --nodes=1 --requeue --ntasks=1 --cpus-per-task=8"
        " --open-mode=append"
    )


def test_threads_of_a_device_are_cores_of_its_task(config):
    assert "--ntasks=1 --cpus-per-task=8" in line(config, "cpu2t4")
    assert missing(config, "cpu2t4", partition="cpu") is None


def test_gpus_are_asked_for_as_the_site_spells_them(config):
    """Memory is left out: these nodes state none, and Slurm would refuse any."""
    assert line(config, "a100x2") == (
        "sbatch -p gpu --nodes=1 --requeue --cpus-per-task=8 --open-mode=append --gpus=a100:2"
    )
    assert line(config, "gpu2").endswith("--gpus=2")


def test_gpus_by_gres(config):
    assert line(config, "a100x2", gpus="gres") == (
        "sbatch -p gpu --nodes=1 --requeue --cpus-per-task=8 --open-mode=append --gres=gpu:a100:2"
    )


def test_two_nodes_are_two_tasks_with_gpus_on_each(config):
    start = "sbatch -p gpu --nodes=2 --requeue"
    end = "--ntasks=2 --cpus-per-task=8 --open-mode=append --ntasks-per-node=1"
    assert line(config, "2x2") == f"{start} {end} --gpus-per-node=a100:2"
    assert line(config, "2x2", gpus="gres") == f"{start} {end} --gres=gpu:a100:2"
    assert "--nodes=2 --requeue --ntasks=2 --cpus-per-task=1" in line(config, "2x1")


def test_what_the_site_wants_to_be_named(config):
    asked = {"account": "phys", "qos": "long", "constraint": "ib&rome", "exclusive": True}
    words = line(config, "a100x1", **asked)
    for option in ("-A phys", "--qos=long", "-C 'ib&rome'", "--exclusive"):
        assert option in words


def test_gpus_without_a_type_are_known_by_a_feature(config):
    assert missing(config, "h200x4") is None
    assert line(config, "h200x4").endswith("--gpus=4")
    assert missing(config, "h200x4", constraint=None) is not None


# ---------------------------------------------------------------- what the cluster lacks


@pytest.mark.parametrize(
    ("name", "asked", "reason"),
    [
        ("2x2", {}, None),
        ("a30x2", {}, "needs 2x A30 (partition gpu has nodes: "),
        (
            "2x2",
            {"constraint": "ib"},
            "needs 2 nodes with 2x A100 (partition gpu has nodes of that",
        ),
        ("gpu2", {"constraint": "h200"}, None),
        (
            "2x1",
            {"partition": "gpu", "constraint": "h200"},
            "needs 2 cores: 2 nodes with 1 cores (",
        ),
        ("gpu1", {"partition": "cpu"}, "needs 1 GPU (partition cpu has nodes: 2 with 62 cores"),
        ("a100x2", {"cpus_per_gpu": 20}, "needs 2x A100 and 40 cores (partition gpu"),
        ("apple", {}, "needs an Apple GPU"),
        ("cpu8", {"memory_mib": 40_000}, "needs 8 cores and 320000 MiB of memory (partition cpu"),
    ],
)
def test_hardware_that_no_nodes_of_the_partition_have_is_not_run(config, name, asked, reason):
    """A node that is down counts: it comes back."""
    found = missing(config, name, **asked)
    assert found is None if reason is None else found.startswith(reason)


def test_a_partition_that_gives_few_nodes_to_a_job(config):
    config["hardware"]["2x1"]["nodes"] = 3
    assert missing(config, "2x1", partition="gpu").endswith("(partition gpu gives a job at most 2)")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"partition": "gpus"}, "slurm.partition: there is no partition 'gpus'; did you mean 'gpu"),
        ({"constraint": "ibx"}, "no node of partition gpu has the feature 'ibx'"),
        ({"account": "phys"}, "slurm.account: 'phys', but this cluster keeps no accounts"),
        ({"qos": "long"}, "slurm.qos: 'long', but without accounting a cluster has none; say null"),
        ({"prepare": "login"}, "slurm.prepare: neither `submit` nor a partition: 'login'"),
    ],
)  # fmt: skip
def test_a_name_that_does_not_exist_is_named_with_its_key(config, change, message):
    config["slurm"] |= change
    with pytest.raises(ParbenchError, match="^config.yaml: slurm") as caught:
        slurm.check(SITE, config, [ROOT / "config.yaml"], "a100x2")
    assert message in str(caught.value)


def test_the_key_of_a_hardware_is_named_where_it_is_that_one(config, tmp_path):
    own = tmp_path / "mine.yaml"
    own.write_text("hardware: {cpu8: {slurm: {partition: nope}}}")
    config["hardware"]["cpu8"]["slurm"]["partition"] = "nope"
    with pytest.raises(ParbenchError, match="mine.yaml: hardware.cpu8.slurm.partition: there is"):
        slurm.check(SITE, config, [ROOT / "config.yaml", own], "cpu8")


def test_a_gpu_that_was_configured_for_this_cluster_must_be_there(config):
    """That of a paper, without a `slurm` of its own, is a row "not run"."""
    slurm.check(SITE, config, [ROOT / "config.yaml"], "a30x2")
    config["hardware"]["a30x2"]["slurm"] = {"partition": "gpu"}
    with pytest.raises(ParbenchError, match=r"a30x2.gpu_model: no node .* has a GPU 'A30'.*a100"):
        slurm.check(SITE, config, [ROOT / "config.yaml"], "a30x2")


def test_with_accounting_names_are_compared_with_the_users_own(config, monkeypatch, tmp_path):
    """sacctmgr stands in for a site's: there is no database here."""
    program = tmp_path / "sacctmgr"
    program.write_text(
        '#!/bin/sh\ncase "$*" in *assoc*) echo phys; echo chem;; *) echo normal;; esac'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    site = slurm_cluster.parsed(PARTITIONS, NODES, CONFIG.replace("/none", "/slurmdbd"))
    for ask in (slurm.accounts, slurm.qualities):
        ask.cache_clear()
    config["slurm"] |= {"account": "Phys", "qos": "normal"}
    slurm.check(site, config, [ROOT / "config.yaml"], "a100x2")
    config["slurm"] |= {"account": "phis"}
    with pytest.raises(ParbenchError, match=r"may not use 'phis'; did you mean 'phys'\?"):
        slurm.check(site, config, [ROOT / "config.yaml"], "a100x2")
    config["slurm"] |= {"account": None, "qos": "norml"}
    with pytest.raises(ParbenchError, match=r"slurm.qos: there is no 'norml'; did you mean"):
        slurm.check(site, config, [ROOT / "config.yaml"], "a100x2")
    for ask in (slurm.accounts, slurm.qualities):
        ask.cache_clear()


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("1:00", None), ("00:01:30", 1), ("12:00:00", 720), ("2-06:30:00", 3270), ("UNLIMITED", None)],
)
def test_walltimes_of_slurm(text, minutes):
    assert slurm_cluster.minutes(text) == minutes


# ---------------------------------------------------------------- from earlier runs


@pytest.fixture
def planned(monkeypatch, tmp_path) -> expansion.Plan:
    """The quickstart's plan, in a work folder without results."""
    monkeypatch.chdir(tmp_path)
    config = configuration.checked(configuration.load())
    settled = {**config, "deployment": "host", "reason": "", "auto": False}
    return expansion.plan(settled, lacking=lambda group, cell: None)


def took(name: str, seconds: float) -> None:
    times = [datetime.fromtimestamp(each, UTC).isoformat() for each in (0, seconds)]
    found = dict(zip(("started", "finished"), times, strict=True))
    write_json(places.folder(name) / "metrics.json", found)


def test_the_walltime_of_a_cell(planned, config):
    name = next(cell for cell in planned.cells if "swin.eager.cpu1.s0" in cell)
    twin = next(cell for cell in planned.cells if "swin.eager.cpu1.s1" in cell)
    config["hardware"]["cpu1"]["slurm"] = {"partition": "cpu"}

    def walltime() -> int:
        return slurm.Requests(planned, config, SITE, {}).of(name)["runtime"]

    write_json("results/data/digits/digest.json", {"sha256": "0" * 64, "train": 1200})
    # 5 epochs of 1,200 samples, 20 a second: 5 minutes.
    assert walltime() == slurm.FIXED_MINUTES + 5
    write_json("results/data/digits/digest.json", ["damaged"])
    assert walltime() == slurm.FIXED_MINUTES + math.ceil(5 * slurm.UNKNOWN_SAMPLES / 20 / 60)
    took(twin, 600)
    assert walltime() == slurm.FIXED_MINUTES + 20
    took(twin, 10**6)
    assert walltime() == 36 * 60  # no longer than the partition allows
    config["slurm"]["minutes"] = 7
    assert walltime() == 7


def test_a_compute_node_plans_what_the_submitter_planned(planned):
    """It may have other cores and GPUs, and tables made there must not differ."""
    plan = planned.studies["quickstart"].stated()
    plan["groups"][0]["not_run"] = "needs a moon"
    write_json("results/plan/quickstart.json", plan)
    lacking = expansion.lacking_as_planned(["quickstart"])
    assert lacking(plan["groups"][0]["id"], {}) == "needs a moon"
    assert lacking(plan["groups"][1]["id"], {}) is None
    assert lacking("of a study that nobody planned", {}) is None
