"""The part of a run that stands on one node: its processes, from their start to their end."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import apptainer
import children
import lease
import machine
import measure
import strategies
from command import command
from errors import ParbenchError
from files import read_json
from output import Output
from processes import GRACE_SECONDS, end_all, end_some, oom_kills
from strategies import Node
from watch import Failure, Rank, Watch, find_failure

LOOK_SECONDS = 0.2
# Seconds that a failed run has to end by itself. A rank that raised may hang in its libraries'
# teardown, and torchrun waits half a minute for ranks that do not listen.
SETTLE_SECONDS = 4.0
SPEAK_SECONDS = 2.0  # for their starter to say who failed, once all ranks have ended
LAST_LINES = 40  # of the output: where a starter tells of an end


@dataclass
class Part:
    """One node's part of one run of one cell. ``state``: its own folder (PARBENCH_STATE)."""

    cell: dict
    cell_path: Path
    data: Path
    out: Path
    mode: str
    state: Path
    image: dict | None = None
    node: Node | None = None


@dataclass
class Ended:
    """How it ended.

    ``returncode`` is of the program that started the ranks; ``hung`` a sentence when one hung;
    ``kernel_killed``: the kernel has killed somebody for lack of memory; ``stopped``: where they
    stopped when they were asked to; ``errors``: the ranks' last words.
    """

    returncode: int
    ranks: list[Rank]
    errors: dict[int, tuple[float, dict]] = field(default_factory=dict)
    hung: str | None = None
    kernel_killed: bool = False
    stopped: dict | None = None

    def failed(self) -> bool:
        """Whether anything went wrong."""
        return bool(
            self.returncode or self.hung or self.errors or any(rank.code for rank in self.ranks)
        )

    def failure(self, text: str) -> Failure | None:
        """What went wrong, if anything did; ``text`` is the output."""
        if self.hung is not None:
            return Failure(self.hung)
        if not self.failed():
            return None
        found = find_failure(self.ranks, self.errors, self.returncode, text)
        if found.killed and self.kernel_killed:
            return Failure(f"{found.sentence} by the kernel, for lack of memory", True, True)
        return found


def borrow(cell: dict, times: int = 1) -> AbstractContextManager[lease.Lease]:
    """Lease the devices of a node of ``cell``, ``times`` where as many nodes are one machine."""
    hardware = cell["hardware"]
    if hardware["device"] == "cpu":
        return lease.cores(machine.cores_of(hardware) * times, cell["id"])
    return lease.gpus_with_cores(hardware["devices"] * times, hardware["gpu_model"], cell["id"])


def train(part: Part, held: lease.Lease, output: Output, asked: Callable[[], str | None]) -> Ended:
    """Run the processes to their end, whatever that is; none of them lives afterwards.

    ``asked`` says, whenever it is called, whether they shall go on (None), write a checkpoint and
    stop ("stop"), or end at once ("end").
    """
    # Of its own: a node's /tmp is faster than the file system that nodes share.
    temporary = tempfile.mkdtemp(prefix="parbench-") if part.node else str(part.state)
    if held.shared:
        os.environ["PARBENCH_OVERSUBSCRIBED"] = "1"  # for metrics.json, whoever writes it
    state = str(part.state)
    kills = oom_kills()

    def clean() -> None:
        """What the guard does when this process is killed outright."""
        end_all(state, grace=1.0)
        shutil.rmtree(temporary, ignore_errors=True)

    with children.guarded(clean):
        try:
            words, environment = _command(part, held, Path(temporary))
            process = children.start(words, environment, held.descriptors, shielded=True)
            ended = _attend(part, process, output, asked)
            ended.kernel_killed = oom_kills() > kills
            return ended
        finally:
            left = end_all(state, GRACE_SECONDS)
            if left:
                print(f"error: processes {left} do not end, not even by SIGKILL", file=sys.stderr)
            shutil.rmtree(temporary, ignore_errors=True)


