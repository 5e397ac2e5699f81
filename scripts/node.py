"""One node's agent in a run of a cell over several nodes. Started by scripts/across.py, by srun.

It proves that it can reach the first node, leases this node's devices, enters the image, starts and
watches this node's ranks, and lives no longer than the launcher at the head of the run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import images
import lease
import measure
import part
from errors import ParbenchError, run_main
from files import read_json
from output import Output
from postbox import Peer, Postbox
from stopping import Stop, Stopped
from strategies import Node

LOOK_SECONDS = 0.1
BEAT_SECONDS = 1.0
SILENT_SECONDS = 30.0  # whoever said nothing for so long is gone
PORTS_TRIED = 50


class Agent:
    """The agent of node ``rank``; ``state`` is the run's folder, which all nodes see."""

    def __init__(self, state: Path, rank: int, stop: Stop):
        self.task = read_json(state / "task.json")
        self.cell = measure.read_cell(self.task["cell"])
        self.settings = self.cell["run"]
        self.rank = rank
        self.name = self.task["nodes"][rank]
        self.stop = stop
        self.folder = state / f"node{rank}"
        self.head = Peer(state / "head.json")
        self.box = Postbox(self.folder / "agent.json")
        self.listener: socket.socket | None = None
        self.interface = ""

    def run(self) -> None:
        """From the first word to the last."""
        self.box.send(phase="here", host=socket.gethostname())
        with self.stop.every(BEAT_SECONDS, self.box.send):
            image = self._image()
            self.box.send(phase="ready")
            if self.rank == 0:
                self._listen()
            else:
                self._reach()
            with self._devices() as held:
                self._wait(lambda head: head.get("step") == "train")
                if self.listener is not None:
                    self.listener.close()
                self._train(held, image)

    def _image(self) -> dict | None:
        """The cell's image, ready to be entered on this node; None for a cell of the host."""
        if self.cell["deployment"] == "host":
            return None
        settings = self.task["images"]
        return images.ensure(images.of_cell(self.cell, settings), settings)

    # -- meeting

    def _listen(self) -> None:
        """Hold the port where the nodes meet, until the ranks of this one take it."""
        own = self._own_address()
        for port in range(self.task["port"], self.task["port"] + PORTS_TRIED):
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((own, port))
            except OSError as error:
                listener.close()
                trouble = f"cannot listen at {own}:{port} ({error.strerror})"
                continue
            listener.listen(self.task["count"])
            listener.setblocking(False)
            self.listener = listener
            self.box.send(phase="met", address=own, port=port, interface=self.interface)
            return
        raise ParbenchError(f"node {self.name} {trouble}{self._advice()}")

    def _own_address(self) -> str:
        """This node's IPv4 address, of the stated interface or as Slurm knows it."""
        wanted = self.settings["interface"]
        if wanted is None:
            try:
                own = socket.gethostbyname(self.task["address"])
            except OSError as error:
                raise ParbenchError(
                    f"node {self.name}: its address {self.task['address']} is not known to itself "
                    f"({error}){self._advice()}"
                ) from None
            self.interface = interface_of(own) or "lo"
            return own
        addresses = ipv4_addresses()
        if wanted not in addresses:
            raise ParbenchError(
                f"nodes.interface {wanted!r} has no IPv4 address on node {self.name}, which has "
                f"{', '.join(f'{name} ({ip})' for name, ip in addresses.items())}; set "
                "nodes.interface to one of these in config.yaml"
            )
        self.interface = wanted
        return addresses[wanted]

    def _reach(self) -> None:
        """Prove that the first node can be reached: what its agent says there is of this run."""
        head = self._wait(lambda head: "address" in head)
        if self.settings["interface"] is not None:
            self._own_address()  # it must be here, too
        place = (head["address"], head["port"])
        deadline = time.monotonic() + self.settings["connect_seconds"]
        trouble = ""
        while time.monotonic() < deadline:
            try:
                with socket.create_connection(place, timeout=5) as connection:
                    connection.settimeout(5)
                    if connection.recv(100).decode() == self.task["token"]:
                        self.interface = self.interface or interface_of(connection.getsockname()[0])
                        self.box.send(phase="met", interface=self.interface)
                        return
                    trouble = "somebody else answers there"
            except OSError as error:
                trouble = str(error)
            time.sleep(LOOK_SECONDS)
        through = f" through {self.interface}" if self.interface else ""
        raise ParbenchError(
            f"node {self.name} cannot reach {self.task['nodes'][0]} at {place[0]}:{place[1]}"
            f"{through} within {self.settings['connect_seconds']:g} s ({trouble}){self._advice()}"
        )

    def _advice(self) -> str:
        found = ", ".join(f"{name} ({ip})" for name, ip in ipv4_addresses().items())
        return f"; set nodes.interface in config.yaml to a network that all nodes share, of {found}"

    def _greet(self) -> None:
        """Answer those who try whether they reach this node."""
        with contextlib.suppress(OSError):
            while self.listener is not None:
                connection, _ = self.listener.accept()
                with connection:
                    connection.settimeout(5)
                    connection.sendall(self.task["token"].encode())
                    connection.recv(1)  # it hangs up first: the port is then free at once

    # -- devices

    @contextlib.contextmanager
    def _devices(self) -> Iterator[lease.Lease]:
        """This node's devices.

        In turn, machine after machine, and once for all nodes that are the same machine: two cells
        that wait for each other's devices could wait for ever.
        """
        own = str(self.rank)

        def my_turn(head: dict) -> bool:
            leases = head.get("leases", {"turn": None, "given": {}})
            return leases["turn"] == self.rank or own in leases["given"]

        leases = self._wait(my_turn)["leases"]
        if leases["turn"] != self.rank:
            yield _lease(leases["given"][own], [])
            return
        with part.borrow(self.cell, len(leases["nodes"])) as held:
            given = _shares(held, leases["nodes"])
            self.box.send(phase="leased", given=given)
            yield _lease(given[own], held.descriptors)

    # -- training

    def _train(self, held: lease.Lease, image: dict | None) -> None:
        head = self.head.value
        one = part.Part(
            self.cell,
            Path(self.task["cell"]),
            Path(self.task["data"]),
            Path(self.task["out"]),
            self.task["mode"],
            self.folder,
            image,
            Node(self.rank, self.task["count"], head["address"], head["port"], self.interface),
        )
        self.box.send(phase="training", devices=held.devices)
        self.stop.raises = False
        output = Output(Path("/dev/stdout"))
        ended = part.train(one, held, output, self._asked)
        self.box.send(phase="ended", ended=asdict(ended))

    def _asked(self) -> str | None:
        """Whether the ranks of this node shall stop."""
        order = self.head.look().get("order")
        if self.head.silent_for() > SILENT_SECONDS or self.stop.insisted:
            return "end"
        if self.stop.received is not None:
            # Slurm asks the agents, and not always the head, which dies with its batch script.
            self.box.value["signal"] = self.stop.received
            return order or "stop"
        return order

    def _wait(self, condition: Callable[[dict], bool]) -> dict:
        """The head's word, as soon as ``condition`` holds of it."""
        while True:
            head = self.head.look()
            if head.get("order") == "end":
                raise Ordered
            if self.head.silent_for() > SILENT_SECONDS:
                raise ParbenchError(f"node {self.name}: the launcher is gone; ended")
            if condition(head):
                return head
            self._greet()
            time.sleep(LOOK_SECONDS)


