"""A Slurm cluster on this machine, for tests; `make slurm` runs one until Ctrl-C.

`make slurm ARGS=16` has nodes n1 to n16 instead of two.

Everything lies below one folder: configuration, key, sockets, logs, state. It uses free ports on
the loopback interface, so it never touches the machine's own Slurm, and several clusters may run
side by side: PATH decides which one a command talks to. Root or any other user may run it; all
jobs then run as that user.

Nodes n1 and n2 (or more) pretend to have 2 cores each; where the machine has fewer, cells wait for
a free core. Nodes g1 and g2 pretend to have 16 cores and two A100, so that jobs can request GPUs;
jobs there find none. Partitions:

main   the default: n1, n2, ...
low    the same; its jobs are requeued when a job of `high` wants their cores
high   the same
short  the same; no job runs longer than a minute
gpu    g1, g2

A test may ask for what some sites have: accounting with limits, other settings of Slurm.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from require import which

PLAIN = "CPUs=2 Feature=plain"
GPU = "CPUs=16 Feature=a100 Gres=gpu:{gpu}:2"
START_SECONDS = 300  # on a busy machine
END_SECONDS = 30

# Slurm's commands, wrapped in the cluster's `bin` so that they find it. Setting SLURM_CONF is not
# enough: in a job, Snakemake's plugin drops all such variables before it calls srun.
COMMANDS = (
    "sacct", "sacctmgr", "salloc", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun",
    "sshare",
)  # fmt: skip
COMMAND = """\
#!/bin/sh
export SLURM_CONF={conf}
exec {folder}/{name} "$@"
"""

# Below the ports that the kernel gives to outgoing connections and those that cells choose.
PORTS = range(10000, 28000)

CONF = """\
ClusterName=parbench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
# A requeued job starts no sooner than its old credential ends; by default 120 s.
AuthInfo=socket={folder}/munge.socket,cred_expire=10
# All is on one host: nobody else is to reach its ports.
CommunicationParameters=NoCtldInAddrAny

StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/%n
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
SlurmctldDebug=info
SlurmdDebug=info

# No cgroups and no accounting: neither is there for every user of every machine.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/completed.txt
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=1000

# What takes minutes on a site takes seconds here.
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0,bf_interval=2
SlurmdTimeout=20
KillWait=5
UnkillableStepTimeout=30
ReturnToService=2
MinJobAge=300
EnforcePartLimits=ALL
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE

GresTypes=gpu
# The nodes have what is said here, whatever this machine has.
SlurmdParameters=config_overrides
{nodes}
PartitionName=DEFAULT DefaultTime=10 MaxTime=1-0 PreemptMode=OFF State=UP
PartitionName=main Nodes=n[1-{last}] Default=YES
PartitionName=low Nodes=n[1-{last}] PreemptMode=REQUEUE GraceTime=20
PartitionName=high Nodes=n[1-{last}] PriorityTier=2
PartitionName=short Nodes=n[1-{last}] DefaultTime=1 MaxTime=1
PartitionName=gpu Nodes=g[1-2]
"""

# Slurm requires one device file per GPU but never opens it.
GRES = """\
NodeName=g[1-2] Name=gpu Type={gpu} File=/dev/null
NodeName=g[1-2] Name=gpu Type={gpu} File=/dev/zero
"""

# Accounting as sites have it: a user without an account, or asking for another's QoS, is refused.
ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={folder}/munge.socket
AccountingStorageEnforce=associations,limits,qos
JobAcctGatherType=jobacct_gather/linux
"""
DATABASE = """\
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
PidFile={folder}/slurmdbd.pid
LogFile={folder}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm
"""


