"""Devices lent to one cell at a time, over all runs, checkouts and users of a machine.

A device of kind cpu is one core or several, and two cells on one core would both measure nonsense.
Whoever trains holds a lock on a file a core or GPU, in a folder that everybody on the machine
shares. The kernel gives a lock back when the last process that holds its descriptor is gone,
whatever killed it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

import machine
from errors import ParbenchError
from printable import printable

# Not tempfile.gettempdir(): where every job has a TMPDIR of its own, nothing would be shared.
DEFAULT_FOLDER = "/tmp/parbench-leases"  # noqa: S108  (opened with the checks below)
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Lease:
    """What a cell may use.

    ``devices``: core numbers, or UUIDs of GPUs, one a device, in order. ``descriptors``: whoever
    inherits them keeps the lease. ``shared``: devices repeat, because there are fewer than asked.
    ``cores``: of the processes that drive GPUs.
    """

    devices: list[str]
    descriptors: list[int]
    shared: bool = False
    cores: tuple[str, ...] = ()


# ---------------------------------------------------------------- cores


def cores(number: int, holder: str) -> AbstractContextManager[Lease]:
    """Lease ``number`` cores out of those that this process may use, waiting until they are free.

    ``holder`` (a cell's id) is shown to whoever waits for them. ParbenchError when the process may
    not use as many, except with PARBENCH_OVERSUBSCRIBE=1 (tests), where devices share cores.
    """
    usable = usable_cores()
    if number <= len(usable):
        return _lease(number, {f"core-{core}": str(core) for core in usable}, holder)
    if os.environ.get("PARBENCH_OVERSUBSCRIBE") != "1":
        raise ParbenchError(
            f"{holder}: needs {number} cores and this process may use {len(usable)} "
            f"({', '.join(map(str, sorted(usable)))}); run it where it may use more, or choose "
            "hardware with fewer devices or threads"
        )
    _say(f"{holder}: {number} devices share {len(usable)} cores: its times mean nothing")
    return _oversubscribed(number, usable, holder)


@contextlib.contextmanager
def _oversubscribed(number: int, usable: list[int], holder: str) -> Iterator[Lease]:
    with _lease(len(usable), {f"core-{core}": str(core) for core in usable}, holder) as held:
        devices = [held.devices[index % len(usable)] for index in range(number)]
        yield Lease(devices, held.descriptors, shared=True)


def usable_cores() -> list[int]:
    """The cores that cells of this process may use: its affinity, within a container's CPU limit.

    One thread of every physical core comes first: two cells on the threads of one core would slow
    each other down.
    """
    affinity = sorted(os.sched_getaffinity(0), key=lambda core: (_thread(core), core))
    return affinity[: machine.cores()]


def _thread(core: int) -> int:
    """0 for the first hardware thread of a physical core, 1 for its second, ..."""
    path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    try:
        text = path.read_text()
    except OSError:
        return 0
    siblings: list[int] = []
    for part in text.strip().split(","):  # "0,64" or "0-1"
        first, _, last = part.partition("-")
        siblings.extend(range(int(first), int(last or first) + 1))
    return siblings.index(core) if core in siblings else 0


# ---------------------------------------------------------------- GPUs


def gpus(number: int, model: str | None, holder: str) -> AbstractContextManager[Lease]:
    """Lease ``number`` GPUs of one model (``model``, or the one that this process sees most of).

    CUDA_VISIBLE_DEVICES, which Slurm sets too, says which ones the process may use. ParbenchError
    when there are too few.
    """
    usable = usable_gpus(model)
    if number > len(usable):
        raise ParbenchError(
            f"{holder}: needs {number} GPUs of {model or 'one model'} and this "
            f"process sees {len(usable)} (CUDA_VISIBLE_DEVICES is "
            f"{os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}); run it where they are"
        )
    # A slice of a GPU may have an id with slashes.
    return _lease(number, {f"gpu-{uuid.replace('/', '_')}": uuid for uuid in usable}, holder)


def usable_gpus(model: str | None = None) -> list[str]:
    """UUIDs of the GPUs that this process may use, all of one model."""
    visible = machine.visible(machine.accelerators())
    # An entry that names a slice must stay one: the UUID of its GPU would mean another slice.
    entries = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    entries += [""] * (len(visible) - len(entries))
    found = [
        (entry if entry.startswith("MIG-") else gpu["uuid"], gpu["name"])
        for entry, gpu in zip(entries, visible, strict=False)
    ]
    if model:
        return [uuid for uuid, name in found if machine.is_model(name, model)]
    most = Counter(name for _, name in found).most_common(1)
    return [uuid for uuid, name in found if name == most[0][0]] if most else []


@contextlib.contextmanager
def gpus_with_cores(number: int, model: str | None, holder: str) -> Iterator[Lease]:
    """Lease GPUs, and for the processes that drive them as many cores, or all where fewer are.

    GPUs first, always: nobody who waits for a core then holds one that a holder of GPUs waits for.
    """
    count = min(number, len(usable_cores()))
    with gpus(number, model, holder) as held, cores(count, holder) as beside:
        descriptors = [*held.descriptors, *beside.descriptors]
        yield Lease(held.devices, descriptors, cores=tuple(beside.devices))


# ---------------------------------------------------------------- locks


@contextlib.contextmanager
def exclusive(path: Path, waiting: str) -> Iterator[None]:
    """Hold the lock of the file ``path``; says ``waiting`` when another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if not _try_lock(descriptor):
            _say(waiting)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _lease(number: int, files: dict[str, str], holder: str) -> Iterator[Lease]:
    """Lock ``number`` of ``files`` ({file: device}, best first).

    Only the process whose turn it is collects: it keeps what it has and takes what becomes free.
    Holders never ask for more, so nobody waits in a circle; turns come in the order of asking, so
    that a cell of many devices is not overtaken for ever by cells of one. Turns are per device:
    processes that may use different devices do not wait for each other.
    """
    say = _once(lambda: _say(_why_waiting(number, folder, files, holder)))
    with ExitStack() as stack:
        folder = _open_folder()
        stack.callback(os.close, folder)
        # Cleaners of old temporary files leave a folder alone while somebody locks it.
        fcntl.flock(folder, fcntl.LOCK_SH)
        held: dict[str, int] = {}
        with ExitStack() as turn:
            for name in sorted(files):  # one order for all: nobody waits in a circle here either
                turn.callback(os.close, _wait_for(folder, f"turn-{name}", say))
            while True:
                for name in files:
                    if len(held) < number and name not in held:
                        descriptor = _take(folder, name)
                        if descriptor is not None:
                            # Closed, not unlocked: processes that outlive this one keep the lock.
                            stack.callback(os.close, descriptor)
                            stack.callback(_write_holder, descriptor, "")
                            _write_holder(descriptor, holder)
                            held[name] = descriptor
                if len(held) == number:
                    break
                say()
                time.sleep(POLL_SECONDS)
        # In the order of preference, whichever became free first.
        chosen = [name for name in files if name in held]
        yield Lease([files[name] for name in chosen], [held[name] for name in chosen])


def _once(action: Callable[[], None]) -> Callable[[], None]:
    pending = [action]
    return lambda: pending.pop()() if pending else None


def _open_folder() -> int:
    """A descriptor of the folder that all users share; made when it is missing."""
    path = os.environ.get("PARBENCH_LEASES", DEFAULT_FOLDER)
    umask = os.umask(0)  # everybody may make files here, and only their owners delete them
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o1777)
    except OSError as error:
        raise ParbenchError(
            f"{path}: {error.strerror}; set PARBENCH_LEASES to a folder that all users of this "
            "machine may write to"
        ) from None
    finally:
        os.umask(umask)
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise ParbenchError(
            f"{path}: not a folder of leases ({error.strerror}); delete it, or set PARBENCH_LEASES"
        ) from None