class Ordered(Exception):
    """The head has ended the run."""


def _shares(held: lease.Lease, nodes: list[int]) -> dict[str, dict]:
    """Who of ``nodes``, which are one machine, gets which of the devices."""

    def part_of(things: list[str], index: int) -> list[str]:
        each = len(things) // len(nodes)
        return things[index * each : (index + 1) * each] if each else things

    return {
        str(node): {
            "devices": part_of(held.devices, index),
            "cores": part_of(list(held.cores), index),
            "shared": held.shared,
        }
        for index, node in enumerate(nodes)
    }


def _lease(given: dict, descriptors: list[int]) -> lease.Lease:
    return lease.Lease(given["devices"], descriptors, given["shared"], tuple(given["cores"]))


def ipv4_addresses() -> dict[str, str]:
    """{interface: its first IPv4 address} of this machine."""
    import psutil

    return {
        name: next(entry.address for entry in entries if entry.family == socket.AF_INET)
        for name, entries in psutil.net_if_addrs().items()
        if any(entry.family == socket.AF_INET for entry in entries)
    }


def interface_of(address: str) -> str:
    """The interface that has ``address``; loopback has all of 127.*."""
    for name, ip in ipv4_addresses().items():
        if ip == address or (ip.startswith("127.") and address.startswith("127.")):
            return name
    return ""


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("state", type=Path, help="the run's folder")
    arguments = parser.parse_args()
    rank = int(os.environ["SLURM_PROCID"])
    with Stop() as stop:
        agent = Agent(arguments.state, rank, stop)
        try:
            agent.run()
        except Ordered:
            return 0
        except Stopped as stopped:
            agent.box.send(phase="ended", signal=stopped.number)
            return 128 + stopped.number
        except ParbenchError as error:
            agent.box.send(phase="ended", trouble=str(error))
            return 2
    return 0


if __name__ == "__main__":
    run_main(main)
