"""What the machine is, and what it can run."""

from __future__ import annotations

import errno
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from parbench import errors, exits, machine, software, variables
from parbench.cell import Cell, Hardware
from parbench.launch import devices
from parbench.measure import cores, load, meters, steering
from training import altered, cell

SCRIPTS = variables.SCRIPTS
A100 = {"name": "NVIDIA A100-SXM4-40GB", "memory_mib": 40960, "driver": "580.1", "uuid": "GPU-aa"}
H100 = {"name": "NVIDIA H100 80GB HBM3", "memory_mib": 81559, "driver": "580.1", "uuid": "GPU-bb"}


def hardware(device: str, devices: int, model=None, nodes: int = 1, threads: int = 1) -> Hardware:
    return Hardware("x", device, devices, threads, nodes, model)


@pytest.fixture
def cards(monkeypatch):
    """Return a function that pretends that the machine has these accelerators."""

    def pretend(*found: dict) -> None:
        monkeypatch.setattr(machine, "accelerators", lambda: found)

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return pretend


def test_accelerators_are_described_without_their_serial_numbers(cards):
    cards(A100)
    assert machine.describe()["accelerators"] == [
        {"name": "NVIDIA A100-SXM4-40GB", "memory_mib": 40960, "driver": "580.1"}
    ]


def test_the_fingerprint_is_steady_where_times_stay_comparable(cards):
    found = []
    for accelerators in ([A100], [{**A100, "driver": "590.0"}], [A100, A100], [H100], []):
        cards(*accelerators)
        found.append(machine.describe()["fingerprint"])
    assert found[0] == found[1] == found[2]  # a job may be given more GPUs
    assert len(set(found)) == 3


def test_a_containers_cpu_limit_counts(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "CGROUPS", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert machine.cores() == 8
    for limit, number in (("max 100000", 8), ("400000 100000", 4), ("50000 100000", 1)):
        (tmp_path / "cpu.max").write_text(limit)
        assert machine.cores() == number


@pytest.mark.parametrize("controllers", ["cpu,cpuacct", "cpu"])
def test_limits_of_the_older_cgroups_count(monkeypatch, tmp_path, controllers):
    """Inside a container the path in /proc is that outside, and only the root is there."""
    cgroup = tmp_path / "cgroup"
    cgroup.write_text(f"9:memory:/docker/01\n4:{controllers}:/docker/01\n1:name=systemd:/x\n")
    real = machine.read
    monkeypatch.setattr(
        machine, "read", lambda path: real(cgroup if str(path) == "/proc/self/cgroup" else path)
    )
    monkeypatch.setattr(machine, "CGROUPS", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    for name in (controllers, "memory"):
        (tmp_path / name).mkdir()
    (tmp_path / controllers / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text(f"{300 * 2**20}\n")
    for quota, number in (("-1", 8), ("250000", 2), ("50000", 1)):
        (tmp_path / controllers / "cpu.cfs_quota_us").write_text(quota)
        assert machine.cores() == number
    assert machine.cpu_quota() == 0.5
    described = machine.describe()
    assert described["memory_mib"] == 300
    monkeypatch.setattr(machine, "CGROUPS", "/nowhere")
    assert machine.describe()["fingerprint"] == described["fingerprint"]


def test_kills_for_lack_of_memory_count_in_the_own_cgroup_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "CGROUPS", str(tmp_path))
    own = {"/proc/self/cgroup": "0::/slice/mine\n", "/proc/vmstat": "oom_kill 9\n"}
    real = machine.read
    monkeypatch.setattr(machine, "read", lambda path: own.get(str(path)) or real(path))
    assert machine.oom_kills() == 9  # of the whole machine: the kernel has no cgroups
    (tmp_path / "slice/mine").mkdir(parents=True)
    for folder, kills in (("slice", 5), ("slice/mine", 2)):
        (tmp_path / folder / "memory.events").write_text(f"oom 7\noom_kill {kills}\n")
        assert machine.oom_kills() == kills


# Enters a cgroup, has a child killed there, and prints how many kills it counts.
GREEDY = """
import os, subprocess, sys
from pathlib import Path
from parbench import machine
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
before = machine.oom_kills()
words = [sys.executable, "-c", "print(len(bytearray(200 * 2**20)))"]
assert subprocess.run(words).returncode == -9
print(machine.oom_kills() - before)
"""


def test_a_kill_in_another_cgroup_is_not_counted():
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line.split(":")[2] for line in lines if ":memory:" in line), "")
    inner = Path(f"{machine.CGROUPS}/memory{own}/parbench-test-{os.getpid()}")
    try:
        inner.mkdir()
        (inner / "memory.limit_in_bytes").write_text(str(100 * 2**20))
    except OSError as error:
        pytest.skip(f"no memory cgroup of version 1 can be made here: {error}")
    try:
        before = machine.oom_kills()
        scripts = str(Path(machine.__file__).parents[1])
        words = [sys.executable, "-c", GREEDY, str(inner)]
        environment = {**os.environ, "PYTHONPATH": scripts}
        found = subprocess.run(words, env=environment, capture_output=True, text=True)
        assert found.stdout == "1\n", found.stderr
        assert machine.oom_kills() == before
    finally:
        inner.rmdir()


