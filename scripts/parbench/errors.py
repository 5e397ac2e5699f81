"""How every program reports what went wrong: one clear sentence, never a traceback.

A user's error is told in its own words, one of the operating system with the file and a remedy. For
anything else, a fault of parbench, the traceback goes into a file to send.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from parbench.printable import printable

ROOT = Path(__file__).resolve().parents[2]
Value = TypeVar("Value")

# What to do about an error of the operating system, by its number.
REMEDIES = {
    errno.EACCES: "choose a file or folder that you may read and write, or ask its owner",
    errno.EPERM: "choose a file or folder of your own, or ask its owner",
    errno.EROFS: "this disk cannot be written: work in a folder elsewhere; PARBENCH_CACHE and "
    "TMPDIR name those of the cache and for temporary files",
    errno.ENOSPC: "free some space, or work on a larger disk; PARBENCH_CACHE and TMPDIR name the "
    "folders of the cache and for temporary files",
    errno.EDQUOT: "your quota is used up: delete files, or work on another disk; PARBENCH_CACHE "
    "and TMPDIR name the folders of the cache and for temporary files",
    errno.ENOENT: "check the name; a folder must exist before a file is written into it",
    errno.ENOTDIR: "a part of this path is a file and must be a folder: check it, or HOME",
    errno.EISDIR: "this is a folder and must be a file: move it away, or choose another name",
    errno.EEXIST: "move it away, or choose another name",
    errno.ENOTEMPTY: "move its files away, or choose another name",
    errno.ELOOP: "links that lead to each other: delete one of them",
    errno.ENAMETOOLONG: "choose a shorter name, or a folder with a shorter path",
    errno.EINVAL: "check the name",
    errno.EXDEV: "both must lie on one disk",
    errno.ETXTBSY: "wait until the program that is using it has ended",
    errno.EFBIG: "this disk or the limit `ulimit -f` allows no larger file",
    errno.EMFILE: "raise the limit of open files: ulimit -n 4096",
    errno.ENFILE: "the machine has no open files left: end other programs, or ask its operators",
    errno.ENOMEM: "free some memory, or run it where there is more",
    errno.EAGAIN: "no more processes or threads are allowed here: see `ulimit -u`",
    errno.EIO: "the disk does not answer as it should: see `dmesg`, or work on another one",
    errno.ESTALE: "the network disk has lost this file: run it again",
    errno.ENOEXEC: "this program is for another machine: install the one for this system",
    errno.EADDRINUSE: "another program uses this port: end it, or choose another one",
    **dict.fromkeys(
        (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP),
        "this disk has no locks or lacks something else that is needed: work on a local disk; "
        "PARBENCH_CACHE names the folder of the cache",
    ),
}


class ParbenchError(Exception):
    """A failure that a user can cause.

    The message names the file, the key or cell, the value, and the fix.
    """


def run_main(main: Callable[[], int | None]) -> None:
    """Run a program's ``main`` and exit: 0, its own status, 1 for a fault of parbench, 2 for what a
    user, a file or the machine caused, 130 on Ctrl-C."""
    try:
        status = or_exit(main)
    except SystemExit as end:
        status = end.code
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:  # `parbench cells | head`: the reader has seen enough
        status = 0
    sys.exit(_flushed(status or 0))


def _flushed(status: int | str) -> int | str:
    """Write out what was printed; return ``status``, or 2 if that is impossible."""
    if sys.stdout is None:
        return status
    try:
        sys.stdout.flush()
    except OSError as error:
        # Python would try again as it ends, and print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if status == 0 and not isinstance(error, BrokenPipeError):
            print(f"error: standard output: {sentence(error)}", file=sys.stderr)
            return 2
    return status


@contextlib.contextmanager
def with_tracebacks() -> Iterator[None]:
    """Exit with 1 and a traceback on anything but a ParbenchError, for an output that is a log."""
    try:
        yield
    except ParbenchError:
        raise
    except Exception:
        sys.excepthook(*sys.exc_info())
        sys.exit(1)


def or_exit(action: Callable[[], Value]) -> Value:
    """Return what ``action`` returns, or report what it raises and exit as ``run_main`` does."""
    try:
        return action()
    except ParbenchError as error:
        message, status = str(error), 2
    except BrokenPipeError:
        raise
    except OSError as error:
        message, status = sentence(error), 2
    except MemoryError:
        message, status = "memory is used up; run it where there is more", 2
    except Exception as error:
        from parbench import outside  # imports this module

        if isinstance(error, ImportError) and not outside.is_ours():
            raise
        message, status = report(error), 1
    print(f"error: {printable(message)}", file=sys.stderr)
    sys.exit(status)


def sentence(error: OSError) -> str:
    """Return an error of the operating system in a sentence, with its file and a remedy."""
    names = (error.filename, error.filename2)
    files = " and ".join(os.fsdecode(name) for name in names if isinstance(name, (str, bytes)))
    reason = error.strerror or str(error) or type(error).__name__
    remedy = REMEDIES.get(error.errno or 0, "this is what the operating system answers")
    if error.errno == errno.EEXIST and os.path.islink(files) and not os.path.exists(files):
        reason = f"a link to {os.readlink(files)}, which is not there"
        remedy = "make that folder, mount its disk, or delete the link"
    return f"{files}: {reason}; {remedy}" if files else f"{reason}; {remedy}"


def report(error: Exception) -> str:
    """Return a report on a fault of parbench; write the traceback to a file that it names."""
    from parbench import git  # imports this module

    state = git.state(ROOT)
    changed = " with uncommitted changes" if state["git_dirty"] else ""
    version = (state["git_commit"] or "no commit known") + changed
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(ROOT)] or frames[-1:]
    place = f"{os.path.relpath(own[-1].filename, ROOT)}, line {own[-1].lineno}" if own else "?"
    facts = (
        f"  what:     {type(error).__name__}: {error}\n"
        f"  where:    {place}\n"
        f"  parbench: {version}, in {ROOT}\n"
        f"  Python:   {platform.python_version()} ({sys.executable}), {platform.platform()}\n"
        f"  command:  {shlex.join(sys.orig_argv)}"
    )
    whole = "".join(traceback.format_exception(error))
    try:
        number, path = tempfile.mkstemp(prefix="parbench-error-", suffix=".txt", text=True)
        with open(number, "w", encoding="utf-8", errors="replace") as file:
            file.write(f"{facts}\n  folder:   {Path.cwd()}\n\n{whole}")
    except OSError as unwritten:
        kept = f"no file can be written ({unwritten.strerror}), so here is all of it:\n{whole}"
        return f"this is a fault of parbench, please report it\n{facts}\n{kept}"
    return (
        f"this is a fault of parbench\n{facts}\n  please report it with the whole story, in {path}"
    )
