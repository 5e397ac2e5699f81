"""The launcher as a program, with real processes: success, failures, and nothing left behind.

It runs in a copy of the project whose training script is a stand-in without torch: each rank does
what the cell's model options say.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest

import training
from launched import Launched, wait_for
from parbench import files
from workspace import HANG_SECONDS, ROOT

TRAIN = """
import json, os, signal, sys, time
from pathlib import Path
import argparse
from parbench import cell as cells
from parbench.measure import clocks, metrics_json
from parbench.training import launched
from parbench.training.progress import Heartbeat

parser = argparse.ArgumentParser()
for name in ("cell", "data", "out"):
    parser.add_argument(f"--{name}", type=Path)
given = parser.parse_args(sys.argv[2:])
cell = cells.read(given.cell)
rank = int(os.environ.get("RANK", "0"))
mode = cell.model.options.get(str(rank), "ok")
if mode != "obeys":
    launched.begin()
if mode == "early":
    os.kill(os.getpid(), signal.SIGKILL)
heartbeat, state = Heartbeat(rank), Path(os.environ.get("PARBENCH_STATE", given.out.parent))
heartbeat.beat("training", 3, 17)
told = dict(os.environ) | {"cores": sorted(os.sched_getaffinity(0)), "pid": os.getpid()}
given.out.with_name(f"rank{rank}.json").write_text(json.dumps(told))
os.write(1, f"rank {rank} is here\\n".encode())  # in one piece: ranks share a pipe

def work(stops):
    while True:
        time.sleep(0.05)
        heartbeat.beat("training", 3, 17)
        if stops and ((state / "stop").exists() or launched.asked_to_stop.is_set()):
            heartbeat.stopped({"epoch": 3, "step": 17})
            sys.exit(0)

if mode == "raise":
    heartbeat.report_error(RuntimeError("no luck"))
    signal.pause()  # in the teardown of its libraries
elif mode == "memory":
    heartbeat.report_error(MemoryError("CUDA out of memory"))
    sys.exit(1)
elif mode == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
elif mode == "exit":
    os._exit(3)
elif mode == "hang":
    while True:
        signal.pause()
elif mode == "partner":  # like Gloo: an error as soon as the other rank's connection is gone
    other = given.out.with_name(f"rank{1 - rank}.json")
    while not other.exists():
        time.sleep(0.01)
    pid = json.loads(other.read_text())["pid"]
    while Path(f"/proc/{pid}").exists() and ") Z" not in Path(f"/proc/{pid}/stat").read_text():
        time.sleep(0.005)
    heartbeat.report_error(RuntimeError("Connection closed by peer"))
    sys.exit(1)
elif mode in ("work", "stubborn"):
    work(mode == "work")
elif mode == "obeys":  # SIGTERM reaches it before it notices that its input was closed

    def obey(number, frame):
        heartbeat.stopped({"epoch": 3, "step": 17})
        os._exit(0)

    signal.signal(signal.SIGTERM, obey)
    given.out.with_name("ready").touch()
    while True:
        signal.pause()
elif mode == "last":  # dies when the other one can be asked to stop
    while not given.out.with_name("ready").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 0 and mode != "silent":
    known = {"train_seconds": 7.94, "test_accuracy": 0.9312}
    metrics_json.write_run(given.out, cell, "ok", None, clocks.now(), given.data, **known)