def _command(part: Part, held: lease.Lease, temporary: Path) -> tuple[list[str], dict[str, str]]:
    """The command of this run, and its whole environment."""
    state = str(part.state)
    variables = {"PARBENCH_STATE": state, "PARBENCH_LAUNCHED": repr(time.time())}
    variables |= {"PARBENCH_PROGRESS": part.mode} | _terminal_size(part.mode)
    if held.shared:
        variables["PARBENCH_OVERSUBSCRIBED"] = "1"
    if held.cores:
        variables["PARBENCH_CORES"] = ",".join(held.cores)
    variables["PARBENCH_HOST"] = json.dumps(measure.host(part.image))
    words, environment = command(
        part.cell,
        cell_path=part.cell_path,
        data=part.data,
        out=part.out,
        devices=held.devices,
        image=part.image and Path(part.image["path"]),
        variables=variables,
        state=part.state,
        temporary=temporary,
        node=part.node,
    )
    outside = os.environ if part.image is None else apptainer.clean_environment()
    # The state also outside of an image, where programs must be found to be ended.
    return words, {**outside, **environment, "PARBENCH_STATE": state}


def _terminal_size(mode: str) -> dict[str, str]:
    """The bar cannot ask the terminal: it draws into a pipe."""
    if mode != "bar":
        return {}
    size = shutil.get_terminal_size()
    return {"COLUMNS": str(size.columns), "LINES": str(size.lines)}


def _attend(
    part: Part, process: subprocess.Popen, output: Output, asked: Callable[[], str | None]
) -> Ended:
    """Follow the processes until they end, hang, fail, or are asked to end; then end them."""
    assert process.stdout is not None
    output.say(f"$ {shlex.join(process.args)}")
    output.follow(process.stdout.fileno())
    selector = selectors.DefaultSelector()
    try:
        selector.register(process.stdout, selectors.EVENT_READ, "output")
        count = strategies.load(part.cell["strategy"]["name"]).processes(part.cell)
        first = part.node.rank * count if part.node else 0
        watch = Watch(part.state, range(first, first + count), selector)
        hung = _follow(part, process, watch, output, selector, asked)
        watch.look(())  # before the rest is ended: what dies now died by itself
        if watch.failed_for() is not None:
            _let_starter_speak(process, watch, output)
        by_itself = process.poll()  # a starter that is ended says nothing of its ranks
        end_all(str(part.state), GRACE_SECONDS)
        process.wait()
        output.read()
        watch.conclude(by_itself or 0, "\n".join(output.lines))
        return Ended(
            process.returncode, watch.ranks, watch.errors(), hung, stopped=stopped_at(part.state)
        )
    finally:
        for key in list(selector.get_map().values()):
            if key.data == "rank":
                os.close(key.fd)
        selector.close()
        process.stdout.close()


def _follow(
    part: Part,
    process: subprocess.Popen,
    watch: Watch,
    output: Output,
    selector: selectors.BaseSelector,
    asked: Callable[[], str | None],
) -> str | None:
    """Wait until the process ends, a rank has failed, or it is time to end them.

    Returns a sentence when a rank hangs.
    """
    settings = part.cell["run"]
    deadline: float | None = None  # of ranks that were asked to stop
    while process.poll() is None:
        for key, _ in selector.select(LOOK_SECONDS):
            if key.data == "output":
                if not output.read():
                    selector.unregister(key.fileobj)
            else:
                selector.unregister(key.fileobj)
                os.close(key.fd)
        watch.look(list(output.lines)[-LAST_LINES:])
        wish = asked()
        if wish == "stop" and deadline is None:
            if not watch.can_stop():
                return None
            (part.state / "stop").touch()
            deadline = time.monotonic() + settings["grace_seconds"]
        if wish == "end" or (deadline is not None and time.monotonic() > deadline):
            return None
        failed_for = watch.failed_for()
        if failed_for is None:
            hung = watch.hung(settings["timeout_seconds"])
            if hung is not None:
                return hung
        elif failed_for > SETTLE_SECONDS:
            return None
    return None


def _let_starter_speak(process: subprocess.Popen, watch: Watch, output: Output) -> None:
    """End the ranks of a failed run first: torchrun tells of one that died before its first sign
    of life, once the others have ended."""
    end_some([rank.pid for rank in watch.ranks if rank.pid and rank.ended is None])
    deadline = time.monotonic() + SPEAK_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        watch.look(())  # when they ended: after the one that failed
        output.read()
        time.sleep(LOOK_SECONDS / 4)
    watch.look(())


def stopped_at(state: Path) -> dict | None:
    """{epoch, step} where the ranks stopped, their checkpoint written; None where they did not."""
    with contextlib.suppress(ParbenchError):
        return read_json(state / "stopped.json")
    return None
