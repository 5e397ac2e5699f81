"""Where a cell's software comes from: an image, or this machine's own environment.

`auto` is resolved once for a work folder and kept in results/deployment.json, so that one study's
cells never change their ground because somebody installed Apptainer, or took it away.
"""

from __future__ import annotations

import os
from pathlib import Path

from parbench import machine
from parbench.deploy import apptainer, environment, images
from parbench.errors import ParbenchError
from parbench.files import read_json, write_json

KEPT = Path("results/deployment.json")


def settle(config: dict, typed: bool = False) -> dict:
    """``config`` with its deployment resolved to apptainer or host, and ``reason`` beside it.

    ``typed``: `--sdm apptainer` is on the command line. ParbenchError where images were asked
    for and none runs here: nothing falls back.
    """
    asked, said = config["deployment"], "config.yaml: deployment: apptainer"
    if asked != "auto":
        answer = {"deployment": asked, "reason": "config.yaml says so"}
    elif KEPT.exists():
        answer, said = _kept(), f"this folder's cells run in images ({KEPT})"
    elif typed:
        answer = {"deployment": "apptainer", "reason": "--sdm apptainer was typed"}
        said = "--sdm apptainer"
    else:
        answer = _found(config)
    if answer["deployment"] == "apptainer":
        apptainer.require(said)
    return {**config, **answer, "auto": asked == "auto"}


def _kept() -> dict:
    answer = read_json(KEPT)
    if not isinstance(answer, dict) or answer.get("deployment") not in ("apptainer", "host"):
        raise ParbenchError(f"{KEPT}: names no deployment; delete it, it is made anew")
    return {"deployment": answer["deployment"], "reason": answer.get("reason", "")}


def _found(config: dict) -> dict:
    found = apptainer.probe()
    trouble = found.trouble or images.obstacle(config["stack"], config["images"])
    if trouble is not None:
        return {"deployment": "host", "reason": trouble}
    return {"deployment": "apptainer", "reason": f"Apptainer {found.version} runs images here"}


def keep(config: dict, typed: bool) -> None:
    """Say where cells run, and record what auto found."""
    place = {"apptainer": "in Apptainer images", "host": "in this machine's own environment"}
    chosen = config["deployment"]
    print(f"parbench: cells run {place[chosen]}, stack {config['stack']}: {config['reason']}")
    if config["auto"]:
        if KEPT.exists():
            print(f"parbench: ({KEPT} keeps that; delete it to look again)")
        else:
            write_json(KEPT, {"deployment": chosen, "reason": config["reason"]})
    if typed and chosen == "host":
        print("parbench: --sdm apptainer changes nothing in a folder whose cells run on the host")


def in_images(config: dict) -> bool:
    """Whether cells of the settled ``config`` run in images."""
    return config["deployment"] == "apptainer"


class DeployedSoftware(machine.Software):
    """What cells of the settled ``config`` find: in images, or in this machine's environment."""

    def __init__(self, config: dict):
        self.in_images = in_images(config)
        self.gpu = config["images"]["arguments"].get("gpu", "none")

    def without_horovod(self) -> str | None:
        """Why cells have no Horovod; None where they have it.

        In images it is compiled. `make report` asks that it is compiled for a study on the host
        with such cells, and for no other, before anything runs that is timed.
        """
        if self.in_images:
            return None
        if stack := os.environ.get("PARBENCH_COMPLETE"):
            environment.ensure_horovod(stack)
        return super().without_horovod()

    def without(self, name: str, module: str) -> str | None:
        """In images they are; `make report` asks that they are added here, before anything runs
        that is timed."""
        # Texts are cut into tokens here, also where cells run in images.
        if self.in_images and name != "text":
            return None
        if stack := os.environ.get("PARBENCH_COMPLETE"):
            environment.ensure_more(name, stack)
        return super().without(name, module)

    def without_spark(self) -> str | None:
        """Why cells have no Spark, with its Java; None where they have it."""
        return None if self.in_images else super().without_spark()

    def without_compiler(self) -> str | None:
        """Why torch.compile can compile nothing; None where it can, as in images."""
        return None if self.in_images else super().without_compiler()

    def without_nccl(self) -> str | None:
        """Why Horovod cannot connect GPUs; None where it can."""
        if not self.in_images:
            return super().without_nccl()
        wanted = "needs an image of Horovod with NCCL: images.arguments.gpu: nccl in config.yaml"
        return None if self.gpu == "nccl" else wanted
