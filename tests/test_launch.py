"""The launcher with real processes: good ends, every kind of bad one, and nothing left behind.

It runs in a copy of the project whose training script is a stand-in (no torch) and whose
strategies start one rank, two ranks, or two ranks through the real starters of torch and
Horovod.
"""

from __future__ import annotations

import importlib.util
import json
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import command
import constructed
import faults
import files
import launch
import lease
import machine
import output
import processes
import remaining
import watch as watching
from errors import ParbenchError

SCRIPTS = Path(launch.__file__).parent

TRAIN = """
import argparse, json, os, signal, sys, time, traceback
from pathlib import Path
import measure

def beat(step=0, epoch=1):
    path = STATE / f"rank{RANK}.heartbeat"
    where = {"phase": "training", "epoch": epoch, "step": step}
    path.with_suffix(".part").write_text(json.dumps({"rank": RANK, "pid": os.getpid(), **where}))
    os.replace(path.with_suffix(".part"), path)

def report(kind, message):
    words = {"rank": RANK, "kind": kind, "message": message, "traceback": ""}
    (STATE / f"rank{RANK}.error.json").write_text(json.dumps(words))

def work(seconds=60):
    end = time.time() + seconds
    while time.time() < end:
        time.sleep(0.05)
        beat(17, 3)
        if mode == "work" and (STATE / "stop").exists():
            if RANK == 0:
                (STATE / "stopped.json").write_text(json.dumps({"epoch": 3, "step": 17}))
            sys.exit(0)

parser = argparse.ArgumentParser()
for name in ("cell", "data", "out"):
    parser.add_argument(f"--{name}")
a = parser.parse_args()
cell = json.loads(Path(a.cell).read_text())
RANK = int(os.environ.get("RANK", os.environ.get("HOROVOD_RANK", 0)))
STATE = Path(os.environ["PARBENCH_STATE"])
mode = cell["model"]["options"].get(str(RANK), "ok")
if mode == "mute":  # not one heartbeat
    time.sleep(60)
if mode == "early":  # dead before the first heartbeat
    os.kill(os.getpid(), signal.SIGKILL)
beat(1)
Path(a.out).with_name(f"rank{RANK}.json").write_text(json.dumps(dict(os.environ)))
os.write(1, f"rank {RANK} is here\\n".encode())  # in one piece: ranks share a pipe
if mode == "bar":
    for step in range(3):
        sys.stderr.write(f"\\\\r{step} of 3")
    sys.stderr.write("\\\\nepoch 1\\\\n")
if mode.startswith("sleep "):
    time.sleep(float(mode.split()[1]))
elif mode == "raise":
    time.sleep(0.3)
    report("error", "RuntimeError: no luck")
    raise RuntimeError("no luck")
elif mode == "memory":
    report("out_of_memory", "OutOfMemoryError: CUDA out of memory")
    sys.exit(1)
elif mode == "kill":
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
elif mode == "exit":
    time.sleep(0.3)
    os._exit(3)
elif mode == "hang":
    beat(17, 3)
    time.sleep(60)
elif mode == "stubborn":
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    work()
elif mode == "work":
    work()
elif mode == "partner":  # like Gloo: an error as soon as the other rank's connection is gone
    other = STATE / f"rank{1 - RANK}.heartbeat"
    while not other.exists():
        time.sleep(0.01)
    pid = json.loads(other.read_text())["pid"]
    while Path(f"/proc/{pid}").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text():
        beat(2)
        time.sleep(0.005)
    report("error", "RuntimeError: Connection closed by peer")
    raise RuntimeError("Connection closed by peer")
elif mode == "silent":
    sys.exit(0)
if RANK == 0:
    if mode == "other":
        cell["seed"] += 1
    status = "diverged" if mode == "diverge" else "ok"
    reason = "the loss became nan" if mode == "diverge" else None
    known = {} if reason else {"train_seconds": 7.94, "test_accuracy": 0.9312}
    started = measure.now()
    measure.write_unfinished(a.out, cell, status, reason, started, a.data, **known)
"""

# Two ranks without torch: each leaves the session, the first failure ends the other.
STARTER = """
import os, signal, subprocess, sys, time
ranks = [
    subprocess.Popen(
        [sys.executable, *sys.argv[1:]],
        env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        start_new_session=True,
    )
    for rank in range(2)
]
while not any(rank.poll() for rank in ranks):
    if all(rank.poll() == 0 for rank in ranks):
        sys.exit(0)
    time.sleep(0.05)
time.sleep(0.2)
for number, rank in enumerate(ranks):
    if rank.poll():
        print(f"failed (exitcode: {rank.poll()}) local_rank: {number} (pid: {rank.pid})")
    rank.terminate()
for rank in ranks:
    rank.wait()
sys.exit(1)
"""

