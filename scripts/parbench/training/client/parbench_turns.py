"""Compare a training script with another one by parbench: call `step` after each training step.

    from parbench_turns import step

    for images, labels in loader:
        ...  # one training step
        step(samples=len(images))

Copy this file into the folder of the script. Without parbench, `step` does nothing. Under parbench,
`step` waits while the other script has its turn. If a script has several processes, as with
torchrun, each must call `step` with the number of samples in its own share.
"""

import json
import math
import os
import platform
import socket
import sys
import threading
import time

_turns = None
_STANDARD = getattr(sys, "stdlib_module_names", ())


def step(samples):
    """Report the end of a training step on ``samples`` samples; wait if this script's turn is
    over."""
    global _turns
    path = os.environ.get("PARBENCH_TURNS")
    if not path:
        return
    if _turns is None or _turns.process != os.getpid():
        _turns = _Turns(path)
    _turns.step(samples)


def _rank():
    """Return this process's rank and the number of ranks, from torch, else from a launcher."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    for rank, size in (
        ("RANK", "WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ):
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1


def _loaded():
    """Return the versions of the packages that this process has loaded, by name."""
    versions = {}
    for name, module in list(sys.modules.items()):
        version = getattr(module, "__dict__", {}).get("__version__")
        if isinstance(version, str) and "." not in name and name not in _STANDARD:
            versions[name] = str(version)
    return versions


def _wait_for_device():
    """Wait until the GPU has finished the work that torch has started."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


class _Turns:
    def __init__(self, path):
        self.process, self.thread = os.getpid(), threading.get_ident()
        self.socket = socket.socket(socket.AF_UNIX)
        folder, name = os.path.split(path)
        descriptor = os.open(folder, os.O_RDONLY)
        try:  # the path itself may be longer than a socket's may be
            self.socket.connect(f"/proc/self/fd/{descriptor}/{name}")
        finally:
            os.close(descriptor)
        self.lines = self.socket.makefile("r", encoding="utf-8")
        rank, ranks = _rank()
        self.send(
            process=self.process,
            rank=rank,
            ranks=ranks,
            python=platform.python_version(),
            packages=_loaded(),
        )
        self.left = 0  # steps of this turn
        self.samples = 0.0
        self.began = None  # None if the next step is not timed

    def step(self, samples):
        if threading.get_ident() != self.thread:
            self.fail("calls step from two threads: call it from the one that trains")
        try:
            count = float(samples)
        except (TypeError, ValueError):
            count = math.nan
        if not 0 <= count < math.inf:
            self.fail(f"calls step(samples={samples!r:.80}): pass the step's number of samples")
        if self.began is not None:
            self.samples += count
            self.left -= 1
            if self.left > 0:
                return
            _wait_for_device()
            self.send(seconds=time.perf_counter() - self.began, samples=self.samples)
            self.began = None
        elif self.left > 0:  # the untimed step of a turn has ended
            self.begin()
            return
        self.left = json.loads(self.lines.readline() or "{}").get("steps", 0)
        if not self.left:  # the comparison is over
            raise SystemExit(0)

    def begin(self):
        _wait_for_device()
        self.samples = 0.0
        self.began = time.perf_counter()

    def send(self, **message):
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def fail(self, problem):
        self.send(problem=problem)
        raise SystemExit(f"parbench: this script {problem}")
