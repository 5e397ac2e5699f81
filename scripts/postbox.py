"""What nodes of one run tell each other: a small JSON file each, that its owner rewrites.

Over the file system that the nodes share anyway: it needs no port, and it is there before they
have found each other. In place, because a network file system may go on showing a file that was
replaced; opened anew for each look, because it may go on showing old content otherwise.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any


class Postbox:
    """The owner's side. ``value`` is what the others see since the last ``send``."""

    def __init__(self, path: Path):
        self.path = path
        self.value: dict[str, Any] = {"beat": 0}

    def send(self, **changes: Any) -> None:
        """Show ``changes`` to the others; without any it is a sign of life."""
        self.value |= {**changes, "beat": self.value["beat"] + 1}
        # In one piece. A shorter text than before leaves none of it behind: blanks follow.
        text = json.dumps(self.value).encode()
        with contextlib.suppress(OSError), open(self.path, "r+b", buffering=0) as file:
            file.write(text.ljust(os.fstat(file.fileno()).st_size))


class Peer:
    """Another one's postbox. ``value`` is what it said last."""

    def __init__(self, path: Path):
        self.path = path
        self.value: dict[str, Any] = {}
        self._changed = time.monotonic()

    def look(self) -> dict[str, Any]:
        """Read it again."""
        with contextlib.suppress(OSError, ValueError):  # not there yet, or just being rewritten
            found = json.loads(self.path.read_bytes())
            if found.get("beat") != self.value.get("beat"):
                self.value, self._changed = found, time.monotonic()
        return self.value

    def silent_for(self) -> float:
        """Seconds since its last sign of life."""
        return time.monotonic() - self._changed
