"""`make chaos`, with few kills and a fixed seed."""

from __future__ import annotations

import subprocess
import sys

from training import ROOT


def test_nothing_is_lost_to_three_kills():
    words = ["tests/chaos.py", "--kills", "3", "--seed", "1", "--strategies", "eager,ddp"]
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 kills in " in done.stdout
    assert done.stdout.endswith("compared with the run in peace, lost: nothing\n")
