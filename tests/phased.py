"""scripts/train.py with a late rank and a slow network, planted into every step.

PLANTED is a JSON object in the environment, in seconds: `late` delays each loss of rank 1, and
`network` delays DDP's last bucket of each step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from parbench.errors import run_main
from parbench.training import loop, train

PLANTED = json.loads(os.environ["PLANTED"])


def late():
    """Make rank 1 compute longer."""
    right = loop.Run.loss

    def loss(self, logits, labels):
        if self.strategy.rank == 1:
            time.sleep(PLANTED["late"])
        return right(self, logits, labels)

    return mock.patch.object(loop.Run, "loss", loss)


def network_of_ddp():
    """Delay the last bucket of each step."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    right = default_hooks.allreduce_hook

    def average(state, bucket):
        if bucket.is_last():
            time.sleep(PLANTED["network"])
        return right(state, bucket)

    return mock.patch.object(default_hooks, "allreduce_hook", average)


if __name__ == "__main__":
    with late(), network_of_ddp():
        run_main(train.main)
