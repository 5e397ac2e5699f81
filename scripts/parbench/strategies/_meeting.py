"""Where the ranks of a cell find each other: through a file that the launcher names.

On one node it is the store itself, so that no port is needed that somebody else may have. On
several, the first rank serves one and publishes its address there: all of them see that file.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from parbench.errors import ParbenchError
from parbench.files import write_atomically

if TYPE_CHECKING:
    from torch.distributed import Store

    from parbench.cell import Run

LOOK_SECONDS = 0.05
# A process may meet the others more than once: every meeting has a file of its own.
_meetings = itertools.count()
_path = Path()


def anew() -> None:
    """Begin another meeting; all ranks do."""
    global _path
    _path = Path(f"{os.environ.get('PARBENCH_STORE', '')}.{next(_meetings)}")


def rank() -> int:
    """This process's number among all ranks."""
    return int(os.environ.get("RANK", "0"))


def local_rank() -> int:
    """Its number among those of its node."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def world_size() -> int:
    """How many ranks there are."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def timeout(run: Run) -> timedelta:
    """How long ranks wait for each other: longer than the launcher, which says which one hung."""
    return timedelta(seconds=run.timeout_seconds + 60)


def store(run: Run) -> Store:
    """torch's store of this run, which all ranks have joined. ParbenchError when one cannot."""
    from torch import distributed

    if world_size() == 1:  # nobody is to be met, nor need anybody have started it
        return distributed.HashStore()
    anew()
    if "PARBENCH_HEAD" not in os.environ:
        found = distributed.FileStore(str(_path), world_size())
        found.set_timeout(timeout(run))
        return found
    within = timedelta(seconds=run.connect_seconds)
    if rank() == 0:
        own = head(run)
        found = distributed.TCPStore(own, 0, None, True, within, wait_for_workers=False)
        publish(f"{own} {found.port}")
    else:
        address, port = published(run)
        reach(run, address, port)
        found = distributed.TCPStore(address, port, None, False, within)
    found.set(f"parbench/rank{rank()}", "here")
    for number in range(world_size()):
        try:
            found.wait([f"parbench/rank{number}"], within)
        except RuntimeError:
            raise ParbenchError(
                f"rank {number} has not reached the first one within {run.connect_seconds:g} s "
                f"(nodes.connect_seconds): its node did not start, or{advice()}"
            ) from None
    found.set_timeout(timeout(run))
    return found


def publish(text: str) -> None:
    """The first rank's word to the others, if there are any."""
    if world_size() == 1:
        return
    write_atomically(_path, text)


def published(run: Run) -> tuple[str, int]:
    """The address and port that the first rank has published."""
    deadline = time.monotonic() + run.connect_seconds
    while not _path.exists():
        if time.monotonic() > deadline:
            raise ParbenchError(
                f"the first rank has not said within {run.connect_seconds:g} s where it is to be "
                "found (nodes.connect_seconds); see what its node says"
            )
        time.sleep(LOOK_SECONDS)
    address, port = _path.read_text().split()
    return address, int(port)


def head(run: Run) -> str:
    """This node's own IPv4 address, where it is the first one: of the interface that is stated, or
    the one by which Slurm knows it; the loopback where there is one node."""
    named = os.environ.get("PARBENCH_HEAD")
    if named is None:
        return "127.0.0.1"
    if run.interface is None:
        try:
            address = socket.gethostbyname(named)
        except OSError as error:
            raise ParbenchError(
                f"{_node()}: its address {named} is not known to itself ({error}); {advice()}"
            ) from None
        _talk_through(_interface_of(address))
        return address
    addresses = ipv4_addresses()
    if run.interface not in addresses:
        raise ParbenchError(
            f"nodes.interface {run.interface!r} has no IPv4 address on {_node()}; {advice()}"
        )
    _talk_through(run.interface)
    return addresses[run.interface]


def reach(run: Run, address: str, port: int) -> None:
    """Prove that the first rank can be reached, and have all talk go the same way."""
    if run.interface is not None:
        head(run)  # it must be here, too
    deadline = time.monotonic() + run.connect_seconds
    while True:
        try:
            with socket.create_connection((address, port), timeout=5) as connection:
                _talk_through(run.interface or _interface_of(connection.getsockname()[0]))
                return
        except OSError as error:
            if time.monotonic() > deadline:
                raise ParbenchError(
                    f"{_node()} cannot reach the first node at {address}:{port} within "
                    f"{run.connect_seconds:g} s ({error}); {advice()}"
                ) from None
            time.sleep(LOOK_SECONDS)


def _talk_through(interface: str) -> None:
    for name in ("GLOO_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME"):
        os.environ[name] = interface


def _node() -> str:
    return f"node {os.environ.get('SLURMD_NODENAME', socket.gethostname())}"


def advice() -> str:
    """What mends it, with what there is."""
    found = ", ".join(f"{name} ({ip})" for name, ip in ipv4_addresses().items())
    return f"set nodes.interface in config.yaml to a network that all nodes share, of {found}"


def ipv4_addresses() -> dict[str, str]:
    """{interface: its first IPv4 address} of this machine."""
    import psutil

    return {
        name: next(entry.address for entry in entries if entry.family == socket.AF_INET)
        for name, entries in psutil.net_if_addrs().items()
        if any(entry.family == socket.AF_INET for entry in entries)
    }


def _interface_of(address: str) -> str:
    """The interface that has ``address``; loopback has all of 127.*."""
    for name, ip in ipv4_addresses().items():
        if ip == address or (ip.startswith("127.") and address.startswith("127.")):
            return name
    return "lo"
