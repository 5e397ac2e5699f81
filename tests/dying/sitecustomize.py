"""Lets a program die in the middle of a write: Python imports this first where PYTHONPATH says so.

DIES="3 /checkpoints/": it is killed when it renames a file in a folder of that name for the third
time, before the rename.
"""

import os
import signal
import sys

number, _, place = os.environ.get("DIES", "").partition(" ")
left = int(number or 0)


def look(event, arguments):
    """Called by Python before all that programs do to files."""
    global left
    if event == "os.rename" and place in str(arguments[1]):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


if left:
    sys.addaudithook(look)