# ---------------------------------------------------------------- programs that the machine has


@pytest.fixture
def program(monkeypatch, tmp_path):
    """Return a function that puts a shell script first on PATH; forget what was found before."""

    def write(name: str, script: str) -> None:
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        machine._accelerators.cache_clear()
        software._java.cache_clear()

    exists = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: path == "/dev/nvidiactl" or exists(path))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    for name in ("CUDA_VISIBLE_DEVICES", "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    yield write
    machine._accelerators.cache_clear()
    software._java.cache_clear()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", "mismatch"),
        ("echo 'could not talk to the driver' >&2; exit 9", "could not talk to the driver"),
        ("echo 'No devices were found'; exit 6", "No devices were found"),
        ("exit 1", "nothing"),
        ("exec /nowhere", "not found"),
    ],
)
def test_a_failing_driver_is_reported_in_its_own_words(program, script, said):
    program("nvidia-smi", script)
    assert machine.accelerators() == ()
    assert machine.driver_problem().startswith("nvidia-smi: ")
    assert said in machine.driver_problem()


def test_a_driver_that_hangs_is_reported(program, monkeypatch):
    program("nvidia-smi", "exec sleep 60")
    monkeypatch.setattr(machine, "ASK_SECONDS", 0.01)
    assert machine.accelerators() == ()
    assert "no answer within" in machine.driver_problem()


def on(gpus: int, threads: int) -> Cell:
    return altered(cell(), hardware={"device": "cuda", "devices": gpus, "threads": threads})