PREFIXES = {
    "solo": ("1", "[python]"),
    "pair": ("2", "[python, {root!r} + '/starter.py']"),
    "torchrun": (
        "2",
        "[python, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node', '2']",
    ),
    "horovod": (
        "2",
        "[python, {root!r} + '/scripts/horovod_node.py', '--processes', '2', '--', python]",
    ),
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the project with stand-ins, in a folder whose name has blanks."""
    root = tmp_path_factory.mktemp("work folder") / "a copy"
    (root / "scripts" / "strategies").mkdir(parents=True)
    (root / "scripts" / "models").mkdir()
    for script in SCRIPTS.glob("*.py"):
        shutil.copy(script, root / "scripts")
    shutil.copytree(SCRIPTS.parent / "rules" / "schemas", root / "rules" / "schemas")
    shutil.copytree(SCRIPTS / "profiling", root / "scripts" / "profiling")
    strategies = root / "scripts" / "strategies"
    shutil.copy(SCRIPTS / "strategies" / "__init__.py", strategies)
    for name, (count, prefix) in PREFIXES.items():
        text = (
            f"def processes(cell):\n    return {count}\n\n\n"
            "def beside(cell):\n    return []\n\n\n"
            f"def launcher(cell, python, node=None):\n    return {prefix.format(root=str(root))}\n"
        )
        (strategies / f"{name}.py").write_text(text)
    (root / "starter.py").write_text(STARTER)
    (root / "scripts" / "models" / "tiny.py").write_text("")
    (root / "scripts" / "train.py").write_text(TRAIN.replace("\\\\", "\\"))
    data = root / "results" / "data" / "digits"
    data.mkdir(parents=True)
    (data / "digest.json").write_text(json.dumps({"sha256": "0" * 64}))
    return root


@pytest.fixture(autouse=True)
def surroundings(tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("PARBENCH_LEASES", str(tmp_path / "leases"))
    monkeypatch.setenv("PARBENCH_OVERSUBSCRIBE", "1")  # machines with one core run these, too
    for name in ("PARBENCH_STATE", "PARBENCH_QUIET", "PARBENCH_CORES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


class Cell:
    """A cell in the copy, whose ranks behave as ``modes`` say."""

    def __init__(self, root, name, strategy, modes, timeout, grace, devices):
        self.root, self.id = root, name
        self.folder = root / "results" / "cells" / name
        self.out = self.folder / "metrics.json"
        self.log = self.folder / "log.txt"
        self.content = constructed.make_cell(
            name,
            "tiny",
            strategy,
            constructed.make_hardware(devices=devices),
            model_options=modes,
            run={
                "timeout_seconds": timeout,
                "checkpoint_seconds": 300,
                "grace_seconds": grace,
                "interface": None,
                "connect_seconds": 30,
            },
        )
        self.write()

    def write(self):
        files.write_json(self.folder / "cell.json", self.content)

    def words(self, *more):
        paths = {"cell": "cell.json", "out": "metrics.json", "log": "log.txt"}
        words = [sys.executable, "scripts/launch.py", "--data", "results/data/digits"]
        for option, name in paths.items():
            words += [f"--{option}", f"results/cells/{self.id}/{name}"]
        return [*words, *more]

    def start(self, *more):
        return subprocess.Popen(
            self.words(*more),
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def run(self, *more, timeout=60):
        process = self.start(*more)
        try:
            process.out, process.err = process.communicate(timeout=timeout)
        finally:
            process.kill()
        return process

    def metrics(self):
        return json.loads(self.out.read_text())

    def environment(self, rank=0):
        return json.loads((self.folder / f"rank{rank}.json").read_text())


@pytest.fixture
def cell(checkout, request, tmp_path):
    made = []

    def make(strategy="solo", *, timeout=30, grace=20, devices=None, name="", **modes):
        # Keywords are r0="kill", r1="hang".
        modes = {key.removeprefix("r"): value for key, value in modes.items()}
        devices = devices or (1 if strategy == "solo" else 2)
        letters = (c if c.isalnum() else "-" for c in request.node.name)
        cell_id = f"tiny.{strategy}.{''.join(letters)}{name}"
        made.append(Cell(checkout, cell_id, strategy, modes, timeout, grace, devices))
        return made[-1]

    yield make
    for each in made:
        shutil.rmtree(each.folder, ignore_errors=True)
    shutil.rmtree(checkout / "results" / "plan", ignore_errors=True)
    alive = processes_of(tmp_path)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
    assert not alive, "processes were left behind"
    assert not list((tmp_path / "temporary").glob("parbench-*")), "a state folder was left behind"


def processes_of(tmp_path):
    """Processes that were started with this test's folder for temporary files."""
    return faults.processes_of(tmp_path / "temporary")


def wait_for(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def ready(cell, ranks):
    wait_for(lambda: all((cell.folder / f"rank{rank}.json").exists() for rank in range(ranks)))


def core_is_free(number):
    folder = lease._open_folder()
    try:
        descriptor = lease._take(folder, f"core-{number}")
        if descriptor is not None:
            os.close(descriptor)
        return descriptor is not None
    finally:
        os.close(folder)


# ---------------------------------------------------------------- the command


def real_cell(strategy, devices=1, device="cpu", threads=1):
    hardware = {"device": device, "devices": devices, "threads": threads}
    hardware |= {"nodes": 1, "gpu_model": None}
    return {"id": "x", "strategy": {"name": strategy, "options": {}}, "hardware": hardware}


PATHS = {"cell_path": Path("a b/cell.json"), "data": Path("data"), "out": Path("out.json")}


def test_the_command_of_a_cell():
    words, environment = command.command(real_cell("eager"), devices=["3"], **PATHS)
    assert words[0] == sys.executable
    assert words[1].endswith("scripts/train.py")
    assert words[2:] == ["--cell", "a b/cell.json", "--data", "data", "--out", "out.json"]
    assert environment["PARBENCH_CORES"] == "3"
    assert environment["OMP_NUM_THREADS"] == "1"
    assert "CUDA_VISIBLE_DEVICES" not in environment


def test_the_command_starts_with_the_strategys_launcher():
    words, environment = command.command(real_cell("ddp", 2), devices=["0", "1"], **PATHS)
    assert words[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert environment["PARBENCH_CORES"] == "0,1"
    words, environment = command.command(
        real_cell("ddp", 2, "cuda"), devices=["GPU-a", "GPU-b"], **PATHS
    )
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert "PARBENCH_CORES" not in environment


def test_the_shown_command_can_be_pasted(monkeypatch):
    monkeypatch.setattr(lease, "usable_cores", lambda: [5, 6, 7])
    words = shlex.split(command.shown_command(real_cell("ddp", 2), **PATHS))
    assert words[0] == "PARBENCH_CORES=5,6"
    assert command.shown_command(real_cell("eager", threads=2), **PATHS).startswith(
        "PARBENCH_CORES=5,6 OMP_NUM_THREADS=2"
    )
    assert "a b/cell.json" in words
    # On a machine without GPUs the line is for another one, and hides none of its GPUs.
    monkeypatch.setattr(machine, "accelerators", lambda: ())
    assert "CUDA_VISIBLE" not in command.shown_command(real_cell("eager", 1, "cuda"), **PATHS)


def test_print_runs_nothing_and_its_line_trains(cell):
    it = cell(r0="ok")
    done = it.run("--print")
    assert done.returncode == 0
    assert done.out.count("\n") == 1
    assert {path.name for path in it.folder.iterdir()} == {"cell.json"}
    state = it.folder / "state"  # the stand-in cannot do without; train.py can
    state.mkdir()
    line = f"PARBENCH_STATE={shlex.quote(str(state))} {done.out}"
    subprocess.run(["sh", "-c", line], cwd=it.root, check=True, capture_output=True)
    assert it.metrics()["status"] == "ok"


# ---------------------------------------------------------------- good ends


@pytest.mark.parametrize("strategy", ["solo", "pair"])
def test_a_cell_that_trains(cell, strategy):
    it = cell(strategy)
    it.out.write_text("stale")
    before = time.time()
    done = it.run()
    assert (done.returncode, done.err) == (0, "")
    ranks = 1 if strategy == "solo" else 2
    first, last = done.out.splitlines()
    assert first.startswith(f"{it.id}: starts on cpu 0")
    assert last == f"{it.id}: ok, accuracy 0.931, trained in 7.9 s"
    assert it.metrics()["cell"] == it.content
    log = it.log.read_text().splitlines()
    assert log[0].startswith(f"$ {sys.executable} ")
    assert sorted(log[1:]) == [f"rank {rank} is here" for rank in range(ranks)]
    assert 0 < json.loads((it.folder / "wall.json").read_text())["seconds"] < 60
    for rank in range(ranks):
        environment = it.environment(rank)
        assert len(environment["PARBENCH_CORES"].split(",")) == ranks
        assert before < float(environment["PARBENCH_LAUNCHED"]) < time.time()
        expected = {
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONHASHSEED": "0",
            "GLOO_SOCKET_IFNAME": "lo",
            "PARBENCH_PROGRESS": "lines",
        }
        assert {key: environment[key] for key in expected} == expected
    assert core_is_free(0)


def test_a_diverged_cell_is_a_result(cell):
    it = cell(r0="diverge")
    done = it.run()
    assert done.returncode == 0
    assert done.out.splitlines()[-1] == f"{it.id}: diverged: the loss became nan"


def test_out_of_memory_is_a_result(cell):
    it = cell("pair", r0="partner", r1="memory")
    done = it.run()
    assert (done.returncode, done.err) == (0, "")
    metrics = it.metrics()
    assert metrics["status"] == "out_of_memory"
    assert metrics["reason"] == "rank 1 of 2: OutOfMemoryError: CUDA out of memory"
    assert metrics["train_seconds"] is None
    assert metrics["started"] <= metrics["finished"]
    assert "out_of_memory: rank 1" in done.out.splitlines()[-1]


@pytest.mark.parametrize(("kills", "status"), [([4, 5], 0), ([4, 4], 1)])
@pytest.mark.parametrize(("strategy", "rank"), [("solo", 0), ("pair", 1)])
def test_a_kill_is_a_lack_of_memory_if_the_kernel_counts_one(cell, strategy, rank, kills, status):
    it = cell(strategy, r0="kill" if rank == 0 else "partner", r1="kill")
    code = (
        f"import sys; sys.path.insert(0, 'scripts'); import launch, part; counts = iter({kills})\n"
        "part.oom_kills = lambda: next(counts); launch.run_main(launch.main)"
    )
    words = [sys.executable, "-c", code, *it.words()[2:]]
    done = subprocess.run(words, cwd=it.root, capture_output=True, text=True, timeout=60)
    assert done.returncode == status
    ranks = 1 if strategy == "solo" else 2
    sentence = f"rank {rank} of {ranks} died: killed by signal 9 (SIGKILL)"
    if status == 0:
        assert it.metrics()["status"] == "out_of_memory"
        assert it.metrics()["reason"] == f"{sentence} by the kernel, for lack of memory"
    else:
        assert sentence in done.stderr
        assert not it.out.exists()


def test_the_kernels_counters_are_read():
    assert processes.oom_kills() >= 0


# ---------------------------------------------------------------- bad ends

BAD = [
    ("solo", {"r0": "raise"}, "rank 0 of 1: RuntimeError: no luck"),
    ("solo", {"r0": "kill"}, "rank 0 of 1 died: killed by signal 9 (SIGKILL)"),
    ("solo", {"r0": "exit"}, "rank 0 of 1 died: exit status 3"),
    ("solo", {"r0": "silent"}, "training ended without an error, but "),
    ("solo", {"r0": "other"}, "metrics.json is of another cell"),
    ("pair", {"r0": "raise", "r1": "work"}, "rank 0 of 2: RuntimeError: no luck"),
    ("pair", {"r0": "work", "r1": "raise"}, "rank 1 of 2: RuntimeError: no luck"),
    ("pair", {"r0": "kill", "r1": "partner"}, "rank 0 of 2 died: killed by signal 9 (SIGKILL)"),
    ("pair", {"r0": "partner", "r1": "kill"}, "rank 1 of 2 died: killed by signal 9 (SIGKILL)"),
    ("pair", {"r0": "work", "r1": "early"}, "rank 1 of 2 died: killed by signal 9 (SIGKILL)"),
    ("pair", {"r0": "work", "r1": "exit"}, "rank 1 of 2 died: exit status 3"),
    ("pair", {"r0": "raise", "r1": "stubborn"}, "rank 0 of 2: RuntimeError: no luck"),
    ("torchrun", {"r0": "partner", "r1": "kill"}, "rank 1 of 2 died: killed by signal 9"),
    ("torchrun", {"r0": "work", "r1": "early"}, "rank 1 of 2 died: killed by signal 9"),
    ("torchrun", {"r0": "raise", "r1": "work"}, "rank 0 of 2: RuntimeError: no luck"),
    ("horovod", {"r0": "partner", "r1": "kill"}, "rank 1 of 2 died: killed by signal 9"),
    ("horovod", {"r0": "raise", "r1": "work"}, "rank 0 of 2: RuntimeError: no luck"),
]


def skip_without(strategy):
    package = {"torchrun": "torch", "horovod": "horovod"}.get(strategy)
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


@pytest.mark.parametrize(
    ("strategy", "modes", "sentence"), BAD, ids=["-".join([s, *m.values()]) for s, m, _ in BAD]
)
def test_a_failure_says_which_rank_and_why(cell, strategy, modes, sentence):
    skip_without(strategy)
    it = cell(strategy, **modes)
    it.out.write_text("stale")
    done = it.run()
    assert done.returncode == 1, done.err
    assert not it.out.exists()
    said = done.err[done.err.index("error:") :]
    assert said in it.log.read_text()
    error, *rest = said.splitlines()
    assert error.startswith(f"error: {it.id}: ")
    assert sentence in error
    assert rest[0] == f"  log:   results/cells/{it.id}/log.txt"
    assert shlex.split(rest[1].removeprefix("  again: ")) == it.words()[:2] + sorted_words(it)
    assert core_is_free(0)


def sorted_words(it):
    """The options as the launcher spells them."""
    home = f"results/cells/{it.id}"
    return [
        *("--cell", f"{home}/cell.json", "--data", "results/data/digits"),
        *("--out", f"{home}/metrics.json", "--log", f"{home}/log.txt"),
    ]


@pytest.mark.parametrize(
    ("strategy", "modes", "sentence"),
    [
        ("solo", {"r0": "hang"}, "rank 0 hung: no progress for 2 s in epoch 3 step 17"),
        ("solo", {"r0": "mute"}, "rank 0 hung: no progress for 2 s since the start"),
        ("pair", {"r0": "work", "r1": "hang"}, "rank 1 hung: no progress for 2 s in epoch 3"),
        ("pair", {"r0": "stubborn", "r1": "hang"}, "rank 1 hung: no progress for 2 s in epoch 3"),
        ("torchrun", {"r0": "work", "r1": "hang"}, "rank 1 hung"),
        ("horovod", {"r0": "hang", "r1": "work"}, "rank 0 hung"),
    ],
)
def test_a_hung_rank_ends_the_cell(cell, strategy, modes, sentence):
    skip_without(strategy)
    slow = strategy in ("torchrun", "horovod")
    it = cell(strategy, timeout=12 if slow else 2, **modes)
    done = it.run()
    assert done.returncode == 1
    assert sentence in done.err
    assert sentence in it.log.read_text()
    assert not it.out.exists()


@pytest.mark.parametrize("strategy", ["torchrun", "horovod"])
def test_the_real_starters_train(cell, strategy):
    skip_without(strategy)
    it = cell(strategy)
    done = it.run()
    assert (done.returncode, done.err) == (0, "")
    assert {it.environment(rank)["PARBENCH_CORES"] for rank in (0, 1)} in ({"0,1"}, {"0,0"})


def test_a_full_disk_ends_the_cell_in_a_sentence(cell):
    it = cell(r0="work")
    done = it.run("--log", "/dev/full")
    assert done.returncode == 2
    assert "error: /dev/full: No space left on device; the cell was ended" in done.err


def test_cells_that_cannot_run_here(cell, monkeypatch):
    it = cell()
    it.content["hardware"]["nodes"] = 2
    it.write()
    done = it.run()
    assert (done.returncode, "hardware.nodes is 2" in done.err) == (2, True)
    it = cell(devices=500)
    monkeypatch.delenv("PARBENCH_OVERSUBSCRIBE")
    done = it.run()
    assert (done.returncode, "needs 500 cores" in done.err) == (2, True)


def test_oversubscription_is_recorded(cell):
    it = cell(devices=500)
    done = it.run()
    assert done.returncode == 0
    assert "500 devices share" in done.err
    assert it.metrics()["environment"]["oversubscribed"] is True
    assert len(it.environment()["PARBENCH_CORES"].split(",")) == 500


# ---------------------------------------------------------------- signals


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("strategy", ["solo", "pair"])
def test_a_signal_ends_all_ranks(cell, strategy, number, status):
    it = cell(strategy, r0="work", r1="stubborn", grace=1)
    process = it.start()
    ready(it, 1 if strategy == "solo" else 2)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == status
    assert err.startswith(f"{it.id}: ended by {number.name}; ")
    assert it.log.read_text().endswith(err.removeprefix(f"{it.id}: "))
    assert not it.out.exists()
    assert core_is_free(0)


@pytest.mark.parametrize("strategy", ["torchrun", "horovod"])
def test_a_signal_ends_the_real_starters(cell, strategy):
    skip_without(strategy)
    it = cell(strategy, r0="work", r1="stubborn", grace=1)
    process = it.start()
    ready(it, 2)
    process.terminate()
    process.communicate(timeout=40)
    assert process.returncode == 143


@pytest.mark.parametrize("strategy", ["solo", "pair", "torchrun", "horovod"])
def test_a_signal_keeps_a_checkpoint(cell, strategy):
    skip_without(strategy)
    it = cell(strategy, r0="work", r1="work")
    process = it.start()
    ready(it, 1 if strategy == "solo" else 2)
    for pid in processes_of_run(it):  # as where Slurm signals every process of a job
        os.kill(pid, signal.SIGTERM)
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 143
    failed = json.loads((it.folder / "failed.json").read_text())
    assert failed["sentence"] == (
        "ended by SIGTERM; a checkpoint at epoch 3 step 17 is kept, and the same command goes on "
        "from there"
    )
    assert failed["job"] is None
    assert failed["lines"][-1] == failed["sentence"]
    assert json.loads((it.folder / "stopped.json").read_text())["step"] == 17
    assert not (it.folder / "running.json").exists()
    # Run again, it has its result, and the time of both runs counts.
    (it.folder / "checkpoints").mkdir()
    it.content["model"]["options"] = {}
    it.write()
    files.write_json(it.folder / "stopped.json", {"epoch": 3, "step": 17, "seconds": 1000.0})
    assert it.run().returncode == 0
    assert json.loads((it.folder / "wall.json").read_text())["seconds"] > 1000
    kept = {path.name for path in it.folder.iterdir()}
    assert not kept & {"failed.json", "stopped.json", "checkpoints", "running.json"}


def processes_of_run(it):
    return processes.members(it.environment()["PARBENCH_STATE"])


def test_who_insists_is_not_made_to_wait(cell):
    it = cell(r0="stubborn", grace=60)
    process = it.start()
    ready(it, 1)
    process.terminate()
    time.sleep(0.2)
    process.terminate()  # the same wish, by another way
    time.sleep(2.5)
    assert process.poll() is None
    process.terminate()
    process.communicate(timeout=15)
    assert process.returncode == 143


def test_a_signal_before_training_ends_at_once(cell):
    it = cell(r0="mute", grace=60)
    process = it.start()
    wait_for(lambda: it.log.exists())
    time.sleep(1)
    process.terminate()
    process.communicate(timeout=15)
    assert process.returncode == 143
    assert "before its first checkpoint" in (it.folder / "failed.json").read_text()


def test_a_signal_ends_who_waits_for_a_lease(cell):
    number = len(lease.usable_cores())
    first = cell(r0="work", devices=number, name="-first")
    second = cell(devices=number, name="-second")
    holder = first.start()
    ready(first, 1)
    waiting = second.start()
    assert f"waiting for {number} core" in waiting.stderr.readline()
    waiting.terminate()
    waiting.communicate(timeout=10)
    assert waiting.returncode == 143
    holder.terminate()
    holder.communicate(timeout=10)


@pytest.mark.parametrize("strategy", ["solo", "pair", "torchrun"])
def test_ranks_of_a_killed_launcher_die_before_their_lease_is_free(cell, tmp_path, strategy):
    skip_without(strategy)
    it = cell(strategy, r0="stubborn", r1="stubborn")
    process = it.start()
    ready(it, 1 if strategy == "solo" else 2)
    ranks = [json.loads(path.read_text()) for path in it.folder.glob("rank?.json")]
    state = ranks[0]["PARBENCH_STATE"]
    process.kill()
    process.communicate()
    while processes.members(state):
        assert not core_is_free(0) or not processes.members(state)
        time.sleep(0.02)
    wait_for(lambda: core_is_free(0) and not processes_of(tmp_path) and not Path(state).exists())


def test_an_orphan_keeps_its_lease(cell, tmp_path):
    it = cell(r0="stubborn")
    process = it.start()
    ready(it, 1)
    state = it.environment()["PARBENCH_STATE"]
    (rank,) = processes.members(state)
    # Launcher and guard at once, as by `pkill -9 -f launch.py`.
    for pid in set(processes_of(tmp_path)) - {rank}:
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    time.sleep(0.3)
    assert processes.members(state) == [rank]  # it ignores the SIGHUP that its parent's death sends
    assert not core_is_free(0)
    os.kill(rank, signal.SIGKILL)
    wait_for(lambda: core_is_free(0))
    shutil.rmtree(state)


@pytest.mark.parametrize("hangup", [signal.SIG_DFL, signal.SIG_IGN], ids=["usual", "nohup"])
def test_without_launcher_and_guard_an_ordinary_rank_dies(cell, tmp_path, hangup):
    it = cell(r0="work")
    before = signal.signal(signal.SIGHUP, hangup)
    process = it.start()
    signal.signal(signal.SIGHUP, before)
    ready(it, 1)
    state = it.environment()["PARBENCH_STATE"]
    for pid in set(processes_of(tmp_path)) - set(processes.members(state)):
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not processes.members(state))
    shutil.rmtree(state)


def test_one_run_of_a_cell_at_a_time(cell):
    it = cell(r0="sleep 1.5")
    first = it.start()
    ready(it, 1)
    second = it.start()
    assert second.stderr.readline() == f"{it.id}: waiting for another run of this cell\n"
    assert first.poll() is None
    for process in (first, second):
        process.communicate(timeout=30)
        assert process.returncode == 0


# ---------------------------------------------------------------- what is shown


def test_a_bar_passes_through_and_the_log_keeps_its_last_state(cell):
    it = cell(r0="bar")
    done = it.run("--progress", "bar")
    assert done.returncode == 0
    assert "\r0 of 3\r1 of 3\r2 of 3\nepoch 1\n" in done.err.replace("\r\n", "\n") or (
        "0 of 3" in done.err and "2 of 3\nepoch 1" in done.err
    )
    assert it.log.read_text().splitlines()[-2:] == ["2 of 3", "epoch 1"]
    environment = it.environment()
    assert environment["PARBENCH_PROGRESS"] == "bar"
    assert int(environment["COLUMNS"]) > 0


@pytest.mark.parametrize(
    ("asked", "quiet", "terminal", "mode"),
    [
        (None, "", True, "bar"),
        (None, "1", True, "lines"),
        (None, "", False, "lines"),
        ("bar", "1", False, "bar"),
        ("lines", "", True, "lines"),
    ],
)
def test_a_bar_only_where_somebody_watches(monkeypatch, asked, quiet, terminal, mode):
    monkeypatch.setenv("PARBENCH_QUIET", quiet)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    assert output.progress_mode(asked) == mode


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([b"a\nb", b"c\n"], ["a", "bc"]),
        ([b"\r10%\r20%", b"\r100%\n", b"x\n"], ["100%", "x"]),
        ([b"1\r2\r3"], ["3"]),
        ([b"dos\r\n", b"bar\r", b"\n"], ["dos", "bar"]),
        ([b"\xff\xc3", b"\xa9\n"], ["\ufffd\u00e9"]),
    ],
)
def test_the_log_keeps_what_a_terminal_would_show(tmp_path, pieces, lines):
    end, pipe = os.pipe()
    log = output.Output(tmp_path / "logs" / "log.txt")
    log.follow(end)
    for piece in pieces:
        os.write(pipe, piece)
        assert log.read()
    os.close(pipe)
    assert not log.read()
    log.close()
    assert log.path.read_text().splitlines() == lines
    os.close(end)


