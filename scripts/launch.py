"""Train one cell: compose its command, lend it devices, watch its processes, leave none behind.

The one place where a cell's command is made. ``--print`` shows it, ready to be pasted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import selectors
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import apptainer
import children
import images
import lease
import machine
import measure
import strategies
from errors import ParbenchError, run_main
from files import read_json, write_json

# Seconds between asking the processes to end and killing them.
GRACE_SECONDS = 5.0
# Seconds that a failed run has to end by itself. A rank that raised may hang in its libraries'
# teardown, and torchrun waits half a minute for ranks that do not listen.
SETTLE_SECONDS = 10.0
LOOK_SECONDS = 0.2
# A rank that is killed takes the others' connections with it. Their errors are older than the
# launcher's knowledge of the death by no more than this.
SLACK_SECONDS = 1.0


# ---------------------------------------------------------------- the command of a cell


def command(
    cell: dict,
    *,
    cell_path: Path,
    data: Path,
    out: Path,
    devices: list[str],
    image: Path | None = None,
    variables: Mapping[str, str] | None = None,
    state: Path | None = None,
) -> tuple[list[str], dict[str, str]]:
    """The command that trains ``cell`` on ``devices``, and the environment variables it needs.

    ``devices`` are core numbers or UUIDs of GPUs, as a lease gives them; ``image`` is what the
    cell runs in, None for this environment; ``variables`` go with those of the cell; ``state`` is
    the run's own folder. The parts of the command stand in the order in which programs start each
    other.
    """
    strategy = strategies.load(cell["strategy"]["name"])
    words = strategy.launcher(cell, apptainer.PYTHON if image else sys.executable)
    words += [_shown_path(Path(__file__).with_name("train.py"))]
    words += ["--cell", str(cell_path), "--data", str(data), "--out", str(out)]
    inside = {**_environment(cell, devices), **(variables or {})}
    if image is None:
        return words, inside
    folders = images.work_folders(cell_path.parent, data, out.parent)
    return apptainer.enter(
        apptainer.probe(),
        image,
        words,
        binds=[*folders, *([state] if state else [])],
        variables=inside,
        gpu=cell["hardware"]["device"] == "cuda",
        temporary=state,
        folder=Path.cwd(),
    )


def shown_command(
    cell: dict, *, cell_path: Path, data: Path, out: Path, wanted: images.Image | None = None
) -> str:
    """One line for a shell that trains ``cell`` without leases, log or watch."""
    hardware = cell["hardware"]
    if hardware["device"] == "cpu":
        usable = [str(core) for core in lease.usable_cores()]
        devices = [usable[index % len(usable)] for index in range(hardware["devices"])]
    else:
        devices = lease.usable_gpus(hardware["gpu_model"])[: hardware["devices"]]
    # Only in an image: elsewhere train.py sees for itself what it writes down.
    told = {"PARBENCH_HOST": json.dumps(measure.host(images.known(wanted)))} if wanted else {}
    words, variables = command(
        cell,
        cell_path=cell_path,
        data=data,
        out=out,
        devices=devices,
        image=wanted and wanted.entry,
        variables=told,
    )
    if not devices:  # for a machine with GPUs: let it choose
        variables = {k: v for k, v in variables.items() if not k.endswith("CUDA_VISIBLE_DEVICES")}
    return apptainer.shown(words, variables)


def _environment(cell: dict, devices: list[str]) -> dict[str, str]:
    on_cpu = cell["hardware"]["device"] == "cpu"
    return {
        "PARBENCH_CORES" if on_cpu else "CUDA_VISIBLE_DEVICES": ",".join(devices),
        # A device on a CPU is one core; beside a GPU, more threads would run on leased cores.
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",
        # One node talks over its loopback: no firewall, VPN or name server stands in between.
        "GLOO_SOCKET_IFNAME": "lo",
        "HOROVOD_GLOO_IFACE": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
    }


def _shown_path(path: Path) -> str:
    """``path`` from the working folder, where it lies below it."""
    path = path.absolute()
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _lease(cell: dict) -> AbstractContextManager[lease.Lease]:
    hardware = cell["hardware"]
    if hardware["device"] == "cpu":
        return lease.cores(hardware["devices"], cell["id"])
    return lease.gpus_with_cores(hardware["devices"], hardware["gpu_model"], cell["id"])


# ---------------------------------------------------------------- signals to this process


class Stopped(Exception):
    """This process was asked to end. ``number``: the signal."""

    def __init__(self, number: int):
        super().__init__(f"ended by {signal_name(number)}")
        self.number = number


class Stop:
    """SIGTERM, SIGINT and SIGHUP: an exception while this process waits, a note while it watches.

    An exception could strike between a start of processes and the note of it.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.raises = True

    def __enter__(self) -> Stop:
        self._before = {
            number: signal.signal(number, self._receive)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
            if signal.getsignal(number) != signal.SIG_IGN  # nohup, a shell's background job
        }
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = number
            if self.raises:
                raise Stopped(number)


