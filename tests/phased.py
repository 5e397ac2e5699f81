"""scripts/train.py with a late rank and a slow network, planted into every step.

PLANTED is a JSON object: seconds that rank 1 comes `late`, and that the `network` takes:
of a step, with fsdp of each of its messages.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

import train
from errors import run_main
from strategies import fsdp, horovod

PLANTED = json.loads(os.environ["PLANTED"])


def late():
    """Rank 1 computes longer."""
    right = train.Run.loss

    def loss(self, logits, labels):
        if self.strategy.rank == 1:
            time.sleep(PLANTED["late"])
        return right(self, logits, labels)

    return mock.patch.object(train.Run, "loss", loss)


def network_of_ddp():
    """The last message of a step takes longer."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    right = default_hooks.allreduce_hook

    def average(state, bucket):
        if bucket.is_last():
            time.sleep(PLANTED["network"])
        return right(state, bucket)

    return mock.patch.object(default_hooks, "allreduce_hook", average)


def network_of_horovod():
    """All messages of a step together take longer."""
    right = horovod.Strategy.optimizer

    def optimizer(self, *given):
        made = right(self, *given)
        synchronize = made.synchronize

        def slow():
            synchronize()
            time.sleep(PLANTED["network"])

        made.synchronize = slow
        return made

    return mock.patch.object(horovod.Strategy, "optimizer", optimizer)


def network_of_fsdp():
    """Each message takes longer."""
    right = fsdp.Strategy.wrap

    def slow(kind):
        send = kind.__call__

        def slowly(*given, **named):
            time.sleep(PLANTED["network"])
            return send(*given, **named)

        kind.__call__ = slowly

    def wrap(self, blocks):
        from torch.distributed.fsdp._fully_shard import _fsdp_collectives as messages

        slow(messages.DefaultAllGather)
        slow(messages.DefaultReduceScatter)
        return right(self, blocks)

    return mock.patch.object(fsdp.Strategy, "wrap", wrap)


if __name__ == "__main__":
    with late(), network_of_ddp(), network_of_horovod(), network_of_fsdp():
        run_main(train.main)
