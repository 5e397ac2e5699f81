"""How the ranks of a cell find each other: through a file that the launcher names.

On one node that file is torch's store, so no port is needed, which another program might occupy. On
several nodes, which all see the file, the first rank serves a store and writes its address there.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parbench.errors import ParbenchError
from parbench.files import write_atomically

if TYPE_CHECKING:
    # torch documents Store but does not export it.
    from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

    from parbench.cell import RunSettings

POLL_SECONDS = 0.05
# A process may meet the others more than once: each meeting has its own file.
_rendezvous_numbers = itertools.count()
_path = Path()


def next_rendezvous() -> None:
    """Begin a new meeting, with its own file; all ranks call this."""
    global _path
    _path = Path(f"{os.environ.get('PARBENCH_STORE', '')}.{next(_rendezvous_numbers)}")


def rank() -> int:
    """Return this process's rank."""
    return int(os.environ.get("RANK", "0"))


def local_rank() -> int:
    """Return this process's rank on its node."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def world_size() -> int:
    """Return the number of training processes."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def timeout(run: RunSettings) -> timedelta:
    """Return how long ranks wait for each other: longer than the launcher, which names the rank
    that hangs."""
    return timedelta(seconds=run.timeout_seconds + 60)


def store(run: RunSettings) -> Store:
    """Return torch's store of this run. Raises ParbenchError if the first rank is unreachable."""
    from torch import distributed

    stores: Any = distributed  # torch documents its stores but does not export them

    if world_size() == 1:  # no other rank; works without the launcher, too
        return stores.HashStore()
    next_rendezvous()
    connect_timeout = timedelta(seconds=run.connect_seconds)
    if "PARBENCH_HEAD" not in os.environ:
        torch_store = stores.FileStore(str(_path), world_size())
    elif rank() == 0:
        own_address = head(run)
        torch_store = stores.TCPStore(
            own_address, 0, None, True, connect_timeout, wait_for_workers=False
        )
        publish(f"{own_address} {torch_store.port}")
    else:
        address, port = published()
        reach(run, address, port)
        torch_store = stores.TCPStore(address, port, None, False, connect_timeout)
    torch_store.set_timeout(timeout(run))
    return torch_store


def publish(text: str) -> None:
    """Write the first rank's ``text`` to the file that the other ranks read, if there are any."""
    if world_size() > 1:
        write_atomically(_path, text)


def published() -> tuple[str, int]:
    """Wait for the first rank's address and port and return them; the launcher limits the wait."""
    while not _path.exists():
        time.sleep(POLL_SECONDS)
    address, port = _path.read_text().split()
    return address, int(port)


def head(run: RunSettings) -> str:
    """Return the IPv4 address of this node, which is the first one.

    It is the address of the configured interface, else of the node's name in Slurm; the loopback
    address if there is only one node. Raises ParbenchError if the interface has no address.
    """
    host = os.environ.get("PARBENCH_HEAD")
    return "127.0.0.1" if host is None else _talk_through(run, socket.gethostbyname(host))


def reach(run: RunSettings, address: str, port: int) -> None:
    """Check that the first rank can be reached, and route all communication through that interface.

    Raises ParbenchError if it cannot.
    """
    try:
        with socket.create_connection((address, port), timeout=run.connect_seconds) as connection:
            own_address = connection.getsockname()[0]
    except OSError as error:
        raise ParbenchError(
            f"{_node()} cannot reach the first node at {address}:{port} within "
            f"{run.connect_seconds:g} s ({error}); {_advice()}"
        ) from None
    _talk_through(run, own_address)


def _talk_through(run: RunSettings, address: str) -> str:
    """Make libraries use the configured interface, or else the one that has ``address``.

    Returns the interface's address. Raises ParbenchError if it has none.
    """
    interfaces = _interfaces()
    interface = run.interface
    if interface is None:  # the loopback serves all of 127.*
        interface = next((name for name, ips in interfaces.items() if address in ips), "lo")
    elif interface in interfaces:
        address = interfaces[interface][0]
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
    """Return advice on the setting, listing the interfaces of this node."""
    listing = ", ".join(f"{name} ({ips[0]})" for name, ips in _interfaces().items())
    return f"set nodes.interface in config.yaml to a network that all nodes share, one of {listing}"


def _interfaces() -> dict[str, list[str]]:
    """Return the IPv4 addresses of this machine, by interface."""
    import psutil

    interfaces = {
        name: [entry.address for entry in entries if entry.family == socket.AF_INET]
        for name, entries in psutil.net_if_addrs().items()
    }
    return {name: addresses for name, addresses in interfaces.items() if addresses}