def signal_name(number: int) -> str:
    """SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# ---------------------------------------------------------------- processes


def members(state: str) -> list[int]:
    """Processes of the run whose PARBENCH_STATE is ``state``: torchrun's and horovodrun's workers
    leave the session and, when their parent dies, the family, but keep their environment."""
    mark = f"PARBENCH_STATE={state}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                with open(f"/proc/{entry}/environ", "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:  # gone, or another user's
                continue
            if mark in words:
                found.append(int(entry))
    return found


def end_all(state: str, grace: float) -> list[int]:
    """End all processes of a run: asked first, killed after ``grace`` seconds.

    Returns those that still live half a minute later: the kernel does not let go of them.
    """
    _signal(members(state), signal.SIGTERM)
    _wait_until_none(state, grace)
    deadline = time.monotonic() + 30
    while (alive := members(state)) and time.monotonic() < deadline:
        _signal(alive, signal.SIGKILL)
        time.sleep(0.05)
    return alive


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _wait_until_none(state: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while members(state) and time.monotonic() < deadline:
        time.sleep(0.05)


def _clean(state: str) -> None:
    """What the launcher's guard does when the launcher is killed outright."""
    end_all(state, grace=1.0)
    shutil.rmtree(state, ignore_errors=True)


def oom_kills() -> int:
    """How often the kernel has killed for lack of memory: on this machine and in our cgroups."""
    texts = [machine.read("/proc/vmstat")]
    texts += machine.cgroup("memory.events", "memory")
    texts += machine.cgroup("memory.oom_control", "memory")
    return sum(int(n) for text in texts for n in re.findall(r"^oom_kill (\d+)$", text, re.M))


# ---------------------------------------------------------------- output


class Output:
    """The processes' output: into the log, and to the terminal where there is a bar to show."""

    def __init__(self, path: Path, pipe: int, to_terminal: bool):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.lines: deque[str] = deque(maxlen=400)
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115  (closed by close())
        self._pipe = pipe
        self._to_terminal = to_terminal
        self._rest = b""
        os.set_blocking(pipe, False)

    def read(self) -> bool:
        """Take what the pipe holds; False at its end."""
        for _ in range(64):  # more than a pipe holds; whoever never stops writing is watched, too
            try:
                piece = os.read(self._pipe, 65536)
            except BlockingIOError:
                return True
            if not piece:
                return False
            if self._to_terminal:
                sys.stderr.buffer.write(piece)
                sys.stderr.buffer.flush()
            *complete, rest = (self._rest + piece).split(b"\n")
            for line in complete:
                self.say(self._last_state(line))
            # A bar draws itself again and again without ever ending its line.
            self._rest = rest[max(0, rest.rstrip(b"\r").rfind(b"\r")) :]
        return True

    def say(self, line: str) -> None:
        """A line of the log."""
        self.lines.append(line)
        try:
            self._file.write(line + "\n")
            self._file.flush()
        except OSError as error:
            raise ParbenchError(f"{self.path}: {error.strerror}; the cell was ended") from None

    def close(self) -> None:
        """Write what is left of the last line."""
        if self._rest:
            self.say(self._last_state(self._rest))
        with contextlib.suppress(OSError):  # said already
            self._file.close()

    @staticmethod
    def _last_state(line: bytes) -> str:
        """What a terminal would show of a line that was drawn several times."""
        text = line.decode(errors="replace").rstrip("\r")
        return text.rpartition("\r")[2].rstrip()


