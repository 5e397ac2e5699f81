"""How every program reports a user's error: one clear sentence, never a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable

from parbench.printable import printable


class ParbenchError(Exception):
    """A failure that a user can cause.

    The message names the file, the key or cell, the value, and the fix.
    """


def run_main(main: Callable[[], int | None]) -> None:
    """Run a program's ``main`` and exit: 0, its own status, 2 for a user's error, 130 on Ctrl-C."""
    try:
        status = main()
    except ParbenchError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        status = 2
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:  # `cells.py list | head`: the reader has seen enough
        sys.stderr.close()
        status = 0
    sys.exit(status or 0)
