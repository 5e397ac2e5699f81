"""What cells ask Slurm for, and what is found wrong before anything is submitted."""

from __future__ import annotations

import math
import os
import subprocess
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from parbench import identity
from parbench.errors import ParbenchError
from parbench.files import write_json
from parbench.launch import launcher, slurm, slurm_cluster, slurm_job
from parbench.plan import config_files, expansion, places, writing
from parbench.plan.configuration import Config, HardwareSlurm
from workspace import add_pairs

slurm_site = pytest.importorskip(
    "parbench.launch.slurm_site", reason="the stack `paper` has no Slurm plugin"
)

# As sites report it: sockets behind a count, slices of a GPU, untyped GPUs, no memory stated.
PARTITIONS = """\
PartitionName=cpu AllowGroups=ALL Default=YES MaxTime=1-12:00:00 Nodes=c[1-2]
PartitionName=gpu AllowGroups=ALL Default=NO MaxTime=UNLIMITED Nodes=a[1-3],h1
PartitionName=nvml AllowGroups=ALL Default=NO MaxTime=UNLIMITED Nodes=s[1-2]
"""
NODES = """\
NodeName=c1 CPUTot=64 CPUEfctv=62 RealMemory=250000 Gres=(null) Partitions=cpu
NodeName=c2 CPUTot=64 CPUEfctv=62 RealMemory=250000 Gres=(null) Partitions=cpu
NodeName=a1 CPUTot=32 RealMemory=1 Gres=gpu:a100:4(S:0-1),shard:8 Partitions=gpu
NodeName=a2 CPUTot=32 RealMemory=1 Gres=gpu:nvidia_a100_80gb_pcie:2,gpu:1g.5gb:7 Partitions=gpu
NodeName=a3 CPUTot=32 RealMemory=1 Gres=gpu:a100:4 Partitions=gpu State=DOWN
NodeName=h1 CPUTot=32 RealMemory=1 Gres=gpu:8 Partitions=gpu
NodeName=s1 CPUTot=32 RealMemory=1 Gres=gpu:nvidia_a100-sxm4-80gb:4(S:0-1) Partitions=nvml
NodeName=s2 CPUTot=32 RealMemory=1 Gres=gpu:nvidia_a100-sxm4-80gb:4(S:0-1) Partitions=nvml
"""
SITE = slurm_cluster.parsed(PARTITIONS, NODES)


@pytest.fixture
def config() -> Config:
    """Return config.yaml, with `--config` for the partitions above."""
    hardware = {
        "cpu8": {"device": "cpu", "devices": 8, "slurm": {"partition": "cpu"}},
        "cpu2t4": {"device": "cpu", "devices": 2, "threads": 4, "slurm": {"partition": "cpu"}},
        "a100x2t20": {"device": "cuda", "devices": 2, "threads": 20, "gpu_model": "A100"},
        "apple": {"device": "mps", "devices": 1},
        "2x2": {"device": "cuda", "devices": 2, "nodes": 2, "gpu_model": "A100"},
        "9x1": {"device": "cpu", "devices": 1, "nodes": 9},
        "2x1": {"device": "cpu", "devices": 1, "nodes": 2, "slurm": {"partition": "cpu"}},
        "h200x4": {"device": "cuda", "devices": 4, "gpu_model": "H200"},
        "gpu4": {"device": "cuda", "devices": 4, "slurm": {"constraint": "h200"}},
    }
    return config_files.read([], {"slurm": {"partition": "gpu"}, "hardware": hardware})


def line(config: Config, name: str, **asked) -> str:
    """Return the sbatch line of an entry of `hardware`, as the plugin makes it."""
    settings = config.slurm_of(name).model_copy(update=asked)
    hardware = config.hardware[name].with_name(name)
    return slurm_site.sbatch_line(slurm.resources(hardware, settings, SITE))