def progress_mode(asked: str | None) -> str:
    """How training shows its progress: "bar" on a terminal, "lines" where nobody watches one."""
    if asked:
        return asked
    quiet = os.environ.get("PARBENCH_QUIET") == "1" or not sys.stderr.isatty()
    return "lines" if quiet else "bar"


# ---------------------------------------------------------------- ranks


@dataclass
class Rank:
    """What is known of one training process."""

    number: int
    changed: float  # time.monotonic() of its last sign of life
    stamp: int = 0
    pid: int | None = None
    beat: dict = field(default_factory=dict)
    ended: float | None = None  # time.time() at which it was found dead
    code: int | None = None  # its exit status, negative for a signal


class Watch:
    """Follows the ranks of a run through the files that they leave in ``state``."""

    def __init__(self, state: str, count: int, selector: selectors.BaseSelector):
        self.state = Path(state)
        now = time.monotonic()
        self.ranks = [Rank(number, now) for number in range(count)]
        self._failed: float | None = None
        self._selector = selector

    def look(self) -> None:
        """Take note of new heartbeats and of deaths."""
        for rank in self.ranks:
            path = self.state / f"rank{rank.number}.heartbeat"
            with contextlib.suppress(OSError, ValueError):
                stamp = path.stat().st_mtime_ns
                if stamp != rank.stamp:
                    rank.beat = json.loads(path.read_text())
                    rank.stamp, rank.changed = stamp, time.monotonic()
                    self._follow(rank, int(rank.beat["pid"]))
            if rank.pid is not None and rank.ended is None:
                self._see_death(rank)
        if self._failed is None and (self.errors() or any(rank.code for rank in self.ranks)):
            self._failed = time.monotonic()

    def failed_for(self) -> float | None:
        """Seconds since a rank was first seen to have failed."""
        return None if self._failed is None else time.monotonic() - self._failed

    def _follow(self, rank: Rank, pid: int) -> None:
        if rank.pid is None:
            rank.pid = pid
            # Wakes the launcher at once: who died first, and of what, is soon forgotten.
            with contextlib.suppress(OSError, AttributeError):
                self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, "rank")

    def _see_death(self, rank: Rank) -> None:
        try:
            # After the name, which may hold anything: state is the first word, exit code the last.
            words = Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            rank.ended = time.time()
            return
        if words[0] in "ZX":
            rank.ended, status = time.time(), int(words[-1])
            if status:
                rank.code = os.waitstatus_to_exitcode(status)

    def hung(self, timeout: float) -> str | None:
        """A sentence when a rank, or the program above the ranks, stands still."""
        now = time.monotonic()
        living = [rank for rank in self.ranks if rank.ended is None]
        if not living:
            latest = max(rank.ended or 0.0 for rank in self.ranks)
            if time.time() - latest < timeout:
                return None
            return f"the ranks ended {timeout:g} s ago, but the program that started them did not"
        rank = min(living, key=lambda rank: rank.changed)
        if now - rank.changed < timeout:
            return None
        where = "since the start"
        if rank.beat.get("epoch"):
            where = f"in epoch {rank.beat['epoch']} step {rank.beat['step']}"
        elif rank.beat:
            where = f"in {rank.beat['phase']}"
        return f"rank {rank.number} hung: no progress for {timeout:g} s {where}"

    def errors(self) -> dict[int, tuple[float, dict]]:
        """The last words of ranks: {rank: (time, {kind, message, traceback})}."""
        found = {}
        for rank in self.ranks:
            path = self.state / f"rank{rank.number}.error.json"
            with contextlib.suppress(OSError, ValueError):
                found[rank.number] = (path.stat().st_mtime, json.loads(path.read_text()))
        return found


