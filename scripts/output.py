"""What processes print: into the log, and to the terminal where there is a bar to show."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from pathlib import Path

from errors import ParbenchError


class Output:
    """The processes' output: into the log, and to the terminal where there is a bar to show."""

    def __init__(self, path: Path, to_terminal: bool = False):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.lines: deque[str] = deque(maxlen=400)
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115  (closed by close())
        self._pipe = -1
        self._to_terminal = to_terminal
        self._rest = b""

    def follow(self, pipe: int) -> None:
        """What is read from now on."""
        os.set_blocking(pipe, False)
        self._pipe = pipe

    def read(self) -> bool:
        """Take what the pipe holds; False at its end."""
        for _ in range(64):  # more than a pipe holds; whoever never stops writing is watched, too
            try:
                piece = os.read(self._pipe, 65536)
            except BlockingIOError:
                return True
            if not piece:
                return False
            if self._to_terminal:
                sys.stderr.buffer.write(piece)
                sys.stderr.buffer.flush()
            *complete, rest = (self._rest + piece).split(b"\n")
            for line in complete:
                self.say(self._last_state(line))
            # A bar draws itself again and again without ever ending its line.
            self._rest = rest[max(0, rest.rstrip(b"\r").rfind(b"\r")) :]
        return True

    def say(self, line: str) -> None:
        """A line of the log."""
        self.lines.append(line)
        try:
            self._file.write(line + "\n")
            self._file.flush()
        except OSError as error:
            raise ParbenchError(f"{self.path}: {error.strerror}; the cell was ended") from None

    def close(self) -> None:
        """Write what is left of the last line."""
        if self._rest:
            self.say(self._last_state(self._rest))
        with contextlib.suppress(OSError):  # said already
            self._file.close()

    @staticmethod
    def _last_state(line: bytes) -> str:
        """What a terminal would show of a line that was drawn several times."""
        text = line.decode(errors="replace").rstrip("\r")
        return text.rpartition("\r")[2].rstrip()


def progress_mode(asked: str | None) -> str:
    """How training shows its progress: "bar" on a terminal, "lines" where nobody watches one."""
    if asked:
        return asked
    quiet = os.environ.get("PARBENCH_QUIET") == "1" or not sys.stderr.isatty()
    return "lines" if quiet else "bar"
