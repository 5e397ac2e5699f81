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
    """``config`` with its deployment resolved to apptainer or host, and ``why`` beside it.

    ``typed``: `--sdm apptainer` stands on the command line. ParbenchError where images were asked
    for and none runs here: nothing falls back.
    """
    asked = config["deployment"]
    if asked == "auto":
        answer = _kept() or _resolve(config, typed)
    else:
        answer = {"deployment": asked, "reason": "config.yaml says so"}
    if answer["deployment"] == "apptainer":
        said = "config.yaml: deployment: apptainer"
        if asked == "auto":
            said = "--sdm apptainer" if typed else f"this folder's cells run in images ({KEPT})"
        apptainer.require(apptainer.probe(), said)
    return {**config, **answer, "auto": asked == "auto"}


def _kept() -> dict | None:
    if not KEPT.exists():
        return None
    answer = read_json(KEPT)
    if not isinstance(answer, dict) or answer.get("deployment") not in ("apptainer", "host"):
        raise ParbenchError(f"{KEPT}: names no deployment; delete it, it is made anew")
    return {"deployment": answer["deployment"], "reason": answer.get("reason", "")}


def _resolve(config: dict, typed: bool) -> dict:
    if typed:
        return {"deployment": "apptainer", "reason": "--sdm apptainer was typed"}
    found = apptainer.probe()
    trouble = found.trouble or images.obstacle(config["stack"], config["images"])
    if trouble is not None:
        return {"deployment": "host", "reason": trouble}
    return {"deployment": "apptainer", "reason": f"Apptainer {found.version} runs images here"}


def keep(config: dict, typed: bool) -> None:
    """Say where cells run, and keep what auto found."""
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


class HostSoftware(machine.Software):
    """What cells find in this machine's own environment; Horovod may be compiled when asked for."""

    def without_horovod(self) -> str | None:
        """Why cells have no Horovod. `make report` asks that it is compiled for a study with such
        cells, and for no other, before anything runs that is timed.
        """
        if stack := os.environ.get("PARBENCH_BUILD_HOROVOD"):
            environment.ensure_horovod(stack)
        return super().without_horovod()


def software(config: dict) -> images.Software | machine.Software:
    """What cells of the settled ``config`` find: in images, or here."""
    return images.Software(config["images"]) if in_images(config) else HostSoftware()


def in_images(config: dict) -> bool:
    """Whether cells of the settled ``config`` run in images."""
    return config["deployment"] == "apptainer"