def missing(config: Config, name: str, **asked) -> str | None:
    settings = config.slurm_of(name).model_copy(update=asked)
    return slurm.missing(SITE, config.hardware[name].with_name(name), settings)


# ---------------------------------------------------------------- resources


TWO_NODES = (
    "sbatch -p gpu --nodes=2 --requeue --ntasks=2 --cpus-per-task=8 --open-mode=append"
    " --ntasks-per-node=1"
)
GPU = "sbatch -p gpu --nodes=1 --requeue --ntasks=1 --cpus-per-task=8 --open-mode=append"
LINES = [
    ("cpu8", {}, "sbatch -p cpu --mem 48000 --nodes=1 --requeue --ntasks=1 --cpus-per-task=8 "),
    ("cpu2t4", {}, "--ntasks=1 --cpus-per-task=8"),
    # Memory is left out: these nodes state none, and Slurm would refuse any.
    ("a100x2", {}, f"{GPU} --gpus-per-node=a100:2"),
    ("a100x2", {"gpus": "gres"}, f"{GPU} --gres=gpu:a100:2"),
    ("gpu2", {}, "--gpus-per-node=2"),
    ("gpu2", {"gpus": "gres"}, "--gres=gpu:2"),
    # As NVML names types; the plugin's own resources take no hyphens.
    ("a100x2", {"partition": "nvml"}, "--gpus-per-node=nvidia_a100-sxm4-80gb:2"),
    ("a100x2", {"partition": "nvml", "gpus": "gres"}, "--gres=gpu:nvidia_a100-sxm4-80gb:2"),
    ("2x2", {"partition": "nvml"}, "--gpus-per-node=nvidia_a100-sxm4-80gb:2"),
    ("2x2", {"partition": "nvml", "gpus": "gres"}, "--gres=gpu:nvidia_a100-sxm4-80gb:2"),
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
    ("a100x2t20", {}, "needs 2x A100, 40 cores (partition gpu"),
    ("apple", {}, "needs an Apple GPU"),
    ("cpu8", {"memory_mib": 40_000}, "needs 8 cores, 320000 MiB of memory (partition cpu has"),
]


@pytest.mark.parametrize(("name", "asked", "reason"), LACKING)
def test_hardware_that_no_nodes_of_the_partition_have_is_not_run(config, name, asked, reason):
    """A node that is down counts: it comes back."""
    found = missing(config, name, **asked)
    assert found is None if reason is None else found.startswith(reason)


def test_a_partition_that_does_not_exist_is_named_with_its_key(config, tmp_path):
    config.slurm.partition = "gpus"
    expected = "^--config: slurm.partition: there is no partition 'gpus'; did you mean 'gpu"
    with pytest.raises(ParbenchError, match=expected):
        slurm.check(SITE, config, "a100x2")
    own = tmp_path / "mine.yaml"
    own.write_text("hardware: {cpu8: {slurm: {partition: nope}}}")
    read = config_files.read([own])
    with pytest.raises(ParbenchError, match="mine.yaml: hardware.cpu8.slurm.partition: there is"):
        slurm.check(SITE, read, "cpu8")
    typed = config_files.read([own], {"slurm": {"partition": "gpus"}})
    with pytest.raises(ParbenchError, match="^--config: slurm.partition: there is no"):
        slurm.check(SITE, typed, "cpu2")


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("00:01:30", 1), ("12:00:00", 720), ("2-06:30:00", 3270), ("UNLIMITED", None)],
)
def test_walltimes_of_slurm(text, minutes):
    assert slurm_cluster.minutes(text) == minutes


def test_the_doctor_shows_the_walltime_that_is_asked_for(monkeypatch, tmp_path):
    """Also where the partition has no limit."""
    monkeypatch.setattr(slurm_cluster, "ask", lambda: SITE)
    monkeypatch.setattr(slurm_site, "try_sbatch", lambda line: (True, "it fits"))
    own = tmp_path / "mine.yaml"
    own.write_text("slurm: {partition: gpu, minutes: 240}")
    found = {check.check: check for check in slurm_site.examine([own])}
    assert "-p gpu -t 240 --nodes=1 " in found["a100x1"].found
    own.write_text("slurm: {partition: cpu, minutes: 10000}")
    found = {check.check: check for check in slurm_site.examine([own])}
    assert "-p cpu -t 2160 --mem " in found["cpu1, in use"].found