def _open_file(folder: int, name: str) -> int:
    """A descriptor of the lock file ``name``, which another user may have made.

    Symbolic links, hard links and anything but a regular file are refused: in a folder where
    everybody writes they would let others choose which file is written.
    """
    while True:
        try:
            descriptor = _open_or_make(folder, name)
        except (FileExistsError, FileNotFoundError):
            if not os.fstat(folder).st_nlink:  # in a deleted folder nothing can be made, ever
                path = os.environ.get("PARBENCH_LEASES", DEFAULT_FOLDER)
                raise ParbenchError(f"{path}: deleted while waiting for it; start again") from None
            continue  # somebody made or deleted it in between
        except OSError as error:
            raise _unusable(name, error.strerror) from None
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
            return descriptor
        os.close(descriptor)
        if status.st_nlink:
            raise _unusable(name, "not a plain file of one name")


def _open_or_make(folder: int, name: str) -> int:
    flags = os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(name, flags | os.O_RDWR, dir_fd=folder)
    except PermissionError:
        return os.open(name, flags | os.O_RDONLY, dir_fd=folder)  # enough for a lock
    except FileNotFoundError:
        # O_EXCL, because Linux may refuse O_CREAT on another user's file in such a folder.
        make = flags | os.O_RDWR | os.O_CREAT | os.O_EXCL
        descriptor = os.open(name, make, 0o666, dir_fd=folder)
        os.fchmod(descriptor, 0o666)  # whatever the umask
        return descriptor