sys.exit()
"""
COMMANDS = "scripts/parbench/commands/called"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """Return a copy of the project with the stand-in, in a folder whose name has blanks."""
    root = tmp_path_factory.mktemp("work folder") / "a copy"
    for part in ("scripts", "rules/schemas", "containers/locks"):
        shutil.copytree(ROOT / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
    (root / COMMANDS / "train.py").write_text(TRAIN)
    data = root / "results" / "data" / "digits"
    data.mkdir(parents=True)
    (data / "digest.json").write_text(json.dumps({"sha256": "0" * 64}))
    return root


@pytest.fixture
def launch(checkout, tmp_path):
    """Yield a function that makes a cell whose ranks act by ``modes``; check nothing is left."""
    made = []

    def make(*modes, name="", timeout=HANG_SECONDS, grace=HANG_SECONDS, devices=None):
        ranks = devices or len(modes)
        value = training.altered(
            training.cell("eager" if ranks == 1 else "ddp", ranks),
            id=f"cell{name}",
            model={"options": {str(rank): mode for rank, mode in enumerate(modes)}},
            run={"timeout_seconds": timeout, "grace_seconds": grace},
        )
        made.append(Launched(value, checkout / "results/data/digits", tmp_path, checkout))
        return made[-1]

    yield make
    for each in made:
        assert each.processes() == list(each.temporary.glob("parbench-*")) == []


def told(it, rank=0):
    """Return what a rank wrote about itself."""
    return json.loads((it.folder / f"rank{rank}.json").read_text())


@contextlib.contextmanager
def planted(it, code):
    """Let the launcher of ``it`` begin with ``code``."""
    program = it.root / COMMANDS / "launch.py"
    kept = program.read_text()
    _replace(program, code + kept)
    try:
        yield
    finally:
        _replace(program, kept)


def _replace(module, text):
    """Write a module without its bytecode, which Python tells by the second and the size."""
    module.write_text(text)
    for cached in (module.parent / "__pycache__").glob(f"{module.stem}.*"):
        cached.unlink()


def wait_for_ranks(it, ranks):
    """Wait until ``ranks`` ranks work."""
    wait_for(lambda: len(list(it.folder.glob("rank?.json"))) == ranks)


# ---------------------------------------------------------------- success


def test_a_cell_that_trains_leaves_its_result_and_its_log(launch):
    it = launch("ok", "ok")
    status, said, errors = it.run()
    assert (status, errors) == (0, "")
    assert "starts on cpu" in said
    assert said.endswith("ok, accuracy 0.931, trained in 7.9 s\n")
    assert {"rank 0 is here", "rank 1 is here"} <= set(it.log.read_text().splitlines())
    first, second = told(it, 0), told(it, 1)
    place = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    assert [first[name] for name in place] == ["0", "0", "2", "2"]
    assert [second[name] for name in place] == ["1", "1", "2", "2"]
    assert len(first["PARBENCH_CORES"].split(",")) == 2
    assert (it.folder / "finished.json").exists()
    assert not (it.folder / "failed.json").exists()


# ---------------------------------------------------------------- results that are failures


def test_out_of_memory_is_a_result(launch):
    it = launch("ok", "memory")
    assert it.run()[0] == 0
    found = json.loads(it.out.read_text())
    assert found["status"] == "out_of_memory"
    assert found["reason"] == "rank 1 of 2: MemoryError: CUDA out of memory"


@pytest.mark.parametrize(("counted", "status"), [(1, 0), (0, 1)])
def test_a_kill_is_a_lack_of_memory_if_the_kernel_counts_one(launch, counted, status):
    it = launch("ok", "kill")
    # A fake of the kernel's counter of kills, which a test cannot control.
    count = f"kills = itertools.count(4, {counted})\nmachine.oom_kills = lambda: next(kills)\n"
    with planted(it, f"import itertools\nfrom parbench import machine\n{count}"):
        found, _, errors = it.run()
    assert found == status
    sentence = "rank 1 of 2 died: killed by signal 9 (SIGKILL)"
    if status == 0:
        reason = json.loads(it.out.read_text())["reason"]
        assert reason == f"{sentence} by the kernel, for lack of memory"
    else:
        assert sentence in errors


# ---------------------------------------------------------------- failures

BAD = [
    (("silent",), "training ended without an error, but without a result"),
    (("exit",), "rank 0 of 1 died: exit status 3"),
    (("stubborn", "raise"), "rank 1 of 2: RuntimeError: no luck"),
    (("partner", "kill"), "rank 1 of 2 died: killed by signal 9 (SIGKILL)"),
    (("work", "early"), "rank 1 of 2 died: killed by signal 9 (SIGKILL)"),
    (("obeys", "last"), "rank 1 of 2 died: killed by signal 9 (SIGKILL)"),
]


@pytest.mark.parametrize(("modes", "sentence"), BAD, ids=["-".join(modes) for modes, _ in BAD])
def test_a_failure_says_which_rank_and_why(launch, modes, sentence):
    it = launch(*modes)
    it.out.write_text("stale")
    status, _, errors = it.run()
    assert status == 1
    assert not it.out.exists()
    error, log, again = errors.splitlines()[-3:]
    assert error.startswith("error: cell: ")
    assert sentence in error
    assert errors in it.log.read_text()
    assert log == f"  log:   {it.log}"
    assert shlex.split(again)[1:4] == [sys.executable, "scripts/bin/parbench", "launch"]
    failed = json.loads((it.folder / "failed.json").read_text())
    assert sentence in failed["sentence"]
    assert failed["lines"][-1] == again


# Time passes with the heartbeats of rank 0, and not before rank 1 hangs.
CLOCK = """
import time
from pathlib import Path
from parbench.launch import ranks