class Cluster:
    """A Slurm cluster in its own temporary folder; it runs between ``up`` and ``down``.

    ``settings``: lines of slurm.conf that count instead of those above; ``files``: more files
    beside it, by name (in both, ``{folder}`` is the cluster's); ``gpu``: the type of the GPUs.
    ``accounts``: arguments of sacctmgr, a line each, for a cluster with accounting; None: without.
    ``parent``: the folder to be in, by default that for temporary files.
    """

    def __init__(
        self,
        nodes: int = 2,
        *,
        settings: str = "",
        files: Mapping[str, str] | None = None,
        gpu: str = "a100",
        accounts: str | None = None,
        parent: str | None = None,
    ) -> None:
        plain = {f"n{number}": PLAIN for number in range(1, nodes + 1)}
        self.nodes = plain | dict.fromkeys(("g1", "g2"), GPU.format(gpu=gpu))
        self._settings, self._accounts = settings, accounts
        self._files = {"gres.conf": GRES.format(gpu=gpu), **(files or {})}
        # A socket's path has at most 107 characters: pytest's temporary folders are too deep.
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-", dir=parent))
        self.folder.chmod(0o711)  # other users submit, too
        self.conf = self.folder / "slurm.conf"
        self.bin = self.folder / "bin"
        self.completed = self.folder / "completed.txt"  # Slurm writes a line per ended job
        self._daemons: dict[str, subprocess.Popen] = {}

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process whose Slurm commands talk to this cluster."""
        return {**os.environ, "PATH": f"{self.bin}:{os.environ.get('PATH', '')}"}

    def up(self) -> None:
        """Start the daemons, and wait until the nodes take jobs."""
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        self._write_files()
        files = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munged.pid"}
        files |= {"log-file": "munged.log", "seed-file": "munged.seed"}
        options = [f"--{option}={self.folder / file}" for option, file in files.items()]
        # --force: munged would reject parent folders that others own; the key is this user's alone.
        self._start("munged", "--foreground", "--force", *options)
        self._wait_for((self.folder / "munge.socket").exists)  # the other daemons exit without it
        if self._accounts is not None:
            self._start_accounting(self._accounts)
        self.start("slurmctld", *self.nodes)
        self._wait_for(self._is_ready)

    def _write_files(self) -> None:
        """Write what the daemons and their users read."""
        host, user = socket.gethostname().split(".")[0], getpass.getuser()
        database, port, *ports = free_ports(2 + len(self.nodes))
        place = f"NodeHostname={host} NodeAddr=127.0.0.1 RealMemory=64000"
        nodes = "\n".join(
            f"NodeName={name} {place} Port={number} {has}"
            for (name, has), number in zip(self.nodes.items(), ports, strict=True)
        )
        settings = {"folder": self.folder, "host": host, "user": user, "port": port}
        settings |= {"nodes": nodes, "last": len(self.nodes) - 2}
        conf, files = CONF.format(**settings), dict(self._files)
        if self._accounts is not None:
            conf += ACCOUNTING.format(folder=self.folder, port=database)
            files["slurmdbd.conf"] = DATABASE.format(**settings | {"port": database})
        for name, text in (files | {"slurm.conf": conf + self._settings}).items():
            path = self.folder / name
            path.touch(mode=0o600 if name == "slurmdbd.conf" else 0o644)  # slurmdbd insists
            path.write_text(text.replace("{folder}", str(self.folder)))
        self.bin.mkdir()
        # The daemons' own version; PATH may lead to another such cluster's wrappers.
        theirs = Path(program("slurmctld")).parent.parent / "bin"
        for name in COMMANDS:
            command = self.bin / name
            command.write_text(COMMAND.format(conf=self.conf, folder=theirs, name=name))
            command.chmod(0o755)

    def _start_accounting(self, accounts: str) -> None:
        """Start MariaDB, with a socket that only this user reaches, and slurmdbd; add accounts."""
        place = self.folder / "mariadb"
        place.mkdir(mode=0o700)
        options = ["--no-defaults", f"--datadir={place}", f"--user={getpass.getuser()}"]
        options += ["--innodb-flush-log-at-trx-commit=0", "--innodb-log-file-size=8M"]
        # Without its own tables it has no procedures. Debian 12 has them in mysql, 13 in mariadb.
        (own,) = Path("/usr/share").glob("m[ay]*/mysql_system_tables.sql")
        tables = f"create database mysql;\nuse mysql;\n{own.read_text()}"
        made = [program("mariadbd"), *options, "--bootstrap"]
        subprocess.run(made, input=tables, text=True, capture_output=True, check=True)
        options += [f"--socket={place}/socket", "--skip-networking", "--skip-grant-tables"]
        self._start("mariadbd", *options, f"--pid-file={place}/pid")
        self._wait_for((place / "socket").exists)
        self._start("slurmdbd", "-D", MYSQL_UNIX_PORT=f"{place}/socket")
        self._wait_for(
            lambda: self.answers("sacctmgr", "--immediate", "add", "cluster", "parbench")
        )
        # Before the controller starts, which reads them then.
        for line in accounts.splitlines():
            self.run("sacctmgr", "--immediate", *line.split())

    def start(self, *names: str) -> None:
        """Start the controller (``slurmctld``) and nodes, by name."""
        for name in names:
            node = () if name == "slurmctld" else ("-N", name)
            self._start("slurmd" if node else name, "-D", *node, key=name)

    def stop(self, name: str) -> None:
        """End a daemon that ``start`` has started; jobs go on."""
        daemon = self._daemons.pop(name)
        daemon.terminate()
        daemon.wait()

    def _start(self, name: str, *options: str, key: str | None = None, **variables: str) -> None:
        environment = {**os.environ, "SLURM_CONF": str(self.conf), **variables}
        with open(self.folder / "said.txt", "ab") as said:
            self._daemons[key or name] = subprocess.Popen(
                [program(name), *options],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
                env=environment,
            )

    def answers(self, *words: str) -> bool:
        """Return whether a Slurm command succeeds."""
        return subprocess.run(words, capture_output=True, env=self.environment).returncode == 0

    def _is_ready(self) -> bool:
        states = ["sinfo", "--noheader", "--Node", "--format=%N %t"]
        done = subprocess.run(states, capture_output=True, text=True, env=self.environment)
        return {f"{name} idle" for name in self.nodes} <= set(
            map(str.strip, done.stdout.splitlines())
        )

    def _wait_for(self, there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not there():
            if time.monotonic() > deadline or any(
                daemon.poll() for daemon in self._daemons.values()
            ):
                said = (self.folder / "said.txt").read_text()
                raise SystemExit(f"error: Slurm does not start; logs: {self.folder}/*.log\n{said}")
            time.sleep(0.1)

    def down(self) -> None:
        """End all jobs and daemons, and delete the folder."""
        deadline = time.monotonic() + END_SECONDS
        with contextlib.suppress(subprocess.CalledProcessError):  # it never started
            self.run("scancel", "--me")
            while self.run("squeue", "--noheader") and time.monotonic() < deadline:
                time.sleep(0.2)
        for daemon in self._daemons.values():
            daemon.kill()
            daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *words: str) -> str:
        """Run a Slurm command and return its stdout."""
        options = {"capture_output": True, "text": True, "env": self.environment}
        return subprocess.run(words, check=True, **options).stdout


def program(name: str) -> str:
    """Return the path of a daemon's program; exit with a message if there is none."""
    found = which(name)
    if found is None:
        raise SystemExit(f"error: no {name} here; Debian and Ubuntu: sudo make system")
    return found


def free_ports(count: int) -> list[int]:
    """Return ``count`` ports, sorted, that nobody listens on."""
    found: set[int] = set()
    while len(found) < count:
        port = random.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            found.add(port)
    return sorted(found)


def main() -> None:
    """Run a cluster until Ctrl-C."""
    cluster = Cluster(*map(int, sys.argv[1:]))
    try:
        cluster.up()
        print(f"export PATH={cluster.bin}:$PATH", flush=True)
        print("Ctrl-C ends the cluster and all of its jobs.", file=sys.stderr)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    finally:
        cluster.down()


if __name__ == "__main__":
    main()