def _unusable(name: str, why: str | None) -> ParbenchError:
    folder = os.environ.get("PARBENCH_LEASES", DEFAULT_FOLDER)
    return ParbenchError(f"{folder}/{name}: {why}; delete it, or set PARBENCH_LEASES")


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_current(folder: int, name: str, descriptor: int) -> bool:
    """Whether ``name`` still means the locked file: a lock on a deleted one keeps nobody out."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))


def _take(folder: int, name: str) -> int | None:
    """A descriptor that holds the lock of ``name``, or None when it is taken."""
    descriptor = _open_file(folder, name)
    if _try_lock(descriptor) and _is_current(folder, name, descriptor):
        return descriptor
    os.close(descriptor)
    return None


def _wait_for(folder: int, name: str, say: Callable[[], None]) -> int:
    """A descriptor that holds the lock of ``name``, got in the order of asking."""
    while True:
        descriptor = _open_file(folder, name)
        try:
            if not _try_lock(descriptor):
                say()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_current(folder, name, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


# ---------------------------------------------------------------- who holds what


def _write_holder(descriptor: int, holder: str) -> None:
    text = json.dumps({"pid": os.getpid(), "holder": holder}) if holder else ""
    with contextlib.suppress(OSError):  # another user's file that only its owner may write
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)


def _read_holder(descriptor: int) -> str:
    """Who holds a lock, in words; the file may hold anything, since everybody may write to it."""
    try:
        found = json.loads(os.pread(descriptor, 4096, 0))
        text = f"{found['holder']} (pid {int(found['pid'])})"
    except (ValueError, TypeError, KeyError, OSError):
        return "somebody"
    return " ".join(printable(text).split())[:300]


def _why_waiting(number: int, folder: int, files: dict[str, str], holder: str) -> str:
    kind = next(iter(files)).partition("-")[0]
    taken = []
    for name, device in files.items():
        descriptor = _open_file(folder, name)
        try:
            who = _read_holder(descriptor)
            if not who.endswith(f"(pid {os.getpid()})") and not _try_lock(descriptor):
                taken.append(f"{device} is held by {who}")
        finally:
            os.close(descriptor)
    wanted = f"{number} {kind}{'s' * (number > 1)}"
    held = "; ".join(taken) or "others asked first"
    return f"{holder}: waiting for {wanted} of {len(files)}: {held}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
