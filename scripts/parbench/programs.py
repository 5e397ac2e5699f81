"""Run programs that need time to end after a signal: Snakemake, whose cells write checkpoints.

Standard library only.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def handled(handler: Callable[[int, object], None]) -> Iterator[None]:
    """Call ``handler`` for signals that ask this process to end, until the context closes."""
    kept = {number: signal.signal(number, handler) for number in ENDING}
    try:
        yield
    finally:
        for number, before in kept.items():
            signal.signal(number, before)


def run(command: Sequence[str], output: TextIO | None = None) -> int:
    """Run ``command`` and return its status, even if this process is asked to end meanwhile.

    ``output``: the file for its standard output. As with make, Ctrl-C and the end of a terminal
    reach ``command`` itself, and SIGTERM is passed on.
    """
    started: list[subprocess.Popen] = []

    def pass_on(number: int, frame: object) -> None:
        if number == signal.SIGTERM:
            for process in started:
                process.terminate()

    with handled(pass_on):
        started.append(subprocess.Popen(command, stdout=output))
        return started[0].wait()


def snakemake(*words: str, output: TextIO | None = None) -> int:
    """Run Snakemake on the workflow and return its status; ``output`` as for ``run``.

    Snakemake, so quiet, does not say why it builds no graph, such as a file that no rule makes.
    """
    quiet, options = [sys.executable, "-m", "snakemake", "--quiet"], ["--rerun-incomplete", *words]
    status = run([*quiet, "all", *options], output)
    if status == 1:
        dry = [*quiet, "host", "progress", "rules", "reason", "--dry-run", *options]
        again = subprocess.run(dry, capture_output=True, text=True)
        if again.returncode:
            print(again.stdout.strip(), file=sys.stderr)
    return status