def test_a_gpu_has_the_cores_nearest_to_it_and_no_more_than_its_part(
    program, monkeypatch, tmp_path
):
    cards = "GPU-aa, 00000000:3B:00.0\nGPU-bb, 00000000:AF:00.0"
    rows = "\n".join(f"NVIDIA A100-SXM4-80GB, 81920, 580.1, GPU-{card}" for card in ("aa", "bb"))
    program("nvidia-smi", f"case $1 in *bus_id) echo '{cards}' ;; -L) ;; *) echo '{rows}' ;; esac")
    local = "/sys/bus/pci/devices/0000:{}:00.0/local_cpulist".format
    known = {local("3b"): "0-7\n", local("af"): "8-11,13\n"}
    monkeypatch.setattr(machine, "read", lambda path: known.get(str(path), ""))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(14)))
    monkeypatch.setattr(machine, "CGROUPS", str(tmp_path / "none"))
    assert machine.cores_near(["GPU-bb"]) == {8, 9, 10, 11, 13}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bb")
    with devices.lock_devices(on(1, 4)) as locked:
        assert (locked.gpus, locked.cores) == (("GPU-bb",), ("8", "9", "10", "11"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    for threads, expected in ((4, 8), (8, 14), (7, 14), (1, 2)):
        assert devices.needed(on(2, threads), 1) == (2, expected)
    assert devices.needed(on(1, 20), 1) == (1, 7)


def test_without_nvidia_smi_torch_tells_the_cards(program, monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text(
        "import os\n"
        "class cuda:\n"
        "    device_count = lambda: 2 - ('CUDA_VISIBLE_DEVICES' in os.environ)\n"
        "    def get_device_properties(number):\n"
        "        card = type('Card', (), {'name': 'NVIDIA A100', 'total_memory': 2**36})\n"
        "        card.uuid = 'ab'[number]\n"
        "        return card\n"
    )
    program("python", f'PYTHONPATH={shlex.quote(str(tmp_path))} exec {sys.executable} "$@"')
    found = shutil.which
    monkeypatch.setattr(
        shutil, "which", lambda name: (name != "nvidia-smi" and found(name)) or None
    )
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin/python"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert machine.usable_gpus() == ["GPU-b"]
    assert [card["memory_mib"] for card in machine.accelerators()] == [65536, 65536]


LISTING = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-aa)
  MIG 3g.40gb     Device  0: (UUID: MIG-11)
  MIG 1g.10gb+me  Device  1: (UUID: MIG-22)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-bb)"""


def test_a_card_in_slices_is_its_slices(program, monkeypatch):
    rows = [f"NVIDIA A100-SXM4-80GB, 81920, 580.1, GPU-{card}" for card in ("aa", "bb")]
    rows = "\n".join(["WARNING: infoROM is corrupted", *rows])
    program("nvidia-smi", f"case $1 in -L) echo '{LISTING}' ;; *) echo '{rows}' ;; esac")
    found = machine.available()["cuda"]
    assert found == {"A100 MIG 3g.40gb": 1, "A100 MIG 1g.10gb+me": 1, "A100": 1}
    assert machine.driver_problem() == "nvidia-smi: WARNING: infoROM is corrupted"
    assert machine.usable_gpus("A100") == ["GPU-bb"]
    assert machine.usable_gpus("A100 3g.40gb") == ["MIG-11"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-22")
    (slice_,) = machine.describe()["accelerators"]
    assert slice_ == {
        "name": "NVIDIA A100-SXM4-80GB MIG 1g.10gb+me", "memory_mib": 10240, "driver": "580.1"
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "model", "same"),
    [
        ("a100_1g.10gb", "A100", False),
        ("nvidia_a100_3g.20gb", "A100", False),
        ("a100-1g-10gb", "A100", False),
        ("NVIDIA A100-SXM4-80GB MIG", "A100", False),
        ("NVIDIA A100-SXM4-80GB MIG 1c.3g.40gb", "A100 3g.40gb", False),
        ("a100_1g.10gb", "A100 MIG 1g.10gb", True),
        ("a100_1g.10gb", "A100 2g.20gb", False),
        ("A100", "A100 1g.10gb", False),
        ("nvidia_a100-sxm4-80gb", "A100", True),
    ],
)
def test_a_slice_is_a_model_of_its_own(name, model, same):
    assert machine.is_model(name, model) is same


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ('openjdk version "1.8.0_392"', "8, "),
        ('java version "11.0.2" 2019-01-15 LTS', "11, "),
        ("openjdk 16.0.1 2021-04-20", "16, "),
        ('Picked up JAVA_TOOL_OPTIONS: -Dversion 17\nopenjdk version "1.8.0"', "8, "),
        ("what?", "which prints what?"),
        ('openjdk version "17.0.15" 2025-04-15', None),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21-ea" 2023', None),
        ('java version "25"', None),
    ],
)
def test_spark_needs_a_java_that_is_new_enough(program, monkeypatch, output, found):
    program("java", f"cat >&2 <<'END'\n{output}\nEND")
    monkeypatch.setattr(software.Software, "without", lambda *words: None)
    reason = software.Software().without_spark()
    assert (reason is None) == (found is None)
    if reason:
        assert reason.startswith("Spark needs Java 17 or newer (found ")
        assert found in reason


def test_spark_takes_the_java_that_java_home_names(program, monkeypatch, tmp_path):
    program("java", "echo 'openjdk version \"17\"'")
    monkeypatch.setattr(software.Software, "without", lambda *words: None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    assert (
        f"found no {tmp_path}/gone/bin/java, which JAVA_HOME" in software.Software().without_spark()
    )
    software._java.cache_clear()
    monkeypatch.setenv("JAVA_HOME", "")
    assert software.Software().without_spark() is None


# ---------------------------------------------------------------- available and missing


def test_available_looks_at_affinity_and_accelerators(cards):
    cards(A100, A100, H100)
    assert machine.available() == {"cpu": machine.cores(), "cuda": {"A100": 2, "H100": 1}}


@pytest.mark.parametrize(
    ("visible", "models"),
    [
        ("", {}),
        ("-1", {}),
        ("1", {"H100": 1}),
        ("0,1", {"A100": 1, "H100": 1}),
        ("0,9,1", {"A100": 1}),
        ("GPU-bb", {"H100": 1}),
        ("MIG-1234", {"A100 MIG": 1}),
        ("NoDevFiles", {}),
        ("0,0", {"A100": 1}),
    ],
)
def test_hidden_accelerators_are_not_available(cards, monkeypatch, visible, models):
    cards(A100, H100)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine.available()["cuda"] == models


@pytest.mark.parametrize(
    ("wanted", "there", "reason"),
    [
        (hardware("cpu", 2), {"cpu": 2, "cuda": {}}, None),
        (hardware("cpu", 4), {"cpu": 2, "cuda": {}}, "needs 4 cores"),
        (hardware("cpu", 1, threads=2), {"cpu": 2, "cuda": {}}, None),
        (hardware("cpu", 2, threads=2), {"cpu": 2, "cuda": {}}, "needs 4 cores"),
        (hardware("mps", 1), {"cpu": 8, "cuda": {"A100": 8}}, "needs an Apple GPU"),
        (hardware("cuda", 2, "A100"), {"cpu": 2, "cuda": {}}, "needs 2x A100"),
        (hardware("cuda", 2, "A100"), {"cpu": 2, "cuda": {"A100": 1}}, "needs 2x A100"),
        (hardware("cuda", 2, "A100"), {"cpu": 2, "cuda": {"A100": 2}}, None),
        (hardware("cuda", 1, "A100"), {"cpu": 2, "cuda": {"NVIDIA A100-SXM4-40GB": 1}}, None),
        (hardware("cuda", 1, "A10"), {"cpu": 2, "cuda": {"A100": 4}}, "needs 1x A10"),
        (hardware("cuda", 1, "rtx 4090"), {"cpu": 2, "cuda": {"RTX 4090": 1}}, None),
        (hardware("cuda", 1), {"cpu": 2, "cuda": {"T4": 1}}, None),
        (hardware("cuda", 1), {"cpu": 2, "cuda": {}}, "needs 1 GPU"),
        (hardware("cuda", 2), {"cpu": 2, "cuda": {"T4": 1, "A100": 1}}, "needs 2 GPUs"),
        (hardware("cuda", 1, "A100"), {"cpu": 2, "cuda": {"A100 MIG 1g.10gb": 7}}, "needs 1x A100"),
        (hardware("cuda", 1, "A100 1g.10gb"), {"cpu": 2, "cuda": {"A100 MIG 1g.10gb": 7}}, None),
        (hardware("cuda", 2), {"cpu": 2, "cuda": {"A100 MIG 1g.10gb": 7}}, "needs 2 GPUs"),
        (hardware("cuda", 1, "A100", nodes=2), {"cpu": 2, "cuda": {"A100": 1}}, "needs 2 nodes"),
        (hardware("cpu", 1, nodes=2), {"cpu": 2, "cuda": {}, "nodes": 2}, None),
        (hardware("cpu", 2, nodes=2), {"cpu": 2, "cuda": {}}, "needs 4 cores: 2 nodes with 2 each"),
    ],
)
def test_missing(wanted, there, reason):
    assert machine.missing(wanted, there) == reason


# ---------------------------------------------------------------- Horovod


def test_what_horovod_lacks_has_the_builds_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    state, own = {"available": False, "reason": "x.cc:1: error: no"}, software.Software()
    (tmp_path / "horovod.json").write_text(json.dumps(state))
    assert own.without_horovod() == "Horovod could not be built: x.cc:1: error: no"
    assert own.without_nccl().startswith("needs Horovod with NCCL")
    (tmp_path / "horovod.json").write_text(json.dumps({"available": True, "gpu": "nccl"}))
    assert own.without_nccl() is None


def test_cores_are_parted_among_processes(monkeypatch):
    """A process with two threads has two cores; processes on GPUs may share cores."""
    bound = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: bound.append(cores))
    for locked, processes, parts in (
        ("4,7", 1, [[4, 7]]),
        ("0,1,2,3", 2, [[0, 1], [2, 3]]),
        ("0,1", 2, [[0], [1]]),
        ("5", 2, [[5], [5]]),
    ):
        monkeypatch.setenv("PARBENCH_CORES", locked)
        assert [cores.pin(rank, processes) for rank in range(processes)] == parts
    assert bound[0] == [4, 7]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_all_threads_of_a_process_are_on_its_cores_whatever_a_site_has_set():
    code = (
        "import os, threading, torch; from parbench.measure import cores; torch.set_num_threads(2);"
        "threading.Thread(target=threading.Event().wait, daemon=True).start();"  # as a library's
        f"own = {sorted(os.sched_getaffinity(0))[:2]}; cores.pin(0, 1);"
        "a = torch.randn(700, 700); torch.exp(a + a @ a); threads = os.listdir('/proc/self/task');"
        "print(len(threads) > 2, all(sorted(os.sched_getaffinity(int(t))) == own for t in threads))"
    )
    cpus = sorted(os.sched_getaffinity(0))[:2]
    variables = {
        "OMP_PROC_BIND": "close",
        "GOMP_CPU_AFFINITY": str(cpus[0]),
        "OMP_NUM_THREADS": "2",
    }
    variables |= {"PARBENCH_CORES": ",".join(map(str, cpus)), "PYTHONPATH": str(SCRIPTS)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True True\n"


# ---------------------------------------------------------------- what goes wrong


def ended(code: str, **options) -> subprocess.CompletedProcess:
    """Return how a program ended whose main function is ``code``."""
    text = f"from parbench.exits import run_main\ndef main():\n    {code}\nrun_main(main)"
    words = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(SCRIPTS)!r})\n{text}"]
    return subprocess.run(words, capture_output=True, text=True, **options)


@pytest.mark.parametrize(
    "number", [each for each in errno.errorcode if each not in (errno.EPIPE, errno.ESHUTDOWN)]
)
def test_an_error_of_the_system_is_a_sentence_with_its_file(number):
    error = OSError(number, os.strerror(number), "/the/file")
    with pytest.raises(SystemExit) as end:
        exits.or_exit(lambda: (_ for _ in ()).throw(error).__next__())
    assert end.value.code == 2
    text = errors.sentence(error)
    assert text.startswith(f"/the/file: {os.strerror(number)}; ")
    assert "\n" not in text


def test_the_usual_errors_have_a_remedy(tmp_path):
    done = ended(f"open({str(tmp_path)!r}, 'w')")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: {tmp_path}: Is a directory; this is a folder and must be a file: move it away, or "
        "choose another name\n"
    )


def test_a_fault_is_reported_in_short_and_kept_whole(tmp_path):
    done = ended("{}['x']", env={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: this is a bug in parbench\n  what:     KeyError: 'x'\n")
    (file,) = tmp_path.glob("parbench-error-*.txt")
    assert f"please report it with the whole story, in {file}" in done.stderr
    assert "Traceback (most recent call last):" in file.read_text()


def test_a_fault_is_never_lost(tmp_path):
    done = ended("import tempfile; tempfile.tempdir = '/nowhere'; {}['x']", env={**os.environ})
    assert (
        "no file can be written (No such file or directory), so the traceback follows"
        in done.stderr
    )
    assert "Traceback" in done.stderr


def test_a_full_or_closed_output_ends_without_a_traceback():
    read, write = os.pipe()
    os.close(read)
    for output, status in ((open("/dev/full", "w"), 2), (open(write, "w"), 0)):  # noqa: SIM115
        text = "import sys; from parbench.exits import run_main; run_main(lambda: print('x'))"
        words = [sys.executable, "-c", text]
        variables = {**os.environ, "PYTHONPATH": str(SCRIPTS), "PYTHONUNBUFFERED": ""}
        with output:
            done = subprocess.run(words, stdout=output, stderr=-1, text=True, env=variables)
        assert done.returncode == status
        assert done.stderr.count("\n") == (status == 2)


# ---------------------------------------------------------------- variables


def test_what_would_steer_a_child_is_left_out(monkeypatch):
    steering = ("GIT_DIR", "PYTHONOPTIMIZE", "SPARK_HOME", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY")
    steering += ("KMP_AFFINITY", "MKL_DYNAMIC", "MPLBACKEND")
    for name in (*steering, "TMPDIR"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.setenv("PYTHONPATH", f"/nowhere:{SCRIPTS}")
    monkeypatch.setenv("http_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "intern.example")
    monkeypatch.delenv("no_proxy", raising=False)
    kept = variables.clean()
    assert not {*steering, "TMPDIR"} & set(kept)
    assert kept["PYTHONPATH"] == str(SCRIPTS)
    assert kept["http_proxy"] == "http://proxy.example:3128"
    assert kept["no_proxy"] == kept["NO_PROXY"] == "intern.example,localhost,127.0.0.1,::1"


def test_a_program_takes_no_packages_from_pythonpath(tmp_path):
    (tmp_path / "yaml").mkdir()
    (tmp_path / "yaml" / "__init__.py").write_text("raise ImportError('of another Python')")
    done = subprocess.run(
        [sys.executable, variables.PROGRAM, "audit", "--help"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_of_another_encoding_gets_question_marks(tmp_path):
    done = subprocess.run(
        [sys.executable, variables.PROGRAM, "audit", tmp_path / "Tafel→.csv"],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        encoding="latin-1",
    )
    assert done.returncode == 2
    assert "Tafel?.csv" in done.stderr


def test_what_controls_the_speed_of_cores_and_gpus_is_reported(program, tmp_path, monkeypatch):
    files = {
        "intel_pstate/no_turbo": "1\n",
        "cpu2/cpufreq/scaling_governor": "performance\n",
        "cpu3/cpufreq/scaling_governor": "performance\n",
        "cpu2/topology/thread_siblings_list": "2-3\n",
        "cpu3/topology/thread_siblings_list": "2-3\n",
        "cpu2/node1/x": "",
        "mps/control": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(steering, "CPUS", tmp_path)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "mps"))
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NCCL_IB_HCA", "mlx5_0")
    assert steering.of_cores([2, 3]) == {
        "governor": "performance",
        "turbo": "off",
        "threads of a core": "2-3",
        "NUMA": "node1",
    }
    assert steering.of_cores([7]) == {"turbo": "off"}
    limits = {"power limit": "700.00 W", "highest clock": "1980 MHz"}
    row = "echo '700.00 W, 1980 MHz'"
    program("nvidia-smi", f"[ $3 = --id=GPU-aa,GPU-bb ] && {row} && {row} || echo 'No devices'")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-aa,GPU-bb")
    monkeypatch.setenv("NCCL_VERSION", "2.28.3-1")
    assert steering.of_gpus() == {"MPS": "on", "NCCL": "IB_HCA mlx5_0", **limits}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-11")
    monkeypatch.delenv("NCCL_IB_HCA")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY")
    monkeypatch.setattr(steering, "MPS", tmp_path / "none")
    assert steering.of_gpus() == {"MPS": "off", "NCCL": "its defaults"}


def test_energy_and_throttling_are_what_the_counters_of_all_cards_say(monkeypatch):
    class NVMLError(Exception):
        pass

    def violated(card, policy):
        if card == "GPU-c":
            raise NVMLError
        return SimpleNamespace(violationTime=(policy + 1) * 1e8)

    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_PERF_POLICY_POWER=0,
        NVML_PERF_POLICY_THERMAL=1,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetTotalEnergyConsumption={"GPU-a": 1000, "GPU-b": 2500, "GPU-c": 1}.get,
        nvmlDeviceGetViolationStatus=violated,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda device: SimpleNamespace(uuid="abc"[device.index]),
    )
    cards = [torch.device("cuda", index) for index in range(3)]
    assert meters.counters(cards[:2]).tolist() == pytest.approx([3.5, 0.6])
    joules, throttled = meters.counters(cards)
    assert (joules, math.isnan(throttled)) == (pytest.approx(3.501), True)
    assert np.isnan(meters.counters([])).all()


def test_what_gpus_talk_by_is_read_from_a_log_of_nccl(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        monkeypatch.delenv(name)
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE"):  # taken away again afterwards
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PARBENCH_STATE", str(tmp_path))
    assert "NCCL's transport" not in steering.of_gpus()
    head = "node1:27255:27906 [0] NCCL INFO"
    (tmp_path / "nccl.node1.27255").write_text(
        f"{head} NET/IB : No device found.\n"
        f"{head} Channel 00/0 : 0[0] -> 4[0] [send] via NET/Socket/0\n"
        f"{head} Channel 01/0 : 0[0] -> 1[1] via P2P/direct pointer/read\n"
    )
    (tmp_path / "nccl.node1.27256").write_text(
        f"{head} Channel 03/0 : 7[3] -> 3[3] [receive] via NET/IBext_v8/3(2)/GDRDMA\n"
        f"{head} Channel 00/0 : 1[1] -> 0[0] via SHM/direct/direct\n"
    )
    talked = "NET/IBext_v8/GDRDMA, NET/Socket, P2P/direct pointer, SHM/direct"
    assert steering.of_gpus()["NCCL's transport"] == talked
    steering.log_nccl()
    assert os.environ["NCCL_DEBUG_FILE"] == f"{tmp_path}/nccl.%h.%p"
    assert steering.of_gpus()["NCCL"] == "its defaults"
    monkeypatch.setenv("NCCL_DEBUG", "WARN")  # a user's own
    monkeypatch.setenv("PARBENCH_STATE", "elsewhere")
    steering.log_nccl()
    assert os.environ["NCCL_DEBUG_FILE"] == f"{tmp_path}/nccl.%h.%p"


@pytest.mark.parametrize(
    ("sampled", "busy"),
    [
        (100, 13.0),  # however little of the work the kernel's samples caught
        (1300, 13.0),
        (0, 0.0),  # idle cores, or a sandbox that tells nothing
    ],
)
def test_the_load_on_cores_is_what_was_neither_idle_nor_stolen(monkeypatch, sampled, busy):
    """In 10 s on each of two cores: 2.5 idle, 0.5 waiting for a disk, 0.5 stolen."""
    monkeypatch.setattr(load.os, "sysconf", {"SC_CLK_TCK": 100}.__getitem__)
    monkeypatch.setenv("PARBENCH_CORES", "0,1")
    clock, files = [1000.0], {}
    monkeypatch.setattr(load.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(load.machine, "read", lambda path: files.get(path, ""))

    def at(work: int, idle: int, disk: int, steal: int) -> load.Reading:
        one = f"{work} 0 0 {idle} {disk} 0 0 {steal} 0 0"
        files["/proc/stat"] = f"cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 {one}\ncpu1 {one}\ncpu2 7 0 0 7\n"
        return load.now()

    before = at(7, 7, 7, 7)
    clock[0] += 10.0
    spent = at(7 + sampled, 257, 57, 57) - before
    assert spent.busy == pytest.approx(busy)
    assert spent.steal == pytest.approx(1.0)