def test_the_doctor_knows_how_many_jobs_the_site_lets_queue(monkeypatch, tmp_path):
    monkeypatch.setattr(slurm_cluster, "ask", lambda: SITE)
    monkeypatch.setattr(slurm_site, "try_sbatch", lambda line: (True, "it fits"))
    (tmp_path / "sacctmgr").write_text(
        '#!/bin/sh\ncase "$*" in *" qos "*) echo "long||7|" ;;\n'
        '*) echo "phys|10|400"; echo "chem||" ;; esac\n'
    )
    (tmp_path / "sacctmgr").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    own = tmp_path / "mine.yaml"
    own.write_text("slurm: {partition: gpu, qos: long}")
    found = [check for check in slurm_site.examine([own]) if check.check == "jobs at once"]
    assert [check.found for check in found] == [
        "account phys lets you have 10 in the queue; slurm/config.yaml: 500",
        "QoS long lets you have 7 in the queue; slurm/config.yaml: 500",
    ]
    assert found[1].fix == "snakemake --profile slurm --jobs 7"


# ---------------------------------------------------------------- the job of a cell


JOB = """\
JobId=7 JobName=5f9c
   JobState=RUNNING Reason=None Dependency=(null)
   RunTime=00:00:02 TimeLimit=00:10:00 TimeMin=N/A
   StartTime=1764108600 EndTime=1764109200 Deadline=N/A
   NodeList=c1 BatchHost=c1
   NumNodes=1 NumCPUs={cores} NumTasks=1 CPUs/Task=2 ReqB:S:C:T=0:0:*:*
   OverSubscribe={oversubscribe} Contiguous=0 Licenses=(null) Network=(null)
   Command=(null)
   WorkDir=/home/ada/my work
   Comment={comment}
   StdErr={log}
   StdIn=/dev/null
   StdOut={log}
   Power=
"""
NODE = "NodeName=c1 Arch=x86_64 CPUTot=64 CPUEfctv=62 NodeAddr=10.0.0.1 NodeHostName=c1"
REWRITTEN = "project=x JobState=FAILED NumCPUs=1"
LOG = "/home/ada/my work/.snakemake/slurm_logs/rule_train_and_keep/net.eager.s0-1f/7.log"


