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

    from parbench.cell import RunSettings

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


def timeout(run: RunSettings) -> timedelta:
    """How long ranks wait for each other: longer than the launcher, which says which one hung."""
    return timedelta(seconds=run.timeout_seconds + 60)


def store(run: RunSettings) -> Store:
    """torch's store of this run. ParbenchError when the first rank cannot be reached."""
    from torch import distributed

    if world_size() == 1:  # nobody is to be met, nor need anybody have started it
        return distributed.HashStore()
    anew()
    within = timedelta(seconds=run.connect_seconds)
    if "PARBENCH_HEAD" not in os.environ:
        found = distributed.FileStore(str(_path), world_size())
    elif rank() == 0:
        own = head(run)
        found = distributed.TCPStore(own, 0, None, True, within, wait_for_workers=False)
        publish(f"{own} {found.port}")
    else:
        address, port = published()
        reach(run, address, port)
        found = distributed.TCPStore(address, port, None, False, within)
    found.set_timeout(timeout(run))
    return found


def publish(text: str) -> None:
    """The first rank's word to the others, if there are any."""
    if world_size() > 1:
        write_atomically(_path, text)


def published() -> tuple[str, int]:
    """The address and port that the first rank publishes; the launcher ends a wait in vain."""
    while not _path.exists():
        time.sleep(LOOK_SECONDS)
    address, port = _path.read_text().split()
    return address, int(port)


def head(run: RunSettings) -> str:
    """This node's own IPv4 address, where it is the first one: of the interface that is stated, or
    the one by which Slurm knows it; the loopback where there is one node."""
    named = os.environ.get("PARBENCH_HEAD")
    return "127.0.0.1" if named is None else _talk_through(run, socket.gethostbyname(named))


def reach(run: RunSettings, address: str, port: int) -> None:
    """Prove that the first rank can be reached, and have all talk go the same way."""
    try:
        with socket.create_connection((address, port), timeout=run.connect_seconds) as connection:
            own = connection.getsockname()[0]
    except OSError as error:
        raise ParbenchError(
            f"{_node()} cannot reach the first node at {address}:{port} within "
            f"{run.connect_seconds:g} s ({error}); {_advice()}"
        ) from None
    _talk_through(run, own)


def _talk_through(run: RunSettings, address: str) -> str:
    """Have libraries use the interface that is stated, or else the one that has ``address``.

    Returns the interface's address. ParbenchError when it has none.
    """
    found = _interfaces()
    interface = run.interface
    if interface is None:  # the loopback has all of 127.*
        interface = next((name for name, ips in found.items() if address in ips), "lo")
    elif interface in found:
        address = found[interface][0]
    else:
        raise ParbenchError(
            f"nodes.interface {interface!r} has no IPv4 address on {_node()}; {_advice()}"
        )
    for name in ("GLOO_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE", "NCCL_SOCKET_IFNAME"):
        os.environ[name] = interface
    return address


def _node() -> str:
    return f"node {os.environ.get('SLURMD_NODENAME', socket.gethostname())}"


def _advice() -> str:
    """What mends it, with what there is."""
    found = ", ".join(f"{name} ({ips[0]})" for name, ips in _interfaces().items())
    return f"set nodes.interface in config.yaml to a network that all nodes share, of {found}"


def _interfaces() -> dict[str, list[str]]:
    """The IPv4 addresses of this machine, by interface."""
    import psutil

    found = {
        name: [entry.address for entry in entries if entry.family == socket.AF_INET]
        for name, entries in psutil.net_if_addrs().items()
    }
    return {name: addresses for name, addresses in found.items() if addresses}
