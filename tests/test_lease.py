"""Leases under contention, by real processes: no core twice, no deadlock, nobody left out."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import lease
import machine
from errors import ParbenchError

SCRIPTS = Path(lease.__file__).parent
# Leases some of CORES cores again and again; a core that is taken twice leaves a file "twice".
WORKER = """
import os, random, sys, time
sys.path.insert(0, sys.argv[1])
import lease
folder, name, number, cores, rounds, hold = sys.argv[2], *map(float, sys.argv[3:])
lease.usable_cores = lambda: list(range(int(cores)))
for _ in range(int(rounds)):
    with lease.cores(int(number), f"cell{name:g}") as held:
        for core in held.devices:
            try:
                os.close(os.open(f"{folder}/busy-{core}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                open(f"{folder}/twice", "a").write(core)
        open(f"{folder}/got-{name:g}", "a").write(",".join(held.devices) + "\\n")
        time.sleep(hold * random.random() if rounds > 1 else hold)
        for core in held.devices:
            os.unlink(f"{folder}/busy-{core}")
"""


@pytest.fixture(autouse=True)
def leases(tmp_path, monkeypatch):
    folder = tmp_path / "leases of all"
    monkeypatch.setenv("PARBENCH_LEASES", str(folder))
    monkeypatch.delenv("PARBENCH_OVERSUBSCRIBE", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return folder


@pytest.fixture
def four_cores(monkeypatch):
    monkeypatch.setattr(lease, "usable_cores", lambda: [0, 1, 2, 3])


@pytest.fixture
def worker(tmp_path):
    started = []

    def start(name, number, cores, rounds=1, hold=0.3):
        words = [WORKER, SCRIPTS, tmp_path, name, number, cores, rounds, hold]
        command = [sys.executable, "-c", *map(str, words)]
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_for(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def is_free(name):
    folder = lease._open_folder()
    try:
        descriptor = lease._take(folder, name)
        if descriptor is not None:
            os.close(descriptor)
        return descriptor is not None
    finally:
        os.close(folder)


# ---------------------------------------------------------------- contention


def test_no_core_is_ever_taken_twice(worker, tmp_path):
    sizes = [3, 2, 2, 1, 1, 4]
    workers = [worker(name, size, 4, rounds=6, hold=0.05) for name, size in enumerate(sizes)]
    for process in workers:
        assert process.wait(60) == 0
    assert not (tmp_path / "twice").exists()
    for name, size in enumerate(sizes):
        lines = (tmp_path / f"got-{name}").read_text().splitlines()
        assert len(lines) == 6
        assert all(len(set(line.split(","))) == size for line in lines)


@pytest.mark.parametrize(("first", "second", "cores"), [(2, 2, 2), (3, 2, 4)])
def test_two_that_do_not_fit_together_run_in_turn(worker, tmp_path, first, second, cores):
    workers = [
        worker(0, first, cores, rounds=5, hold=0.02),
        worker(1, second, cores, rounds=5, hold=0.02),
    ]
    for process in workers:
        assert process.wait(30) == 0
    assert not (tmp_path / "twice").exists()


def test_a_large_cell_is_not_overtaken_for_ever(worker, tmp_path):
    small = [worker(name, 1, 4, rounds=1000, hold=0.2) for name in range(6)]
    wait_for(lambda: len(list(tmp_path.glob("got-*"))) == 6)
    assert worker(9, 4, 4).wait(20) == 0
    assert all(process.poll() is None for process in small)


def test_processes_with_other_cores_do_not_wait_for_each_other(worker, monkeypatch, tmp_path):
    monkeypatch.setattr(lease, "usable_cores", lambda: [6, 7])
    worker(0, 2, 2, hold=60)
    wait_for((tmp_path / "got-0").exists)
    waiting = worker(1, 2, 2)
    assert "waiting" in waiting.stderr.readline()
    with lease.cores(2, "elsewhere") as held:
        assert held.devices == ["6", "7"]


def test_who_waits_says_once_for_whom(worker, tmp_path):
    holder = worker(0, 1, 2, hold=1.5)
    wait_for((tmp_path / "got-0").exists)
    waiting = worker(1, 2, 2)
    assert waiting.wait(20) == 0
    said = waiting.stderr.read().splitlines()
    assert said == [f"cell1: waiting for 2 cores of 2: 0 is held by cell0 (pid {holder.pid})"]


def test_cores_come_in_order_of_preference(four_cores):
    with lease.cores(1, "a") as first, lease.cores(2, "b") as second:
        assert (first.devices, second.devices) == (["0"], ["1", "2"])
        assert not first.shared
    with lease.cores(4, "c") as every:
        assert every.devices == ["0", "1", "2", "3"]


# ---------------------------------------------------------------- the end of a holder


def test_a_dead_holder_holds_nothing(worker, tmp_path, four_cores):
    holder = worker(0, 4, 4, hold=60)
    wait_for((tmp_path / "got-0").exists)
    assert not is_free("core-0")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with lease.cores(4, "next") as held:
        assert len(held.devices) == 4


def test_a_child_with_the_descriptor_keeps_the_lease(four_cores):
    with lease.cores(1, "parent") as held:
        child = subprocess.Popen(["sleep", "60"], pass_fds=held.descriptors)
    try:
        assert not is_free("core-0")
        with lease.cores(1, "other") as other:
            assert other.devices == ["1"]
    finally:
        child.kill()
        child.wait()
    assert is_free("core-0")


# ---------------------------------------------------------------- too few


def test_more_cores_than_there_are_is_an_error(four_cores):
    with pytest.raises(ParbenchError, match=r"big: needs 5 cores .* may use 4 \(0, 1, 2, 3\)"):
        lease.cores(5, "big")


def test_oversubscription_shares_aloud(four_cores, monkeypatch, capsys):
    monkeypatch.setenv("PARBENCH_OVERSUBSCRIBE", "1")
    with lease.cores(6, "big") as held:
        assert held.devices == ["0", "1", "2", "3", "0", "1"]
        assert held.shared
        assert len(held.descriptors) == 4
        assert not is_free("core-3")
    assert "6 devices share 4 cores" in capsys.readouterr().err


def test_cores_are_those_of_the_affinity_and_the_quota(monkeypatch):
    mine = os.sched_getaffinity(0)
    assert set(lease.usable_cores()) <= mine
    monkeypatch.setattr(machine, "cores", lambda: 1)
    assert len(lease.usable_cores()) == 1


def test_threads_of_one_core_come_last(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(machine, "cores", lambda: 4)
    monkeypatch.setattr(lease, "_thread", lambda core: core % 2)
    assert lease.usable_cores() == [0, 2, 1, 3]


# ---------------------------------------------------------------- shared by users, safely


def test_everybody_may_use_the_folder(leases, four_cores):
    umask = os.umask(0o077)
    try:
        with lease.cores(1, "a"):
            pass
    finally:
        os.umask(umask)
    assert stat.S_IMODE(leases.stat().st_mode) == 0o1777
    assert {stat.S_IMODE(path.stat().st_mode) for path in leases.iterdir()} == {0o666}


def test_two_users_share(monkeypatch, four_cores):
    if os.geteuid() != 0:
        pytest.skip("only root can be two users")
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    monkeypatch.setenv("PARBENCH_LEASES", str(folder / "leases"))
    try:
        with lease.cores(2, "of root"):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    os.setgid(65534)
                    os.setuid(65534)
                    with lease.cores(2, "of nobody") as held:
                        status = 0 if held.devices == ["2", "3"] else 2
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        # core-2 is nobody's file: root takes it as it stands.
        with lease.cores(4, "of root") as held:
            assert len(held.devices) == 4
    finally:
        shutil.rmtree(folder)


def _symlink(path, victim):
    path.symlink_to(victim)


def _hardlink(path, victim):
    os.link(victim, path)


def _fifo(path, victim):
    os.mkfifo(path)


@pytest.mark.parametrize("trap", [_symlink, _hardlink, _fifo])
@pytest.mark.parametrize("name", ["core-0", "turn-core-0"])
def test_traps_in_the_shared_folder_are_refused(leases, tmp_path, four_cores, trap, name):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    leases.mkdir()
    trap(leases / name, victim)
    with pytest.raises(ParbenchError, match=f"{name}.*delete it"), lease.cores(1, "a"):
        pass
    assert victim.read_text() == "precious"


def test_a_link_instead_of_the_folder_is_refused(leases, tmp_path, four_cores):
    (tmp_path / "elsewhere").mkdir()
    leases.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ParbenchError, match="not a folder of leases"), lease.cores(1, "a"):
        pass


def test_a_deleted_lock_file_keeps_nobody_out_and_nobody_in(leases, four_cores):
    with lease.cores(1, "a"):
        (leases / "core-0").unlink()
        with lease.cores(1, "b") as held:  # a new file: b cannot know of a
            assert held.devices == ["0"]
            assert not is_free("core-0")


def test_who_waits_in_a_deleted_folder_is_told(leases, four_cores):
    """It waited for ever, and busily, for locks that nobody could give back."""
    os.mkdir(leases)
    folder = os.open(leases, os.O_RDONLY)
    os.rmdir(leases)
    try:
        with pytest.raises(ParbenchError, match="deleted while waiting"):
            lease._open_file(folder, "core-0")
    finally:
        os.close(folder)


def test_what_others_wrote_is_shown_without_control_characters(leases):
    leases.mkdir()
    file = leases / "core-0"
    file.write_text('{"pid": 1, "holder": "a\\u001b[2Jb"}')
    with open(file) as opened:
        assert lease._read_holder(opened.fileno()) == "ab (pid 1)"
    for content in ("", "[1]", '{"pid": "x", "holder": 1}', "\xff"):
        file.write_text(content)
        with open(file) as opened:
            assert lease._read_holder(opened.fileno()) == "somebody"


# ---------------------------------------------------------------- GPUs

A100 = "NVIDIA A100-SXM4-40GB"
A30 = "NVIDIA A30"


@pytest.fixture
def accelerators(monkeypatch):
    names = [A30, A100, A100]
    found = tuple({"name": name, "uuid": f"GPU-{index}"} for index, name in enumerate(names))
    monkeypatch.setattr(machine, "accelerators", lambda: found)


@pytest.mark.usefixtures("accelerators")
class TestGpus:
    def test_of_a_model(self):
        with lease.gpus(1, "A100", "a") as first, lease.gpus(1, "A100", "b") as second:
            assert (first.devices, second.devices) == (["GPU-1"], ["GPU-2"])
        with lease.gpus(1, "A30", "c") as held:
            assert held.devices == ["GPU-0"]

    def test_of_any_model_are_alike(self):
        with lease.gpus(2, None, "a") as held:
            assert held.devices == ["GPU-1", "GPU-2"]

    @pytest.mark.parametrize(
        ("visible", "usable"),
        [("2,1", ["GPU-2", "GPU-1"]), ("GPU-1", ["GPU-1"]), ("", []), ("2,9,1", ["GPU-2"])],
    )
    def test_only_the_visible_ones(self, monkeypatch, visible, usable):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert lease.usable_gpus("A100") == usable

    def test_a_slice_stays_that_slice(self, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-GPU-0/1/0")
        with lease.gpus(1, None, "a") as held:
            assert held.devices == ["MIG-GPU-0/1/0"]

    def test_their_processes_have_cores_of_their_own(self, monkeypatch):
        monkeypatch.setattr(lease, "usable_cores", lambda: [4, 5, 6])
        with lease.gpus_with_cores(2, "A100", "a") as gpus, lease.cores(1, "b") as cpu:
            assert gpus.devices == ["GPU-1", "GPU-2"]
            assert {*gpus.cores, *cpu.devices} == {"4", "5", "6"}
        # More GPUs than cores: what there is.
        monkeypatch.setattr(lease, "usable_cores", lambda: [4])
        with lease.gpus_with_cores(2, "A100", "a") as gpus:
            assert gpus.cores == ("4",)

    def test_too_few_is_an_error(self):
        with pytest.raises(ParbenchError, match="needs 2 GPUs of A30 and this process sees 1"):
            lease.gpus(2, "A30", "a")


# ---------------------------------------------------------------- one run at a time


def test_exclusive_waits_aloud(tmp_path, capfd):
    path = tmp_path / "a cell" / ".lock"
    code = (
        "import sys, time, lease; from pathlib import Path\n"
        "with lease.exclusive(Path(sys.argv[1]), ''): print('in', flush=True); time.sleep(1)"
    )
    words = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=SCRIPTS) as other:
        other.stdout.readline()
        with lease.exclusive(path, "another run has it"):
            assert other.wait(1) is not None
    assert capfd.readouterr().err == "another run has it\n"
    with lease.exclusive(path, "nobody"):
        pass
    assert capfd.readouterr().err == ""