def test_count_and_time_left(cell):
    names = ("-a", "-b", "-c", "-d")
    cells = [cell(r0="ok", name=name) for name in names]
    plan = {each.id: {"device": "cpu", "devices": 1, "like": "group"} for each in cells}
    path = cells[0].root / "results" / "plan" / "progress.json"
    files.write_json(path, {"started": time.time() - 5, "cells": plan})
    old = cells[1]
    old.out.write_text("{}")
    os.utime(old.out, (1, 1))  # of an earlier run: not done yet
    done = cells[0].run().out.splitlines()
    assert done[0].startswith(f"[0/4] {cells[0].id}: starts")
    assert done[1].startswith(f"[1/4] {cells[0].id}: ok, ")
    assert done[1].endswith(" left)")
    (cells[0].folder / "wall.json").write_text("[]")  # damaged: the count goes on
    for each in cells[1:]:
        last = each.run().out.splitlines()[-1]
    assert last == f"[4/4] {cells[3].id}: ok, accuracy 0.931, trained in 7.9 s"
    alone = cell(name="-alone")  # not of the workflow's run
    assert alone.run().out.startswith(alone.id)


def test_a_foreign_result_is_named(tmp_path):
    (tmp_path / "metrics.json").write_text('{"status": "ok"}')
    with pytest.raises(ParbenchError, match=r"metrics.json: .* delete the file"):
        launch._result(tmp_path / "metrics.json")


