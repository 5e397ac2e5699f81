"""A Slurm cluster on this machine, for tests: `python tests/cluster.py up`, then `... down`.

All it is lies below one folder: configuration, key, sockets, logs, state. Its ports are free ones
on the loopback interface. So it never touches a Slurm that the machine may have, and several may
run side by side: PATH says which one a command talks to. It is run by root or by any user; jobs
are then that user's alone.

Nodes n1 and n2 have 2 cores each, or as many as `--cpus` says. Slurm believes it; where the machine
has fewer, cells wait for a free core. Nodes g1 and g2 claim 16 cores and two A100: they are there
to ask for, and what runs on them finds no GPU. Partitions:

main   the default: n1, n2
low    n1, n2; its jobs are requeued when one of `high` wants their cores
high   n1, n2
short  n1, n2; no job runs longer than a minute
gpu    g1, g2
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from require import which

CPUS = (2, 2)  # of n1 and n2
NODES = {
    "n1": "Feature=plain",
    "n2": "Feature=plain",
    "g1": "CPUs=16 Feature=a100 Gres=gpu:a100:2",
    "g2": "CPUs=16 Feature=a100 Gres=gpu:a100:2",
}
DAEMONS = ("munged", "slurmctld", *NODES)
START_SECONDS = 60

# The commands of Slurm that find this cluster, in the folder `bin` of its own. SLURM_CONF alone
# would not do: in a job, Snakemake's plugin drops all such variables before it calls srun.
COMMANDS = ("sacct", "salloc", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
COMMAND = """\
#!/bin/sh
export SLURM_CONF={conf}
exec {folder}/{name} "$@"
"""

# Below those that the kernel gives to outgoing connections and those that cells choose.
PORTS = range(10000, 28000)

# A socket's path has at most 107 characters; the longest: `<folder>/n1/n1_<job>.<step>`.
LONGEST_FOLDER = 75

# How a folder that may be deleted is known.
MARK = "# A test cluster of parbench. `down` deletes this folder.\n"

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
PartitionName=main Nodes=n[1-2] Default=YES
PartitionName=low Nodes=n[1-2] PreemptMode=REQUEUE GraceTime=20
PartitionName=high Nodes=n[1-2] PriorityTier=2
PartitionName=short Nodes=n[1-2] DefaultTime=1 MaxTime=1
PartitionName=gpu Nodes=g[1-2]
"""

# Slurm wants device files, one for each GPU, and never opens them.
GRES = """\
NodeName=g[1-2] Name=gpu Type=a100 File=/dev/null
NodeName=g[1-2] Name=gpu Type=a100 File=/dev/zero
"""


class ClusterError(RuntimeError):
    """What keeps the cluster from running, and what mends it."""


def default_folder() -> Path:
    """Where `make slurm-up` puts the cluster: one for each user of this machine."""
    return Path(tempfile.gettempdir(), f"parbench-slurm-{os.getuid()}")