# What torchrun and horovodrun say about the end of a rank.
ENDS = (
    re.compile(r"rank\s+: (?P<rank>\d+) \(local_rank: \d+\)\s+exitcode\s+: (?P<code>-?\d+)"),
    re.compile(r"\(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+)"),
    re.compile(r"Process (?P<rank>\d+) exit with status code (?P<code>\d+)"),
)


def told_ends(text: str) -> dict[int, int]:
    """Exit codes of ranks, negative for signals, as far as ``text`` (a log) tells them."""
    found: dict[int, int] = {}
    for pattern in ENDS:
        for match in pattern.finditer(text):
            code = int(match["code"])
            found.setdefault(int(match["rank"]), 128 - code if code > 128 else code)
    return found


@dataclass(frozen=True)
class Failure:
    """Why a run failed. ``killed``: by SIGKILL. ``out_of_memory``: that is a result, then."""

    sentence: str
    killed: bool = False
    out_of_memory: bool = False


def find_failure(watch: Watch, returncode: int, text: str) -> Failure:
    """Which rank of a failed run was the first to die, and of what.

    ``returncode`` is the status of the program at the top, ``text`` its output.
    """
    count = len(watch.ranks)
    errors = watch.errors()
    for number, (_, error) in sorted(errors.items()):
        if error.get("kind") == "out_of_memory":
            return Failure(_rank_said(number, count, error), out_of_memory=True)

    codes = told_ends(text)
    if count == 1 and returncode != 0:
        codes.setdefault(0, returncode)
    deaths = []  # of ranks that could not say why
    for rank in watch.ranks:
        code = rank.code if rank.code is not None else codes.get(rank.number)
        if code and rank.number not in errors:
            deaths.append((rank.ended or 0.0, rank.number, code))
    # torchrun and horovodrun send SIGTERM to the others when one has failed.
    deaths = [death for death in deaths if death[2] != -signal.SIGTERM] or deaths
    spoken = min(errors.items(), key=lambda item: item[1][0], default=None)
    if deaths:
        when, number, code = min(deaths)
        # Aborting is what libraries do about another rank's failure; nobody is killed for one.
        slack = 0.0 if code in (-signal.SIGABRT, -signal.SIGTERM) else SLACK_SECONDS
        if spoken is None or when <= spoken[1][0] + slack:
            return Failure(_rank_died(number, count, code), killed=code == -signal.SIGKILL)
    if spoken is not None:
        return Failure(_rank_said(spoken[0], count, spoken[1][1]))
    last = "\n".join(text.rstrip().splitlines()[-5:])
    return Failure(
        "no rank says why; the program that starts the ranks died: "
        f"{_died_of(returncode)}; the last lines of output are\n{last}"
    )


def _rank_said(number: int, count: int, error: dict) -> str:
    return f"rank {number} of {count}: {error.get('message', 'no message')}"


def _rank_died(number: int, count: int, code: int) -> str:
    return f"rank {number} of {count} died: {_died_of(code)}"


def _died_of(code: int) -> str:
    if code < 0:
        return f"killed by signal {-code} ({signal_name(-code)})"
    return f"exit status {code}"


# ---------------------------------------------------------------- how far the whole run is


def seconds_left(
    cells: Mapping[str, dict], finished: Mapping[str, float], slots: Mapping[str, int]
) -> float | None:
    """Seconds until all ``cells`` are trained; None while nothing is known.

    ``cells``: {id: {device, devices, like}}; ``finished``: {id: the seconds that it took};
    ``slots``: {cpu, cuda}, the devices of this machine. A cell is expected to take as long as the
    mean of its group (``like``) or, when none of that is finished, of all.
    """
    waiting = [cell for name, cell in cells.items() if name not in finished]
    if not waiting:
        return 0.0
    known = [(cells[name]["like"], seconds) for name, seconds in finished.items() if name in cells]
    if not known:
        return None
    everybody = statistics.fmean(seconds for _, seconds in known)
    work: dict[str, float] = {}
    longest = 0.0
    for cell in waiting:
        alike = [seconds for like, seconds in known if like == cell["like"]]
        seconds = statistics.fmean(alike) if alike else everybody
        longest = max(longest, seconds)
        work[cell["device"]] = work.get(cell["device"], 0.0) + seconds * cell["devices"]
    # Kinds of devices work side by side, and no cell is ever split.
    return max(longest, *(amount / max(1, slots[kind]) for kind, amount in work.items()))