@pytest.fixture
def job(monkeypatch):
    """Return a function that returns what the launcher makes of its job."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(slurm_job.shutil, "which", lambda name: f"/usr/bin/{name}")

    def make(comment: str = "", log: str = "/dev/null", cores: int = 2, oversubscribe: str = "OK"):
        text = JOB.format(comment=comment, log=log, cores=cores, oversubscribe=oversubscribe)
        answers = {"job": text, "node": NODE}
        monkeypatch.setattr(slurm_cluster, "run", lambda *words, **patience: answers[words[2]])
        return slurm_job.current()

    return make


@pytest.mark.parametrize(
    ("comment", "log", "cell"),
    [
        ("rule_train_wildcards_net.eager.s0-1f", "/dev/null", "net.eager.s0-1f"),
        ("rule_train_and_keep_wildcards_net.eager.s0-1f", "/dev/null", "net.eager.s0-1f"),
        (REWRITTEN, LOG, "net.eager.s0-1f"),
        ("rule_table_wildcards_quickstart", "/dev/null", "quickstart"),  # no cell has this name
        (REWRITTEN, "/home/ada/slurm-7.out", None),
    ],
)
def test_a_job_knows_its_cell_whatever_the_site_writes_into_comments(job, comment, log, cell):
    made = job(comment, log)
    assert (made.cell, made.cpus_per_task, made.ends) == (cell, 2, 1764109200)


def test_ranks_are_asked_to_stop_before_the_end_of_the_walltime(job, monkeypatch):
    """Early enough for their grace period and for what the launcher does after it."""
    alarms = []
    monkeypatch.setattr(launcher.signal, "signal", lambda *_: None)
    monkeypatch.setattr(launcher.signal, "alarm", alarms.append)
    made = job()
    monkeypatch.setattr(launcher.time, "time", lambda: made.ends - 120)
    launcher.Stop().listen(made, grace=5)
    assert alarms == [120 - 5 - launcher.MARGIN_SECONDS]


def test_a_job_is_alone_where_it_has_all_cores_to_itself(job):
    """Also on a partition that gives whole nodes to everybody."""
    assert [job(cores=number).alone for number in (61, 62, 64)] == [False, True, True]
    assert not job(cores=64, oversubscribe="YES").alone


# ---------------------------------------------------------------- a controller that does not answer


@pytest.fixture
def controller(monkeypatch, tmp_path):
    """Return a function that makes `scontrol` fail with some messages first; pauses take no time.

    What it returns is the list of pauses.
    """

    def silent(*messages: str) -> list[float]:
        for number, message in enumerate(messages):
            (tmp_path / f"message{number}").write_text(message)
        program = tmp_path / "scontrol"
        lines = ["#!/bin/sh", f'for it in {tmp_path}/message*; do [ -e "$it" ] || break']
        lines += ['/bin/cat "$it" >&2; /bin/rm "$it"; exit 1; done', "echo an answer"]
        program.write_text("\n".join(lines))
        program.chmod(0o755)
        now, pauses = [0.0], []

        def sleep(seconds: float) -> None:
            now[0] += seconds
            pauses.append(seconds)

        clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
        monkeypatch.setattr(slurm_cluster, "time", clock)
        return pauses

    monkeypatch.setenv("PATH", str(tmp_path))
    return silent


UNREACHABLE = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
SILENT = [
    UNREACHABLE,
    "slurm_load_partitions error: Socket timed out on send/recv operation",
    "Unexpected message received for job 1",
]


def test_a_controller_that_does_not_answer_is_asked_again(controller, capfd):
    pauses = controller(*SILENT)
    assert slurm_cluster.run("scontrol", "show", "job", "1") == "an answer\n"
    assert pauses == [1, 2, 4]
    expected = f"Slurm's controller does not answer ({UNREACHABLE}): asking again for up to 60"
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(expected)


def test_patience_has_an_end(controller):
    pauses = controller(*[UNREACHABLE] * 99)
    with pytest.raises(
        ParbenchError, match=r"scontrol show job 1: .*Unable to contact.*try: sinfo"
    ):
        slurm_cluster.run("scontrol", "show", "job", "1", patience=100)
    assert pauses == [1, 2, 4, 8, 16, 30, 30]


def test_any_other_answer_counts_at_once(controller):
    pauses = controller("slurm_load_jobs error: Invalid job id specified")
    with pytest.raises(ParbenchError, match="Invalid job id specified"):
        slurm_cluster.run("scontrol", "show", "job", "1")
    assert pauses == []


@pytest.mark.parametrize("name", ["sbatch", "srun"])
def test_what_the_plugin_starts_waits_for_the_controller(monkeypatch, tmp_path, name):
    programs = {
        "scontrol": f"rm {tmp_path}/down1 || rm {tmp_path}/down2 || exec echo Slurmctld is UP",
        "sleep": f'echo "$1" >>{tmp_path}/pauses',
        name: 'cat; printf "%s\\n" "$@"; exit 3',
    }
    for program, line in programs.items():
        (tmp_path / program).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / program).chmod(0o755)
    for number in (1, 2):
        (tmp_path / f"down{number}").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    slurm_cluster.retry_sbatch_and_srun()
    slurm_cluster.retry_sbatch_and_srun()
    words = [name, "--wrap=a  b", "*"]
    done = subprocess.run(words, input="script\n", capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "script\n--wrap=a  b\n*\n")
    assert done.stderr == f"Slurm's controller does not answer: {name} waits for up to 900 s\n"
    assert (tmp_path / "pauses").read_text().split() == ["1", "2"]


# ---------------------------------------------------------------- from earlier runs


@pytest.fixture
def planned(monkeypatch, tmp_path) -> expansion.Plan:
    """Return the quickstart's plan, in a work folder without results."""
    monkeypatch.chdir(tmp_path)
    override = {"quickstart": {"seeds": [0, 1]}}
    config = config_files.read([], {"deployment": "host", "override": override})
    deployment = config.resolved_deployment()
    return expansion.plan(config, deployment, why_unavailable=lambda group, cell: None)