class Clock:
    seconds, seen, sleep, time = 0, None, time.sleep, time.time

    def monotonic(self):
        beats = list(Path({temporary!r}).glob("parbench-*/*/rank0.heartbeat"))
        if Path({folder!r}, "rank1.json").exists() and beats:
            stamp = beats[0].stat().st_mtime_ns
            self.seconds += stamp != self.seen
            self.seen = stamp
        return float(self.seconds)


ranks.time = Clock()
"""


def test_a_hung_rank_ends_the_cell(launch):
    it = launch("stubborn", "hang", timeout=3)
    with planted(it, CLOCK.format(temporary=str(it.temporary), folder=str(it.folder))):
        status, _, errors = it.run()
    assert status == 1
    assert "rank 1 hung: no progress for 3 s in epoch 3 step 17" in errors


def test_what_cannot_run_here_is_said(launch):
    it = launch("ok", devices=500)
    status, _, errors = it.run()
    assert (status, "needs 500 cores" in errors) == (2, True)


# ---------------------------------------------------------------- signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_keeps_a_checkpoint(launch, number):
    it = launch("work", "work")
    process = it.start()
    wait_for_ranks(it, 2)
    process.send_signal(number)
    _, errors = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 128 + number
    sentence = (
        f"ended by {number.name}; a checkpoint at epoch 3 step 17 is kept, and the same command "
        "goes on from there"
    )
    assert errors.endswith(f": {sentence}\n")
    assert errors in it.log.read_text()
    assert not (it.folder / "failed.json").exists()


def test_ranks_that_slurm_asks_alone_keep_a_checkpoint(launch):
    it = launch("work", "work")
    process = it.start()
    wait_for_ranks(it, 2)
    for number in (0, 1):
        os.kill(told(it, number)["pid"], signal.SIGTERM)
    _, errors = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 128 + signal.SIGTERM
    assert "a checkpoint at epoch 3 step 17 is kept" in errors


SCONTROL = """#!/bin/sh
case "$*" in
*requeue*) echo "$@" >{folder}/asked; kill -9 $PPID ;;  # as Slurm does
*job*) echo "JobId=7 JobState=RUNNING PreemptTime={preempted} EndTime=Unknown NodeList=n1 NumCPUs=1"
    echo "   Comment=rule_train_wildcards_{cell}" ;;
*) echo "NodeName=n1 NodeHostName=n1 NodeAddr=127.0.0.1 CPUTot=1" ;;
esac
"""
SRUN = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; done
SLURM_PROCID=0 exec "$@"
"""


@pytest.mark.parametrize("preempted", ["1700000000", "None"])
def test_a_rank_that_fails_in_a_job_that_is_preempted(launch, tmp_path, preempted):
    """As when Slurm takes the job's /tmp away while the rank writes what it needs to go on."""
    it = launch("exit")
    known = {"folder": str(tmp_path), "cell": it.folder.name, "preempted": preempted}
    for name, text in (("scontrol", SCONTROL.format(**known)), ("srun", SRUN)):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    search = f"{tmp_path}/bin:{os.environ['PATH']}"
    _, _, errors = it.run(SLURM_JOB_ID="7", SLURMD_NODENAME="n1", PATH=search)
    asked = tmp_path / "asked"
    if preempted == "None":
        assert not asked.exists()
        assert "exit status 3" in (it.folder / "failed.json").read_text()
    else:
        assert asked.read_text() == "requeue 7\n", errors


def test_who_does_not_stop_in_time_is_ended(launch):
    it = launch("stubborn", grace=0.5)
    process = it.start()
    wait_for_ranks(it, 1)
    process.terminate()
    _, errors = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 143
    assert "before its first checkpoint; the same command starts it again" in errors


