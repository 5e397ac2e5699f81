"""A user's own program that takes turns with another one: its processes, and their messages through
the socket of client/parbench_turns.py (docs/versus.md)."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from parbench.errors import ParbenchError
from parbench.measure import load
from parbench.measure.load import Load
from parbench.printable import log_line
from parbench.variables import STEADY

CLIENT = Path(__file__).with_name("client")
HOW = "from parbench_turns import step, and step(samples=...) after each training step"
# Keys of its messages.
HELLO, REPORT = ("process", "rank", "ranks", "python", "packages"), ("samples", "seconds")
POLL_SECONDS = 0.2
END_SECONDS = 3.0  # between SIGTERM and SIGKILL; the launcher kills its ranks after 5
EXIT_SECONDS = 10.0  # in which a program must end after one of its ranks has ended
LOG_LINES = 8  # last lines of the log that an error shows


class ProgramError(ParbenchError):
    """Raised when a program cannot be compared; the message names the program, problem and fix."""


@dataclass(eq=False)
class Rank:
    """A process that called `step`: its socket, the data from it that are not read yet, its
    Python and the versions of the packages that it had loaded."""

    connection: socket.socket
    process: int = 0
    number: int = 0
    of: int = 1
    python: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    unread: bytes = b""

    def messages(self) -> Iterator[dict]:
        """Yield the messages that have arrived. Raises EOFError once no more can arrive."""
        received = self.connection.recv(65_536)
        *lines, self.unread = (self.unread + received).split(b"\n")
        yield from map(json.loads, lines)
        if not received:
            raise EOFError


def _bind(listener: socket.socket, path: Path) -> None:
    """Bind a socket to ``path``, even if it exceeds the length limit of socket addresses."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


@dataclass(frozen=True)
class Steps:
    """The result of a turn: ``samples`` of all ranks, ``seconds`` of the slowest."""

    samples: float
    seconds: float