def took(name: str, seconds: float) -> None:
    times = [datetime.fromtimestamp(each, UTC).isoformat() for each in (0, seconds)]
    found = dict(zip(("started", "finished"), times, strict=True))
    write_json(places.folder(name) / "metrics.json", found)


def test_the_walltime_of_a_cell(planned, config):
    name = next(cell for cell in planned.cells if "swin.eager.cpu1.s0" in cell)
    twin = next(cell for cell in planned.cells if "swin.eager.cpu1.s1" in cell)
    config.hardware["cpu1"].slurm = HardwareSlurm(partition="cpu")
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
    config.slurm.minutes = 7
    assert walltime() == 7


def test_a_pair_asks_for_all_that_its_sides_need(config, monkeypatch, tmp_path):
    """The memory of both sides, which are loaded at once; whole nodes if the user wants them."""
    monkeypatch.chdir(tmp_path)
    add_pairs(monkeypatch, tmp_path, "{compare: [{variant: ddp, baseline: eager}]}")
    for name in ("cpu1", "cpu2"):
        config.hardware[name].slurm = HardwareSlurm(partition="cpu", memory_mib=1000)
    config.studies, config.deployment = ["laharsh-cpu"], "host"
    deployment = config.resolved_deployment()
    plan = expansion.plan(config, deployment, why_unavailable=lambda group, cell: None)
    one, twin, *_ = plan.studies["laharsh-cpu"].pairs[0].cells

    def asked() -> dict:
        return slurm.Requests(plan, config, SITE, {}).of(one)

    line = slurm_site.sbatch_line(asked())
    assert "-p cpu -t 30 --mem 3000 --nodes=1 --requeue --ntasks=1 --cpus-per-task=2 " in line
    assert "--exclusive" not in line
    config.slurm.exclusive = True
    assert "--exclusive" in slurm_site.sbatch_line(asked())
    assert asked()["runtime"] == slurm.PAIR_MINUTES + slurm.FIXED_MINUTES
    took(twin, 600)
    assert asked()["runtime"] == slurm.FIXED_MINUTES + 20


def test_a_compute_node_plans_what_the_submitter_planned(planned):
    """It may have other cores and GPUs, and tables made there must not differ."""
    plan = planned.studies["quickstart"].stated()
    plan["groups"][0]["not_run"] = "needs a moon"
    write_json("results/plan/quickstart.json", plan)
    why_unavailable = expansion.unavailable_as_planned(["quickstart"])
    assert why_unavailable(plan["groups"][0]["id"], {}) == "needs a moon"
    assert why_unavailable(plan["groups"][1]["id"], {}) is None
    assert why_unavailable("of a study that nobody planned", {}) is None


def test_a_cells_job_reads_what_its_submitter_wrote_of_it(planned, config):
    """Only cell.json: a study may have thousands of cells, and be edited while jobs wait."""
    writing.write(planned)
    for name, cell in list(planned.cells.items())[:20]:
        alone = writing.plan_of(name, config)
        assert alone.cells == {name: cell}
        assert identity.planned(alone.cells[name], [None]) == identity.planned(cell, [None])