class Progress:
    """Count and time left of the workflow's run that this cell belongs to.

    Comes from results/plan/progress.json, which the workflow writes when it starts; without it, or
    for a cell outside of it, there is no count.
    """

    def __init__(self, cell_id: str, out: Path):
        self._folder = out.absolute().parent.parent
        path = self._folder.parent / "plan" / "progress.json"
        plan = read_json(path) if path.exists() else {"cells": {}}
        self._cells = plan["cells"] if cell_id in plan["cells"] else {}
        self._started = plan.get("started", 0.0)

    def count(self) -> str:
        """ "[12/30] ": cells that are done, of all that the run trains."""
        return f"[{len(self._finished())}/{len(self._cells)}] " if self._cells else ""

    def left(self) -> str:
        """ " (about 2 min 10 s left)", or nothing."""
        if not self._cells:
            return ""
        slots = {"cpu": len(lease.usable_cores()), "cuda": 1}
        if any(cell["device"] == "cuda" for cell in self._cells.values()):
            slots["cuda"] = len(lease.usable_gpus())
        walls = {name: seconds for name, seconds in self._finished().items() if seconds is not None}
        missing = self._finished().keys() - walls.keys()
        cells = {name: cell for name, cell in self._cells.items() if name not in missing}
        seconds = seconds_left(cells, walls, slots)
        return f" (about {duration(seconds)} left)" if seconds else ""

    def _finished(self) -> dict[str, float | None]:
        """Cells that this run has finished, with the seconds that each took."""
        found: dict[str, float | None] = {}
        for name in self._cells:
            with contextlib.suppress(FileNotFoundError):
                if (self._folder / name / "metrics.json").stat().st_mtime >= self._started:
                    found[name] = _wall_seconds(self._folder / name / "wall.json")
        return found


def _wall_seconds(path: Path) -> float | None:
    """What a cell took; None where that cannot be read: a guess at the time left fails no cell."""
    try:
        return float(read_json(path)["seconds"])
    except (ParbenchError, KeyError, TypeError, ValueError):
        return None


def duration(seconds: float) -> str:
    """45 s, 2 min 10 s, 3 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


# ---------------------------------------------------------------- one run of one cell


@dataclass
class Job:
    """One run of one cell, with the files it reads and writes."""

    cell: dict
    cell_path: Path
    data: Path
    out: Path
    log: Path
    mode: str

    def again(self) -> str:
        """The command that runs it once more."""
        words = [sys.executable, _shown_path(Path(__file__))]
        for name in ("cell", "data", "out", "log"):
            value = getattr(self, "cell_path" if name == "cell" else name)
            words += [f"--{name}", str(value)]
        return shlex.join(words)


def run(job: Job, stop: Stop) -> int:
    """Train the cell: 0 when there is a result, also out_of_memory; 1 when the job failed.

    Raises Stopped when a signal asked for the end.
    """
    name = job.cell["id"]
    progress = Progress(name, job.out)
    waiting = f"{name}: waiting for another run of this cell"
    with lease.exclusive(job.out.parent / ".lock", waiting):
        job.out.unlink(missing_ok=True)
        image = _image(job)  # before devices are taken: it may have to be built
        with _lease(job.cell) as held:
            started, begun = measure.now(), time.monotonic()
            where = f"{job.cell['hardware']['device']} {', '.join(held.devices)}"
            print(f"{progress.count()}{name}: starts on {where}", flush=True)
            failure = _train(job, held, stop, image)
            if failure is None:
                failure = _check_metrics(job)
            if failure is not None:
                job.out.unlink(missing_ok=True)
                if not failure.out_of_memory:
                    _tell(job, failure.sentence)
                    return 1
                measure.write_unfinished(
                    job.out,
                    job.cell,
                    "out_of_memory",
                    failure.sentence,
                    started,
                    job.data,
                    image=image,
                )
            wall = {"seconds": round(time.monotonic() - begun, 3)}
            write_json(job.out.parent / "wall.json", wall)
        # Before another run of this cell may take the result away.
        print(f"{progress.count()}{name}: {_result(job.out)}{progress.left()}", flush=True)
    return 0


def _image(job: Job) -> dict | None:
    """What the cell's image is, as images.ensure tells it; None for a cell of the host."""
    if job.cell["deployment"] == "host":
        return None
    _, settings = images.read_plan(job.out.absolute().parents[2] / "plan" / "images.json")
    return images.ensure(images.of_cell(job.cell, settings), settings)