def test_ranks_end_with_their_launcher_whatever_ends_it(launch):
    it = launch("stubborn", "hang")
    process = it.start()
    wait_for_ranks(it, 2)
    process.kill()
    process.communicate()
    wait_for(lambda: not it.processes())
    shutil.rmtree(os.path.dirname(told(it)["PARBENCH_STATE"]))  # all that is left
    # Its cores are free.
    it = launch("ok", "ok", name="-next")
    assert it.run()[0] == 0


def test_a_launcher_ends_with_the_snakemake_that_started_it(launch):
    status, _, errors = launch("work").run(PARBENCH_PARENT="1")
    assert (status, "ended by SIGTERM" in errors) == (143, True)


# ---------------------------------------------------------------- two at once


def test_cells_that_run_at_once_never_share_a_core(launch):
    number = len(os.sched_getaffinity(0))
    first = launch("work", devices=number, name="-first")
    second = launch("ok", devices=number, name="-second")
    holder = first.start()
    wait_for((first.folder / "rank0.json").exists)
    waiting = second.start()
    said = waiting.stderr.readline()
    assert f"cell-second: waiting for {number} of core-" in said
    holder.terminate()
    holder.communicate(timeout=HANG_SECONDS)
    waiting.communicate(timeout=HANG_SECONDS)
    assert waiting.returncode == 0


HOLD = """
import contextlib, ctypes, json, os, sys
from parbench import cell
from parbench.launch import devices
if ctypes.CDLL(None, use_errno=True).mount(b"none", b"/tmp", b"tmpfs", 0, None):
    sys.exit(os.strerror(ctypes.get_errno()))
with contextlib.suppress(OSError):  # where this is not root
    os.setuid(65534)
with devices.lock_devices(cell.Cell.of(json.loads(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_jobs_and_users_with_a_tmp_of_their_own_lock_the_same_cores(tmp_path):
    """Each in a mount namespace with another /tmp, as Slurm's job_container/tmpfs makes it."""
    private = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if subprocess.run([*private, "true"], capture_output=True).returncode != 0:
        pytest.skip("namespaces are not allowed here")
    environment = {"PYTHONPATH": str(ROOT / "scripts"), "PARBENCH_LOCKS": str(tmp_path)}
    words = [*private, sys.executable, "-c", HOLD]
    words += [json.dumps(training.cell(devices=len(os.sched_getaffinity(0))).json())]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    options = {"env": {**os.environ, **environment}, "text": True, **pipes}
    with subprocess.Popen(words, **options) as first:
        assert first.stdout.readline() == "held\n", first.communicate()[1]
        with subprocess.Popen(words, **options) as second:
            assert "which other cells use" in second.stderr.readline()
            first.kill()
            assert second.stdout.readline() == "held\n"
            second.kill()
    assert list(tmp_path.iterdir()) == []


def test_one_run_of_a_cell_at_a_time(launch):
    it = launch("work")
    first = it.start()
    wait_for_ranks(it, 1)
    second = it.start()
    assert "another process is making the result of cell; waiting" in second.stderr.readline()
    second.terminate()
    second.communicate(timeout=HANG_SECONDS)
    first.terminate()
    first.communicate(timeout=HANG_SECONDS)


def test_a_finished_result_that_nobody_took_is_taken(launch):
    it = launch("ok")
    it.run()
    taken = "another run has trained it meanwhile"
    assert taken not in it.run()[1]  # with the result in place, the user wants a new one
    made = it.out.read_bytes()
    it.out.unlink()
    assert taken in it.run()[1]
    assert it.out.read_bytes() == made
    # A result of other data is not taken.
    it.out.unlink()
    kept = json.loads((it.folder / "finished.json").read_text())
    kept["environment"]["dataset_digest"] = "1" * 64
    files.write_json(it.folder / "finished.json", kept)
    assert taken not in it.run()[1]


def test_the_time_left_is_estimated_from_finished_cells(launch):
    """An hour before the first end, such as of building images, is no measure of a cell."""
    one, other = launch("ok"), launch("ok", name="-b")
    cells = [one.folder.name, other.folder.name, "a-third"]
    begun = {"started": time.time() - 3600, "cells": cells}
    files.write_json(one.folder.parents[1] / "plan/progress.json", begun)
    _, said, _ = one.run()
    assert "[1/3] " in said
    assert "left)" not in said
    _, said, _ = other.run()
    assert re.search(r"\[2/3\] .* \(about \S+ left\)", said)
