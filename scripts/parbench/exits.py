"""End every program with one clear sentence about what went wrong, never with a traceback.

A ParbenchError is printed as it is, an error of the operating system with its file and a fix. For
anything else, which is a bug in parbench, the traceback is written to a file that users can send.
If PARBENCH_TRACEBACK is set, a traceback precedes the sentence: it shows which functions made it.
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
    """Run a program's ``main`` and exit.

    The status is what ``main`` returns (None is 0), 1 for a bug in parbench, 2 for an error that a
    user, a file or the machine caused, or 130 after Ctrl-C.
    """
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
    """Flush standard output; return ``status``, or 2 if that fails."""
    if sys.stdout is None:
        return status
    try:
        sys.stdout.flush()
    except OSError as error:
        # Python would try again at exit, and print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if status == 0 and not isinstance(error, BrokenPipeError):
            print(f"error: standard output: {sentence(error)}", file=sys.stderr)
            return 2
    return status


@contextlib.contextmanager
def with_tracebacks() -> Iterator[None]:
    """Exit with 1 and a traceback on any error but a ParbenchError: the output is a log."""
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
        if os.environ.get("PARBENCH_TRACEBACK"):
            traceback.print_exception(error)
        message, status = str(error), 2
    except BrokenPipeError:
        raise
    except OSError as error:
        message, status = sentence(error), 2
    except MemoryError:
        message, status = "out of memory; use a machine that has more", 2
    except Exception as error:
        if isinstance(error, ImportError) and not outside.is_ours():
            raise
        message, status = report(error), 1
    print(f"error: {printable(message)}", file=sys.stderr)
    sys.exit(status)


def report(error: Exception) -> str:
    """Return a report on a bug in parbench; write the traceback to a file that the report names."""
    state = git.state(ROOT)
    changed = " with uncommitted changes" if state["git_dirty"] else ""
    version = (state["git_commit"] or "unknown commit") + changed
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
        kept = f"no file can be written ({unwritten.strerror}), so the traceback follows:\n{whole}"
        return f"this is a bug in parbench, please report it\n{facts}\n{kept}"
    return f"this is a bug in parbench\n{facts}\n  please report it with the whole story, in {path}"