@dataclass
class Program:
    """A program: its ``label``, its command line, the variables that its environment has beyond
    this process's, and its log.

    ``patience``: the seconds within which it must reach its first step and end each turn, set by
    ``patience_key``; ``folder``: where it runs; ``hidden``: variables of this process that it does
    not inherit; ``looked``: called several times a second while waiting for the program.
    """

    label: str
    command: str
    environment: dict[str, str]
    log: Path
    patience: float
    folder: Path = Path()
    hidden: Collection[str] = ()
    patience_key: str = "--patience"
    looked: Callable[[], None] = lambda: None
    process: subprocess.Popen[bytes] | None = None
    listener: socket.socket = field(init=False)
    callers: list[Rank] = field(default_factory=list)  # have not reported their rank yet
    ranks: dict[int, Rank] = field(default_factory=dict)
    turns: int = 0

    @contextlib.contextmanager
    def started(self, folder: Path) -> Iterator[None]:
        """Run the program, with its socket in ``folder``, until the end of the context. Raises
        ProgramError if it cannot be started."""
        path = folder / f"{os.urandom(4).hex()}.socket"
        given = self._variables
        paths = [str(CLIENT), *filter(None, [given.get("PYTHONPATH")])]
        variables = {"PYTHONPATH": os.pathsep.join(paths), "PARBENCH_TURNS": str(path)}
        self.callers, self.ranks, self.turns = [], {}, 0
        with socket.socket(socket.AF_UNIX) as listener, open(self.log, "ab") as log:
            _bind(listener, path)
            listener.listen()
            self.listener = listener
            try:
                self.process = subprocess.Popen(
                    self.arguments,
                    env=given | variables,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise ProgramError(
                    f"{self}: cannot be started: {error.strerror}; check the command"
                ) from None
            try:
                yield
            finally:
                self.end()

    @property
    def _begun(self) -> subprocess.Popen[bytes]:
        """The process that was started."""
        assert self.process is not None
        return self.process

    @property
    def _variables(self) -> dict[str, str]:
        """Return its environment: inherited variables, with the user's PATH, and those given to it.
        By default it keeps freed memory, as cells do."""
        inherited = {key: os.environ[key] for key in os.environ.keys() - set(self.hidden)}
        # The user's PATH, from before `make` entered parbench's own environment.
        if users_path := os.environ.get("PARBENCH_USERS_PATH"):
            inherited["PATH"] = users_path
        given = inherited | STEADY | self.environment
        # An empty value would be 0.
        return {key: value for key, value in given.items() if value or key not in STEADY}

    @property
    def path(self) -> str:
        """The path of the executable that its command line starts."""
        word = self.arguments[0]
        return shutil.which(word, path=self._variables.get("PATH")) or word

    @property
    def arguments(self) -> list[str]:
        """The arguments of its command line. Raises ProgramError if there are none or a quote is
        not closed."""
        try:
            arguments = shlex.split(self.command)
        except ValueError:
            arguments = []
        if not arguments:
            raise ProgramError(f"{self}: no command, or one whose quotes do not end; correct it")
        return arguments

    def __str__(self) -> str:
        return f"{self.label} ({self.command})"

    # ------------------------------------------------------------ its processes

    def tree(self) -> list[psutil.Process]:
        """Return its running processes, the one that was started first."""
        try:
            root = psutil.Process(self._begun.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def seconds_used(self) -> float:
        """Return the CPU seconds that all its processes have used so far."""
        used = 0.0
        for process in self.tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                used += sum(process.cpu_times()[:4])  # its own and those of ended children
        return used

    def send(self, number: int) -> None:
        """Send a signal to all its processes."""
        for process in self.tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def end(self) -> None:
        """End all its processes, including stopped ones; a second call does nothing."""
        alive = self.tree()
        for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGKILL):
            for process in alive:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
            if number == signal.SIGTERM:
                _, alive = psutil.wait_procs(alive, END_SECONDS)
        self._begun.wait()
        with contextlib.suppress(ProcessLookupError):  # processes whose parents have ended
            os.killpg(self._begun.pid, signal.SIGKILL)
        for rank in (*self.callers, *self.ranks.values()):
            rank.connection.close()

    # ------------------------------------------------------------ its turns

    def wait_for_step(self) -> None:
        """Wait until all of its ranks have called `step` once. Raises ProgramError if they do
        not."""
        until = time.monotonic() + self.patience
        while not self.ranks or len(self.ranks) < self.first_rank.of:
            self._ready([])
            if time.monotonic() > until:
                self._fail_late()

    def turn(self, steps: int) -> tuple[Steps, Load]:
        """Continue the program, let it take ``steps``, and stop it again.

        Returns what it did and the load on this process's cores during the turn, where ``own`` is
        the program's. Raises ProgramError.
        """
        self.send(signal.SIGCONT)
        began = time.perf_counter()
        before, used = load.now(), self.seconds_used()
        taken = self.take(steps)
        self.send(signal.SIGSTOP)  # at once, since workers of a data loader would go on
        spent, used = load.now() - before, self.seconds_used() - used
        # Only the timed steps count, which take a share of these seconds.
        share = min(1.0, taken.seconds / (time.perf_counter() - began))
        return taken, replace(spent, own=spent.own + used).times(share)

    def take(self, steps: int) -> Steps:
        """Let the program take ``steps`` timed steps, after an untimed one. Raises ProgramError."""
        until = time.monotonic() + self.patience
        for rank in self.ranks.values():
            with contextlib.suppress(OSError):  # a dead rank is noticed below
                rank.connection.sendall(json.dumps({"steps": steps}).encode() + b"\n")
        reports: dict[int, dict] = {}
        while len(reports) < len(self.ranks):
            silent = [rank for rank in self.ranks.values() if rank.number not in reports]
            for rank in self._ready(silent):
                for message in self._messages(rank):
                    reports[rank.number] = message
            if time.monotonic() > until:
                raise ProgramError(
                    f"{self}: rank {silent[0].number} did not take {steps + 1} steps in "
                    f"{self.patience:g} s after {self._done()}; raise "
                    f"{self.patience_key}{self._last_lines()}"
                )
        self.turns += 1
        samples = sum(one["samples"] for one in reports.values())
        if samples <= 0:
            raise ProgramError(
                f"{self}: step(samples=0) throughout a turn; pass the step's samples"
            )
        return Steps(samples, max(one["seconds"] for one in reports.values()))

    @property
    def first_rank(self) -> Rank:
        """The rank that sent the first message."""
        return next(iter(self.ranks.values()))

    def _ready(self, ranks: list[Rank]) -> list[Rank]:
        """Return those of ``ranks`` that have sent something, or ended, within POLL_SECONDS, and
        accept connections of other processes. Raises ProgramError if the program has ended."""
        self.looked()
        with selectors.DefaultSelector() as selector:
            selector.register(self.listener, selectors.EVENT_READ)
            for rank in (*self.callers, *ranks):
                selector.register(rank.connection, selectors.EVENT_READ, rank)
            ready = [key.data for key, _ in selector.select(POLL_SECONDS)]
        if not ready and self._begun.poll() is not None:
            self._fail_ended()
        for caller in [each for each in self.callers if each in ready]:
            if self._register(caller):
                self.callers.remove(caller)
        if None in ready:  # a process connects
            self.callers.append(Rank(self.listener.accept()[0]))
        return [rank for rank in ranks if rank in ready]

    def _register(self, rank: Rank) -> bool:
        """Return whether a process has reported which rank it is; if so, record it."""
        for message in self._messages(rank):
            rank.process, rank.number, rank.of = (message[key] for key in HELLO[:3])
            rank.python, rank.packages = message["python"], message["packages"]
            if (other := self.ranks.setdefault(rank.number, rank)) is not rank:
                raise ProgramError(
                    f"{self}: processes {other.process} and {rank.process} both call step as rank "
                    f"{rank.number} of {rank.of}: call it in one process, or start the ranks with "
                    "torchrun, or set RANK and WORLD_SIZE for each"
                )
        return bool(rank.process)

    def _messages(self, rank: Rank) -> list[dict]:
        """Return the messages of a rank. Raises ProgramError if it has ended or reports a
        problem."""
        found: list[dict] = []
        try:
            for message in rank.messages():
                found.append(message)
        except (EOFError, OSError):
            if not found:
                self._fail_ended()
        except ValueError:
            found = [{}]
        for message in found:
            if problem := message.get("problem"):
                raise ProgramError(f"{self} {problem}")
            if not set(REPORT if rank.process else HELLO) <= set(message):
                raise ProgramError(
                    f"{self}: another module than parbench_turns writes to its socket"
                )
        return found

    # ------------------------------------------------------------ errors

    def _fail_ended(self) -> None:
        """Raise ProgramError because the program or one of its ranks has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._begun.wait(EXIT_SECONDS)
        status = self._begun.returncode
        if status == 0 and not self.ranks:
            raise ProgramError(f"{self}: ended without a training step; add to it: {HOW}")
        if status == 0:
            raise ProgramError(
                f"{self}: ended after {self._done()}, and a comparison takes more steps; let it "
                "train longer, say for more epochs"
            )
        how = f"ended with status {status}"
        if status is None:
            how = "one of its ranks ended"
        elif status < 0:
            how = f"was ended by {signal.Signals(-status).name}"
        raise ProgramError(
            f"{self}: {how} after {self._done()}; ran {self.path}{self._last_lines()}"
        )

    def _fail_late(self) -> None:
        if not self.ranks:
            raise ProgramError(
                f"{self}: no training step in {self.patience:g} s; add to it: {HOW}; or raise "
                f"{self.patience_key}{self._last_lines()}"
            )
        missing = min(set(range(self.first_rank.of)) - set(self.ranks))
        raise ProgramError(
            f"{self}: rank {missing} of {self.first_rank.of} took no training step in "
            f"{self.patience:g} s; each rank must call step{self._last_lines()}"
        )

    def _done(self) -> str:
        return (
            f"{self.turns} turns" if self.turns else "its first step" if self.ranks else "0 steps"
        )

    def _last_lines(self) -> str:
        lines = self.log.read_bytes().decode(errors="replace").splitlines()[-LOG_LINES:]
        return "".join(f"\n  {log_line(line)}" for line in lines)
