"""Where a cell's software comes from: an image, or the host's environment.

`auto` takes images only if they are there, since building them takes long and much room. It is
resolved once per work folder and kept in results/deployment.json, so that the cells of a study do
not change when somebody builds images, or installs or removes Apptainer.
"""

from __future__ import annotations

from pathlib import Path

from parbench.deploy import apptainer, environment, images
from parbench.errors import ParbenchError
from parbench.files import read_json, write_json
from parbench.software import Software

KEPT = Path("results/deployment.json")


def settle(config: dict, typed: bool = False) -> dict:
    """Return ``config`` with `deployment` resolved to apptainer or host, and with a `reason`.

    ``typed``: `--sdm apptainer` is on the command line. Raises ParbenchError if images are asked
    for and none runs here; it never falls back.
    """
    configured, why = config["deployment"], "config.yaml: deployment: apptainer"
    if configured != "auto":
        answer = {"deployment": configured, "reason": "config.yaml says so"}
    elif KEPT.exists():
        answer, why = _kept(), f"this folder's cells run in images ({KEPT})"
    elif typed:
        answer = {"deployment": "apptainer", "reason": "--sdm apptainer was typed"}
        why = "--sdm apptainer"
    else:
        answer = _found(config)
    if answer["deployment"] == "apptainer":
        apptainer.require(why)
    return {**config, **answer, "auto": configured == "auto"}


def _kept() -> dict:
    answer = read_json(KEPT)
    if not isinstance(answer, dict) or answer.get("deployment") not in ("apptainer", "host"):
        raise ParbenchError(f"{KEPT}: names no deployment; delete it, it is made anew")
    return {"deployment": answer["deployment"], "reason": answer.get("reason", "")}


def _found(config: dict) -> dict:
    installed = apptainer.probe()
    trouble = installed.trouble or images.obstacle(config["stack"], config["images"])
    if trouble is not None:
        return {"deployment": "host", "reason": trouble}
    reason = f"Apptainer {installed.version} runs images here, and they are built"
    return {"deployment": "apptainer", "reason": reason}


def keep(config: dict, typed: bool) -> None:
    """Print where cells run, and record what `auto` found."""
    places = {"apptainer": "in Apptainer images", "host": "in this machine's own environment"}
    deployment = config["deployment"]
    print(f"parbench: cells run {places[deployment]}, stack {config['stack']}: {config['reason']}")
    if config["auto"]:
        if KEPT.exists():
            print(f"parbench: ({KEPT} keeps that; delete it to look again)")
        else:
            write_json(KEPT, {"deployment": deployment, "reason": config["reason"]})
    if typed and deployment == "host":
        print("parbench: --sdm apptainer changes nothing in a folder whose cells run on the host")


def in_images(config: dict) -> bool:
    """Return whether cells of the settled ``config`` run in images."""
    return config["deployment"] == "apptainer"


class DeployedSoftware(Software):
    """The software available to cells of the settled ``config``, in images or on the host."""

    def __init__(self, config: dict):
        self.in_images = in_images(config)
        self.gpu = config["images"]["arguments"].get("gpu", "none")

    def without_horovod(self) -> str | None:
        """Return why cells have no Horovod; None if they have it, as in the images that need it."""
        return None if self.in_images else super().without_horovod()

    def without(self, name: str, module: str) -> str | None:
        """Return why cells lack optional packages; None if they have them."""
        # Texts are tokenized on the host even if cells run in images.
        return None if self.in_images and name != "text" else super().without(name, module)

    def without_programs(self) -> str | None:
        """Return why programs of the user's own cannot run: images do not hold them."""
        if not self.in_images:
            return None
        return "a program of one's own is in no image: deployment: host in config.yaml runs it"

    def without_spark(self) -> str | None:
        """Return why cells have no Spark, with its Java; None if they have it."""
        return None if self.in_images else super().without_spark()

    def without_compiler(self) -> str | None:
        """Return why torch.compile has no compiler; None if it has one, as in images."""
        return None if self.in_images else super().without_compiler()

    def without_nccl(self) -> str | None:
        """Return why Horovod cannot connect GPUs; None if it can."""
        if not self.in_images:
            return super().without_nccl()
        reason = "needs an image of Horovod with NCCL: images.arguments.gpu: nccl in config.yaml"
        return None if self.gpu == "nccl" else reason


class CompletedSoftware(DeployedSoftware):
    """The same, but what is asked about and lacks is added to the host's environment first.

    Only for programs that run before Snakemake does: nothing is timed then. A Python that is not
    an environment of parbench stays as it is.
    """

    def __init__(self, config: dict):
        super().__init__(config)
        self.stack = environment.entered()

    def without_horovod(self) -> str | None:
        """Return why cells have no Horovod although it was asked for; None if they have it."""
        self._add("horovod", super().without_horovod())
        return super().without_horovod()

    def without(self, name: str, module: str) -> str | None:
        """Return why cells lack optional packages although they were asked for, or None."""
        self._add(name, super().without(name, module))
        return super().without(name, module)

    def _add(self, name: str, lacking: str | None) -> None:
        if lacking and self.stack and name in environment.optional(self.stack):
            environment.add([name], self.stack)