def _train(job: Job, held: lease.Lease, stop: Stop, image: dict | None) -> Failure | None:
    """Run the processes to their end, whatever that is; none of them lives afterwards."""
    state = tempfile.mkdtemp(prefix="parbench-")
    if held.shared:
        os.environ["PARBENCH_OVERSUBSCRIBED"] = "1"  # for metrics.json, whoever writes it
    stop.raises = False
    kills = oom_kills()
    with children.guarded(lambda: _clean(state)):
        try:
            words, environment = _command(job, held, image, state)
            process = children.start(words, environment, held.descriptors)
            return _attend(job, process, state, stop, lambda: oom_kills() > kills)
        finally:
            left = end_all(state, GRACE_SECONDS)
            if left:
                print(f"error: processes {left} do not end, not even by SIGKILL", file=sys.stderr)
            shutil.rmtree(state, ignore_errors=True)


def _command(
    job: Job, held: lease.Lease, image: dict | None, state: str
) -> tuple[list[str], dict[str, str]]:
    """The command of this run, and its whole environment."""
    variables = {"PARBENCH_STATE": state, "PARBENCH_LAUNCHED": repr(time.time())}
    variables |= {"PARBENCH_PROGRESS": job.mode} | _terminal_size(job.mode)
    if held.shared:
        variables["PARBENCH_OVERSUBSCRIBED"] = "1"
    if held.cores:
        variables["PARBENCH_CORES"] = ",".join(held.cores)
    variables["PARBENCH_HOST"] = json.dumps(measure.host(image))
    words, environment = command(
        job.cell,
        cell_path=job.cell_path,
        data=job.data,
        out=job.out,
        devices=held.devices,
        image=image and Path(image["path"]),
        variables=variables,
        state=Path(state),
    )
    outside = os.environ if image is None else apptainer.clean_environment()
    # The state also outside of an image, where programs must be found to be ended.
    return words, {**outside, **environment, "PARBENCH_STATE": state}


def _terminal_size(mode: str) -> dict[str, str]:
    """The bar cannot ask the terminal: it draws into a pipe."""
    if mode != "bar":
        return {}
    size = shutil.get_terminal_size()
    return {"COLUMNS": str(size.columns), "LINES": str(size.lines)}


def _attend(
    job: Job,
    process: subprocess.Popen,
    state: str,
    stop: Stop,
    kernel_killed: Callable[[], bool],
) -> Failure | None:
    """Follow the processes until they end, hang, or a signal asks for the end."""
    assert process.stdout is not None
    output = Output(job.log, process.stdout.fileno(), job.mode == "bar")
    output.say(f"$ {shlex.join(process.args)}")
    selector = selectors.DefaultSelector()
    try:
        selector.register(process.stdout, selectors.EVENT_READ, "output")
        count = strategies.load(job.cell["strategy"]["name"]).processes(job.cell)
        watch = Watch(state, count, selector)
        hung = _follow(process, watch, output, selector, job.cell["run"]["timeout_seconds"], stop)
        watch.look()  # before the rest is ended: what dies now died by itself
        end_all(state, GRACE_SECONDS)
        process.wait()
        output.read()
        if stop.received is not None:
            output.say(f"ended by {signal_name(stop.received)}")
            raise Stopped(stop.received)
        if hung is not None:
            return Failure(hung)
        if process.returncode == 0 and watch.failed_for() is None:
            return None
        failure = find_failure(watch, process.returncode, "\n".join(output.lines))
        if failure.killed and kernel_killed():
            return Failure(f"{failure.sentence} by the kernel, for lack of memory", True, True)
        return failure
    finally:
        for key in list(selector.get_map().values()):
            if key.data == "rank":
                os.close(key.fd)
        selector.close()
        output.close()
        process.stdout.close()


