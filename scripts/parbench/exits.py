"""How every program ends: by one clear sentence about what went wrong, never by a traceback.

A user's error is told in its own words, one of the operating system with the file and a remedy. For
anything else, a fault of parbench, the traceback goes into a file to send.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from parbench import git, outside
from parbench.errors import ParbenchError, sentence
from parbench.printable import printable

ROOT = Path(__file__).resolve().parents[2]
Value = TypeVar("Value")


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
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
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
        if isinstance(error, ImportError) and not outside.is_ours():
            raise
        message, status = report(error), 1
    print(f"error: {printable(message)}", file=sys.stderr)
    sys.exit(status)


def report(error: Exception) -> str:
    """Return a report on a fault of parbench; write the traceback to a file that it names."""
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