CELLS = {
    "a": {"device": "cpu", "devices": 1, "like": "one"},
    "b": {"device": "cpu", "devices": 1, "like": "one"},
    "c": {"device": "cpu", "devices": 2, "like": "two"},
    "d": {"device": "cuda", "devices": 1, "like": "gpu"},
}


@pytest.mark.parametrize(
    ("finished", "slots", "left"),
    [
        ({}, {"cpu": 2, "cuda": 1}, None),
        ({"z": 5.0}, {"cpu": 2, "cuda": 1}, None),
        # b as its group, c and d as all: (10 + 2 * 10) / 2 cores beside 10 on the GPU
        ({"a": 10.0}, {"cpu": 2, "cuda": 1}, 15.0),
        # never less than the longest cell
        ({"a": 10.0}, {"cpu": 8, "cuda": 1}, 10.0),
        # b as its group, d as the mean of all
        ({"a": 10.0, "c": 30.0}, {"cpu": 1, "cuda": 1}, 20.0),
        ({"a": 10.0, "b": 20.0, "c": 30.0, "d": 40.0}, {"cpu": 1, "cuda": 1}, 0.0),
    ],
)
def test_seconds_left(finished, slots, left):
    assert remaining.seconds_left(CELLS, finished, slots) == left


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (130, "2 min 10 s"), (11100, "3 h 5 min")],
)
def test_duration(seconds, text):
    assert remaining.duration(seconds) == text


