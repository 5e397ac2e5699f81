"""Start Horovod's ranks of one node: no ssh, no MPI. Runs where the ranks run.

What horovodrun does for one machine, for one of several: the first node serves the rendezvous over
which Gloo's ranks find each other, and every rank gets its place in variables.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import threading
import time

from errors import ParbenchError, run_main

LOOK_SECONDS = 0.1
CONNECT_SECONDS = 60.0


def serve(arguments: argparse.Namespace) -> int:
    """The rendezvous, until this process ends; its port."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    # As horovod's RendezvousServer, which takes any port, where every node must know it.
    server = RendezvousHTTPServer((arguments.address, arguments.port), RendezvousHandler, 0)
    hosts = ",".join(f"node{number}:{arguments.processes}" for number in range(arguments.nodes))
    server.init(get_host_assignments(parse_hosts(hosts), arguments.nodes * arguments.processes))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def wait_for_server(address: str, port: int) -> None:
    """Until the first node serves the rendezvous."""
    deadline = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            socket.create_connection((address, port), timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise ParbenchError(
                    f"the first node serves no rendezvous at {address}:{port} ({error})"
                ) from None
            time.sleep(LOOK_SECONDS)


def place(arguments: argparse.Namespace, local_rank: int) -> dict[str, str]:
    """The variables that tell a rank its place, as horovodrun sets them."""
    # One node talks over its loopback, also when nobody says so.
    interface = {"HOROVOD_GLOO_IFACE": "lo"} if arguments.nodes == 1 else {}
    return {
        **interface,
        "HOROVOD_RANK": str(arguments.node * arguments.processes + local_rank),
        "HOROVOD_SIZE": str(arguments.nodes * arguments.processes),
        "HOROVOD_LOCAL_RANK": str(local_rank),
        "HOROVOD_LOCAL_SIZE": str(arguments.processes),
        "HOROVOD_CROSS_RANK": str(arguments.node),
        "HOROVOD_CROSS_SIZE": str(arguments.nodes),
        "HOROVOD_HOSTNAME": f"node{arguments.node}",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": arguments.address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(arguments.port),
    }


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--node", type=int, default=0, help="which of them, from 0")
    parser.add_argument("--processes", type=int, required=True, help="ranks on each node")
    parser.add_argument("--address", default="127.0.0.1", help="of the first node")
    parser.add_argument("--port", type=int, default=0, help="there; default: any, of one node")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if arguments.node == 0:
        arguments.port = serve(arguments)
    else:
        wait_for_server(arguments.address, arguments.port)
    command = arguments.command[1:] if arguments.command[0] == "--" else arguments.command
    ranks = [
        subprocess.Popen(command, env={**os.environ, **place(arguments, local_rank)})
        for local_rank in range(arguments.processes)
    ]
    first = arguments.node * arguments.processes
    while (codes := [rank.poll() for rank in ranks]).count(0) < len(ranks):
        failed = {first + number: code for number, code in enumerate(codes) if code}
        for number, code in failed.items():  # scripts/watch.py reads it
            print(f"Process {number} exit with status code {code if code > 0 else 128 - code}.")
        if failed:
            return 1  # the launcher ends the others
        time.sleep(LOOK_SECONDS)
    return 0


if __name__ == "__main__":
    run_main(main)