class Cluster:
    """The cluster of one folder, which exists while it is up."""

    def __init__(self, folder: Path, cpus: tuple[int, int] = CPUS):
        self.folder = folder.resolve()
        self.cpus = dict(zip(("n1", "n2"), cpus, strict=True))
        self._started: dict[str, subprocess.Popen] = {}
        self.conf = self.folder / "slurm.conf"
        self.bin = self.folder / "bin"

    @property
    def environment(self) -> dict[str, str]:
        """Of a process whose commands talk to this cluster."""
        return {**os.environ, "PATH": f"{self.bin}:{os.environ.get('PATH', '')}"}

    def up(self) -> None:
        """Start the cluster and wait until its nodes take jobs; nothing to do where it is up."""
        if self.is_ready():
            return
        self.down()
        text = str(self.folder)
        if len(text) > LONGEST_FOLDER or any(not c.isalnum() and c not in "/._+-" for c in text):
            raise ClusterError(
                f"--folder {text}: Slurm wants at most {LONGEST_FOLDER} characters, of them no"
                " blanks; another folder, please"
            )
        self.folder.mkdir(parents=True)
        self.conf.write_text(MARK)  # first: what is half made is deleted, too
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        host, user = socket.gethostname().split(".")[0], getpass.getuser()
        port, *ports = free_ports(1 + len(NODES))
        place = f"NodeHostname={host} NodeAddr=127.0.0.1 RealMemory=64000"
        nodes = [
            f"NodeName={name} {place} Port={number} {has}"
            + (f" CPUs={self.cpus[name]}" if name in self.cpus else "")
            for (name, has), number in zip(NODES.items(), ports, strict=True)
        ]
        settings = {"folder": text, "host": host, "user": user, "port": port}
        self.conf.write_text(MARK + CONF.format(**settings, nodes="\n".join(nodes)))
        (self.folder / "gres.conf").write_text(GRES)
        self.bin.mkdir()
        # Those of the daemon's own version; on PATH there may be the ones of another such cluster.
        theirs = Path(program("slurmctld")).parent.parent / "bin"
        for name in COMMANDS:
            command = self.bin / name
            command.write_text(COMMAND.format(conf=self.conf, folder=theirs, name=name))
            command.chmod(0o755)
        for name in DAEMONS:
            self.start(name)
        deadline = time.monotonic() + START_SECONDS
        while not self.is_ready():
            if time.monotonic() > deadline:
                raise ClusterError(f"no answer after {START_SECONDS} s; logs: {text}/*.log")
            for name in DAEMONS:
                self._check(name)
            time.sleep(0.2)

    def down(self) -> None:
        """End all daemons and jobs, at once, and delete the folder."""
        if not self.folder.exists():
            return
        if any(self.folder.iterdir()) and not (
            self.conf.exists() and self.conf.read_text().startswith(MARK)
        ):
            raise ClusterError(f"--folder {self.folder}: holds other things; another, please")
        for _ in range(100):
            if not (left := self._processes()):
                break
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(left, timeout=1)
        else:
            raise ClusterError(f"these processes cannot be ended: {left}")
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, name: str) -> None:
        """Start one daemon: munged, slurmctld or, by its node's name, a slurmd."""
        with open(self.folder / f"{name}.out", "ab") as said:
            self._started[name] = subprocess.Popen(
                self._words(name),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
                env={**os.environ, "SLURM_CONF": str(self.conf)},
            )
        while name == "munged" and not (self.folder / "munge.socket").exists():
            self._check(name)  # the others give up without it
            time.sleep(0.05)

    def kill(self, name: str) -> None:
        """Kill one daemon, as a crash would; jobs that a slurmd has started go on."""
        for process in self._daemons(name):
            process.kill()
            process.wait(10)

    def stop(self, name: str) -> None:
        """Stop one daemon, as for a restart."""
        for process in self._daemons(name):
            process.terminate()
            process.wait(30)

    def run(self, *words: str) -> str:
        """What a command of Slurm's answers."""
        result = subprocess.run(words, capture_output=True, text=True, env=self.environment)
        if result.returncode != 0:
            raise ClusterError(f"{' '.join(words)}: {result.stderr.strip()}")
        return result.stdout

    def is_ready(self) -> bool:
        """Whether every node could take a job, now or once it has ended another."""
        if not all(self._daemons(name) for name in DAEMONS):
            return False
        try:
            states = self.run("sinfo", "--noheader", "--Node", "--format=%N %T").split("\n")
        except ClusterError:
            return False
        good = {tuple(line.split()) for line in states if line}
        return all(
            any((name, state) in good for state in ("idle", "mixed", "allocated", "completing"))
            for name in NODES
        )

    def _words(self, name: str) -> list[str]:
        if name == "munged":
            files = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munged.pid"}
            files |= {"log-file": "munged.log", "seed-file": "munged.seed"}
            options = [f"--{option}={self.folder / file}" for option, file in files.items()]
            # --force: the folders above may be anybody's; the key is this user's alone.
            return [program("munged"), "--foreground", "--force", *options]
        if name == "slurmctld":
            return [program(name), "-D", "-f", str(self.conf)]
        return [program("slurmd"), "-D", "-f", str(self.conf), "-N", name]

    def _check(self, name: str) -> None:
        """Give up when a daemon that was just started has ended."""
        # Asked of the process itself: its command line is not there yet in its first moment.
        if self._started[name].poll() is not None:
            said = (self.folder / f"{name}.out").read_text().strip().splitlines()
            raise ClusterError(f"{name} ended: {said[-1] if said else 'it said nothing'}")

    def _daemons(self, name: str) -> list[psutil.Process]:
        """The daemon of this name, where it runs."""
        words = self._words(name)
        return [p for p in psutil.process_iter(["cmdline", "status"]) if p.info["cmdline"] == words]

    def _processes(self) -> list[psutil.Process]:
        """All daemons and all that jobs have started; not a user's shell that only asks Slurm."""
        found = []
        for name in DAEMONS:
            found += self._daemons(name)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                variables = process.environ()
                path = variables.get("PATH", "").split(":")
                ours = variables.get("SLURM_CONF") == str(self.conf) or str(self.bin) in path
                if (ours and "SLURM_JOB_ID" in variables) or self._is_step(process):
                    found.append(process)
        return found

    def _is_step(self, process: psutil.Process) -> bool:
        """Whether it is the parent of a job's step. Its title takes the place of its first
        variables, where psutil stops to read them."""
        if not process.name().startswith("slurmstepd"):
            return False
        with contextlib.suppress(OSError):
            variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            return f"SLURM_CONF={self.conf}".encode() in variables
        return False


def program(name: str) -> str:
    """Where a daemon's program lies."""
    found = which(name)
    if found is None:
        raise ClusterError(f"no {name} here; Debian and Ubuntu: sudo make system")
    return found


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    found: set[int] = set()
    while len(found) < count:
        port = random.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("", port))
            found.add(port)
    return sorted(found)


def main() -> int:
    """Start or end the cluster of a folder."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("what", choices=("up", "down"))
    parser.add_argument("--folder", type=Path, default=default_folder())
    parser.add_argument(
        "--cpus", type=int, nargs=2, default=CPUS, metavar=("N1", "N2"), help="cores of n1 and n2"
    )
    arguments = parser.parse_args()
    cluster = Cluster(arguments.folder, arguments.cpus)
    try:
        if arguments.what == "up":
            cluster.up()
            print(f"export PATH={cluster.bin}:$PATH")
        else:
            cluster.down()
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