# ---------------------------------------------------------------- who was first

TORCHRUN = """
E1121 07:10:00.000000 77 torch/distributed/elastic/multiprocessing/api.py:1000] failed \
(exitcode: -9) local_rank: 1 (pid: 99) of binary: /usr/bin/python
Failures:
[1]:
  time      : 2026-11-21_07:10:00
  host      : here
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 98)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_07:10:00
  host      : here
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 99)
  traceback : Signal 9 (SIGKILL) received by PID 99
"""
HOROVODRUN = """
[0]<stdout>:epoch 1
Process 1 exit with status code 137.
Terminating remaining workers after failure of Process 1.
Process 0 exit with status code 143.
"""


def test_ends_that_the_starters_tell():
    assert watching.told_ends(TORCHRUN) == {0: 1, 1: -9}
    assert watching.told_ends(HOROVODRUN) == {1: -9, 0: -15}
    assert watching.told_ends("epoch 1/2 loss 0.5") == {}


@pytest.fixture
def watch(tmp_path):
    with selectors.DefaultSelector() as selector:
        yield watching.Watch(tmp_path, range(2), selector)


def say(tmp_path, rank, when, message="RuntimeError: no", kind="error"):
    path = tmp_path / f"rank{rank}.error.json"
    path.write_text(json.dumps({"kind": kind, "message": message}))
    os.utime(path, (when, when))


