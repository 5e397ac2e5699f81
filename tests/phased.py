"""Run `parbench train` with a late rank and a slow network, planted into every step.

PLANTED is a JSON object in the environment: `late` and `network`, in seconds, delay the losses of
rank 1, and DDP's last bucket of each step or each of FSDP's gathers of shards. The last of `losses`
in a step is delayed once rank 0 waits for it, in `folder`: whatever else the machine does, rank 0
then waits for at least that long.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from parbench.__main__ import main
from parbench.exits import run_main
from parbench.measure.profiling import phases
from parbench.training.run import Run

PLANTED = json.loads(os.environ["PLANTED"])
ARRIVED = Path(PLANTED["folder"]) / "arrived"
counts = {"step": 0, "loss": 0}


@contextlib.contextmanager
def late():
    """Make rank 1 compute longer."""
    step, loss, enter = Run.step, Run.loss, phases.Profile.enter
    first = int(os.environ["RANK"]) == 0
    # The last exchange of rank 0: after its loss or, in a pipeline's first stage, in its step.
    mark = "loss" if PLANTED["losses"] == 1 else "step"

    def counted(self, *given):
        counts["step"] += 1
        return step(self, *given)

    def delayed(self, *given):
        counts["loss"] += self.model.training
        if not first and self.model.training:
            number, rest = divmod(counts["loss"], PLANTED["losses"])
            while rest == 0 and not Path(f"{ARRIVED}-{number}").exists():
                time.sleep(0.001)
            time.sleep(PLANTED["late"])
        return loss(self, *given)

    def entered(self, name):
        enter(self, name)
        if first and name == phases.EXCHANGE:
            Path(f"{ARRIVED}-{counts[mark]}").touch()

    with (
        mock.patch.object(Run, "step", counted),
        mock.patch.object(Run, "loss", delayed),
        mock.patch.object(phases.Profile, "enter", entered),
    ):
        yield


def network_of_ddp():
    """Delay the last bucket of each step."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    right = default_hooks.allreduce_hook

    def average(state, bucket):
        if bucket.is_last():
            time.sleep(PLANTED["network"])
        return right(state, bucket)

    return mock.patch.object(default_hooks, "allreduce_hook", average)


def network_of_fsdp():
    """Delay each gather of shards."""
    from torch import distributed

    right = distributed.all_gather_single

    def gather(*given, **named):
        time.sleep(PLANTED["network"])
        return right(*given, **named)

    return mock.patch.object(distributed, "all_gather_single", gather)


if __name__ == "__main__":
    with late(), network_of_ddp(), network_of_fsdp():
        run_main(lambda: main(["train", *sys.argv[1:]]))