def _follow(
    process: subprocess.Popen,
    watch: Watch,
    output: Output,
    selector: selectors.BaseSelector,
    timeout: float,
    stop: Stop,
) -> str | None:
    """Wait until the process ends, a rank has failed, or a signal comes.

    Returns a sentence when a rank hangs.
    """
    while process.poll() is None and stop.received is None:
        for key, _ in selector.select(LOOK_SECONDS):
            if key.data == "output":
                if not output.read():
                    selector.unregister(key.fileobj)
            else:
                selector.unregister(key.fileobj)
                os.close(key.fd)
        watch.look()
        failed_for = watch.failed_for()
        if failed_for is None:
            hung = watch.hung(timeout)
            if hung is not None:
                return hung
        elif failed_for > SETTLE_SECONDS:
            return None
    return None


def _check_metrics(job: Job) -> Failure | None:
    """A run that ends well leaves metrics.json, of this very cell."""
    try:
        metrics = measure.read_metrics(job.out)
    except ParbenchError as error:
        return Failure(f"training ended without an error, but {error}")
    if metrics["cell"] != job.cell:
        return Failure(f"training ended without an error, but {job.out} is of another cell")
    return None


def _result(out: Path) -> str:
    """The result of a cell in a few words."""
    metrics = measure.read_metrics(out)
    if metrics["status"] != "ok":
        return f"{metrics['status']}: {metrics['reason']}"
    seconds = metrics["train_seconds"]
    spent = f"{seconds:.1f} s" if seconds < 60 else duration(seconds)
    return f"ok, accuracy {metrics['test_accuracy']:.3f}, trained in {spent}"


def _tell(job: Job, sentence: str) -> None:
    """The last lines of a failed job, on the terminal and in the log."""
    lines = [
        f"error: {job.cell['id']}: {sentence}",
        f"  log:   {job.log}",
        f"  again: {job.again()}",
    ]
    with open(job.log, "a", encoding="utf-8") as log:
        for stream in (sys.stderr, log):
            print(*lines, sep="\n", file=stream, flush=True)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cell", type=Path, required=True, help="cell.json")
    parser.add_argument("--data", type=Path, required=True, help="folder of the converted dataset")
    parser.add_argument("--out", type=Path, required=True, help="metrics.json to write")
    parser.add_argument("--log", type=Path, help="default: log.txt beside metrics.json")
    parser.add_argument("--progress", choices=("bar", "lines"), help="default: a bar on a terminal")
    parser.add_argument(
        "--print", action="store_true", help="show the command of the cell and run nothing"
    )
    arguments = parser.parse_args()
    cell = measure.read_cell(arguments.cell)
    if arguments.print:
        paths = {"cell_path": arguments.cell, "data": arguments.data, "out": arguments.out}
        print(shown_command(cell, **paths))
        return 0
    if cell["hardware"]["nodes"] != 1:
        raise ParbenchError(
            f"{arguments.cell}: hardware.nodes is {cell['hardware']['nodes']}; this version trains "
            "on one node"
        )
    log = arguments.log or arguments.out.with_name("log.txt")
    job = Job(
        cell, arguments.cell, arguments.data, arguments.out, log, progress_mode(arguments.progress)
    )
    with Stop() as stop:
        try:
            return run(job, stop)
        except Stopped as stopped:
            print(f"{cell['id']}: {stopped}", file=sys.stderr)
            return 128 + stopped.number


if __name__ == "__main__":
    run_main(main)