def blamed(watch, returncode, text):
    watch.conclude(returncode, text)
    return watching.find_failure(watch.ranks, watch.errors(), returncode, text)


def test_the_first_to_speak_is_to_blame(watch, tmp_path):
    say(tmp_path, 0, 1000.4, "RuntimeError: Connection closed by peer")
    say(tmp_path, 1, 1000.0, "ValueError: bad")
    assert blamed(watch, 1, "").sentence == "rank 1 of 2: ValueError: bad"


def test_out_of_memory_outweighs_all(watch, tmp_path):
    say(tmp_path, 0, 1000.0)
    say(tmp_path, 1, 1009.0, "OutOfMemoryError: 1 GiB", "out_of_memory")
    failure = blamed(watch, 1, HOROVODRUN)
    assert failure.out_of_memory
    assert failure.sentence == "rank 1 of 2: OutOfMemoryError: 1 GiB"


def test_a_killed_rank_is_to_blame_for_the_others_errors(watch, tmp_path):
    say(tmp_path, 0, 1000.0, "RuntimeError: Connection closed by peer")
    watch.ranks[1].ended = 1000.2  # seen later than it happened
    failure = blamed(watch, 1, TORCHRUN)
    assert failure == watching.Failure("rank 1 of 2 died: killed by signal 9 (SIGKILL)", True)


@pytest.mark.parametrize("code", [-15, -6, -9])
def test_a_rank_that_was_ended_for_anothers_error_is_not(watch, tmp_path, code):
    say(tmp_path, 0, 1000.0, "ValueError: bad")
    # SIGTERM and an abort may come at once; SIGKILL follows half a minute of asking.
    watch.ranks[1].ended, watch.ranks[1].code = 1000.3 if code != -9 else 1030.0, code
    assert blamed(watch, 1, "").sentence == "rank 0 of 2: ValueError: bad"


def test_without_any_word_the_last_lines_are_shown(watch):
    failure = blamed(watch, -9, "one\ntwo")
    assert "died: killed by signal 9 (SIGKILL)" in failure.sentence
    assert failure.sentence.endswith("one\ntwo")
    assert not failure.killed
