"""A run of a cell over several nodes, seen from its head: the job's first node.

Slurm starts an agent (scripts/node.py) on each node of the job; here they are told what to do, and
what they say becomes one end of the whole run. Slurm's srun stands outside of the image.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import children
import job
from files import write_json
from node import BEAT_SECONDS, SILENT_SECONDS
from output import Output
from part import LOOK_SECONDS, SETTLE_SECONDS, Ended, Part, stopped_at
from postbox import Peer, Postbox
from processes import GRACE_SECONDS, end_all
from stopping import Stop, Stopped
from watch import Rank, last_words

# An agent ends its ranks, asked first and then killed, and says how it went.
END_SECONDS = 2 * GRACE_SECONDS + 10


class Gone(Exception):
    """The run ended, or must end, before its time; says why."""


class Head:
    """The head of one run. ``part.state`` is the run's folder, which all nodes see."""

    def __init__(self, part: Part, own: job.Job, output: Output, stop: Stop, settings: dict):
        self.part, self.own, self.output, self.stop = part, own, output, stop
        self.names = list(own.nodes)
        self.connect_seconds = part.cell["run"]["connect_seconds"]
        state = part.state
        for old in state.parent.glob("state-*"):  # whose head is dead: this cell is claimed
            shutil.rmtree(old, ignore_errors=True)
        for number in range(len(self.names)):
            (state / f"node{number}").mkdir(parents=True)
            (state / f"node{number}" / "agent.json").touch()
        (state / "head.json").touch()
        write_json(
            state / "task.json",
            {
                "cell": str(part.cell_path),
                "data": str(part.data),
                "out": str(part.out),
                "mode": "lines",  # srun's tasks have no terminal
                "images": settings,
                "nodes": self.names,
                "count": len(self.names),
                "address": job.address(self.names[0]),
                "port": own.port,
                "token": secrets.token_hex(16),
            },
        )
        self.box = Postbox(state / "head.json")
        self.peers = [
            Peer(state / f"node{number}" / "agent.json") for number in range(len(self.names))
        ]
        self.process: subprocess.Popen | None = None

    def run(self) -> Ended:
        """The whole run. Stopped when a signal comes before the ranks train."""
        state = str(self.part.state)
        self.box.send()

        def clean() -> None:
            """What the guard does when this process is killed outright."""
            self.box.send(order="end")
            time.sleep(END_SECONDS)
            end_all(state, grace=1.0)

        self.stop.raises = False
        with children.guarded(clean), self.stop.every(BEAT_SECONDS, self.box.send):
            try:
                self._start()
                self._meet()
                self._lease()
                self.box.send(step="train")
                return self._attend()
            except Gone as gone:
                return Ended(1, [], hung=str(gone), stopped=stopped_at(self.part.state / "node0"))
            finally:
                self._end()

    def _start(self) -> None:
        count = len(self.names)
        words = ["srun", f"--jobid={self.own.number}", f"--nodes={count}", f"--ntasks={count}"]
        words += ["--ntasks-per-node=1", f"--cpus-per-task={self.own.cpus_per_task}"]
        # All that the job has, also beside its batch step; no MPI. Nobody but the head decides
        # that one agent's end is everybody's.
        words += ["--mem=0", "--overlap", "--mpi=none", "--kill-on-bad-exit=0", "--wait=0"]
        words += ["--input=none"]
        words += [sys.executable, str(Path(__file__).with_name("node.py")), str(self.part.state)]
        self.output.say(f"$ {' '.join(words)}")
        environment = {**os.environ, "PARBENCH_STATE": str(self.part.state)}
        self.process = children.start(words, environment, [], shielded=True)
        assert self.process.stdout is not None
        self.output.follow(self.process.stdout.fileno())
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)

    # -- before training

    def _meet(self) -> None:
        """Until every node is there and has reached the first one."""
        for number in self._wait_all(lambda value: "host" in value, self.connect_seconds):
            raise Gone(
                f"node {self.names[number]} did not start within {self.connect_seconds:g} s "
                "(nodes.connect_seconds); `scontrol show node` says what is wrong with it"
            )
        self._wait_all(lambda value: value.get("phase") != "here", None)  # images
        self._wait_all(lambda value: "address" in value, None, [0])
        first = self.peers[0].value
        self.box.send(address=first["address"], port=first["port"])
        # Those who cannot reach it say so themselves, a little before.
        seconds = self.connect_seconds + 2 * BEAT_SECONDS + 10
        for number in self._wait_all(lambda value: value.get("phase") == "met", seconds):
            raise Gone(f"node {self.names[number]} said nothing for {seconds:g} s; see its slurmd")

    def _lease(self) -> None:
        """Until every node has its devices: machine after machine, see scripts/node.py."""
        machines: dict[str, list[int]] = {}
        for number, peer in enumerate(self.peers):
            machines.setdefault(peer.value["host"], []).append(number)
        given: dict[str, dict] = {}
        for host in sorted(machines):
            nodes = machines[host]
            self.box.send(leases={"turn": nodes[0], "nodes": nodes, "given": given})
            self._wait_all(lambda value: "given" in value, None, [nodes[0]])
            given |= self.peers[nodes[0]].value["given"]
        self.box.send(leases={"turn": None, "nodes": [], "given": given})

    def _wait_all(
        self,
        condition: Callable[[dict], bool],
        seconds: float | None,
        nodes: list[int] | None = None,
    ) -> list[int]:
        """Wait until ``condition`` holds of all; those of whom it does not after ``seconds``."""
        deadline = time.monotonic() + (seconds or 0.0)
        wanted = range(len(self.peers)) if nodes is None else nodes
        while missing := [n for n in wanted if not condition(self.peers[n].look())]:
            if seconds is not None and time.monotonic() > deadline:
                return missing
            self._look()
            if self.stop.received is not None:
                raise Stopped(self.stop.received)
        return []

    def _look(self) -> None:
        """Pass output on for a moment; Gone when the agents cannot go on."""
        assert self.process is not None
        for key, _ in self.selector.select(LOOK_SECONDS):
            if not self.output.read():
                self.selector.unregister(key.fileobj)
                break
        if not self.selector.get_map():
            time.sleep(LOOK_SECONDS)
        for number, peer in enumerate(self.peers):
            value = peer.look()
            if "trouble" in value:
                raise Gone(value["trouble"])
            if value.get("signal") is not None:
                self.stop.ask(value["signal"])
            if value and value.get("phase") != "ended" and peer.silent_for() > SILENT_SECONDS:
                raise Gone(
                    f"node {self.names[number]} is gone: its agent has been silent for "
                    f"{SILENT_SECONDS:g} s"
                )
        if self.process.poll() is not None:
            self.output.read()
            for peer in self.peers:
                if "trouble" in peer.look():
                    raise Gone(peer.value["trouble"])
            if not all(peer.value.get("ended") for peer in self.peers):
                last = " / ".join(list(self.output.lines)[-3:])
                raise Gone(f"srun ended with status {self.process.returncode}: {last}")

    # -- training

    def _attend(self) -> Ended:
        """Until all nodes have said how their part ended."""
        failed: float | None = None
        while True:
            self._look()
            ends = [peer.value.get("ended") for peer in self.peers]
            if all(ends):
                return self._merged(ends)
            if self.stop.received is not None:
                self.box.value["order"] = "end" if self.stop.insisted else "stop"
            if failed is None and any(end and _went_wrong(end) for end in ends):
                failed = time.monotonic()
            if failed is not None and time.monotonic() - failed > SETTLE_SECONDS:
                self.box.value["order"] = "end"
                if time.monotonic() - failed > SETTLE_SECONDS + END_SECONDS:
                    return self._merged([end for end in ends if end])

    def _merged(self, ends: list[dict]) -> Ended:
        """One end of all parts."""
        ranks = [Rank(**told) for end in ends for told in end["ranks"]]
        errors: dict = {}
        for number in range(len(self.peers)):
            errors |= last_words(self.part.state / f"node{number}", [rank.number for rank in ranks])
        hung = [end["hung"] for end in ends if end["hung"]]
        return Ended(
            next((end["returncode"] for end in ends if end["returncode"]), 0),
            sorted(ranks, key=lambda rank: rank.number),
            errors,
            hung[0] if hung else None,
            any(end["kernel_killed"] for end in ends),
            stopped_at(self.part.state / "node0"),
        )

    def _end(self) -> None:
        """No agent lives afterwards, as far as it can be reached."""
        self.box.send(order="end")
        if self.process is None:
            return
        deadline = time.monotonic() + END_SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            self.output.read()
            time.sleep(LOOK_SECONDS)
        end_all(str(self.part.state), grace=1.0)
        with contextlib.suppress(OSError):
            self.output.read()
        self.selector.close()
        assert self.process.stdout is not None
        self.process.wait()
        self.process.stdout.close()
        shutil.rmtree(self.part.state, ignore_errors=True)


def _went_wrong(end: dict) -> bool:
    return bool(end["returncode"] or end["hung"] or any(rank["code"] for rank in end["ranks"]))
