"""Resolve where a cell's software comes from: an image, the host, or the user's own Python.

`auto` chooses images only if they exist, since building them takes much time and space. It is
resolved once per project folder and kept in results/deployment.json, so that the cells of a study
do not change when somebody builds images, or installs or removes Apptainer.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from parbench import decided, interpreter, packages, strategies
from parbench.cell import Cell
from parbench.deploy import apptainer, containers, host_environment
from parbench.deploy.recipes import ImageSettings
from parbench.errors import ParbenchError
from parbench.files import user_path
from parbench.interpreter import OwnPython
from parbench.measure import provenance
from parbench.software import Software


@dataclass(frozen=True)
class Deployment:
    """Where the software of a configuration's cells comes from.

    ``label``: the `deployment` of cells: apptainer, host, or the label of ``interpreter``, the
    user's own Python; ``reason``: why this one was chosen; ``auto``: whether the configuration
    leaves the choice to parbench.
    """

    label: str
    stack: str
    images: ImageSettings
    reason: str
    auto: bool = False
    interpreter: OwnPython | None = None

    @property
    def in_images(self) -> bool:
        """Whether cells run in images."""
        return self.label == "apptainer"

    @property
    def python(self) -> str | None:
        """The path of the user's own Python; None without one."""
        return None if self.interpreter is None else self.interpreter.path

    def __str__(self) -> str:
        """Return where cells run, and why, as a sentence."""
        if self.interpreter is not None:
            return f"cells run with {self.stack}: {self.reason}"
        place = "in Apptainer images" if self.in_images else "in this machine's own environment"
        return f"cells run {place}, stack {self.stack}: {self.reason}"


def of_python(path: str, settings: ImageSettings, where: str) -> Deployment:
    """Return the deployment with the Python at ``path``, which the file ``where`` names.

    Raises ParbenchError, beginning with ``where``, if it cannot run cells.
    """
    # Links are not resolved, since the program of a virtual environment is one.
    try:
        found = interpreter.required(os.path.abspath(user_path(path, interpreter.KEY)))
    except ParbenchError as error:
        raise ParbenchError(f"{where}: {error}") from None
    reason = "`deployment` says so"
    return Deployment(found.label, found.stack, settings, reason, interpreter=found)


def resolve(
    requested: Literal["auto", "apptainer", "host"],
    stack: str,
    settings: ImageSettings,
    where: str,
    typed: bool = False,
) -> Deployment:
    """Return the deployment that ``requested``, from the configuration, means on this machine.

    ``where``: the file that says so; ``typed``: whether `--sdm apptainer` is on the command line.
    Raises ParbenchError if images are requested and cannot run; there is no fallback.
    """
    why = f"{where}: deployment: apptainer"
    if requested != "auto":
        label, reason = requested, "`deployment` says so"
    elif (earlier := decided.read()).deployment is not None:
        label, reason = earlier.deployment, earlier.reason
        why = f"this folder's cells run in images ({decided.DEPLOYMENT})"
    elif typed:
        label, reason, why = "apptainer", "--sdm apptainer was typed", "--sdm apptainer"
    else:
        label, reason = _found(stack, settings)
    if label == "apptainer":
        apptainer.require(why)
    return Deployment(label, stack, settings, reason, auto=requested == "auto")


def _found(stack: str, settings: ImageSettings) -> tuple[str, str]:
    """Return the label that `auto` chooses on this machine, and the reason."""
    installed = apptainer.probe()
    problem = installed.problem or containers.obstacle(stack, settings)
    if problem is not None:
        return "host", problem
    return "apptainer", f"Apptainer {installed.version} runs images here, and they are built"


def keep(deployment: Deployment, typed: bool) -> None:
    """Print where cells run, and record what `auto` found."""
    print(f"parbench: {deployment}")
    if deployment.auto:
        if decided.read().deployment is None:
            decided.keep_deployment(deployment.label, deployment.reason)
        else:
            print(
                f"parbench: (this is kept in {decided.DEPLOYMENT}; delete that file to choose "
                "again)"
            )
    if typed and not deployment.in_images:
        path = deployment.python
        where = "on the host" if path is None else f"with {path}"
        print(f"parbench: --sdm apptainer changes nothing in a folder whose cells run {where}")


class DeployedSoftware(Software):
    """The software available to cells of ``deployment``: images, the host, or the user's Python."""

    def __init__(self, deployment: Deployment):
        self.in_images = deployment.in_images
        self.gpu = deployment.images.arguments.get("gpu", "none")
        self.interpreter = deployment.interpreter
        self.elsewhere = self.in_images or self.interpreter is not None

    def without_horovod(self) -> str | None:
        """Return why cells cannot use Horovod; None if they can, as in images."""
        if self.interpreter is not None:
            return self._missing("horovod")
        return None if self.in_images else super().without_horovod()

    def without(self, name: str, module: str) -> str | None:
        """Return why cells lack optional packages; None if they have them."""
        # Texts are tokenized on the host even if cells run elsewhere.
        reason = None if self.elsewhere and name != "text" else super().without(name, module)
        return reason or self._missing(module)

    def without_torch(self, stack: str, least: str) -> str | None:
        """Return why cells have no torch of version ``least`` or later; None if they have one."""
        if self.interpreter is None:
            return super().without_torch(stack, least)
        version = self.interpreter.found["packages"]["torch"]
        if not packages.older(version, least):
            return None
        return f"needs torch {least}, and {self.interpreter.path} has {version}"

    def without_modules(self, cell: Cell) -> str | None:
        """Return which packages of its model and strategy are missing; None if none."""
        return None if self.interpreter is None else self._missing(*_modules(cell))

    def _missing(self, *modules: str) -> str | None:
        """Return which of ``modules`` the user's own Python lacks; None without such a Python."""
        missing = self.interpreter and self.interpreter.missing(modules)
        return missing and f"needs {', '.join(modules)}, and {missing}"

    def without_programs(self) -> str | None:
        """Return why the user's own programs cannot run, which images do not have, or None."""
        if not self.in_images:
            return None
        return "images do not have your own programs: set deployment: host in config.yaml"

    def without_spark(self) -> str | None:
        """Return why cells cannot use Spark and its Java; None if they can."""
        return None if self.in_images else super().without_spark()

    def without_compiler(self) -> str | None:
        """Return why torch.compile cannot work; None if it can, as in images."""
        return None if self.in_images else super().without_compiler()

    def without_headers(self, include: str) -> str | None:
        """Return why torch.compile lacks Python's headers; None if they are there."""
        own = self.interpreter
        return super().without_headers(include if own is None else own.found["include"])

    def without_nccl(self) -> str | None:
        """Return why Horovod cannot connect GPUs; None if it can."""
        if self.interpreter is not None:
            python = self.interpreter
            return (
                None if python.horovod_has_nccl else f"needs a Horovod with NCCL in {python.path}"
            )
        if not self.in_images:
            return super().without_nccl()
        reason = "needs an image of Horovod with NCCL: images.arguments.gpu: nccl in config.yaml"
        return None if self.gpu == "nccl" else reason


def _modules(cell: Cell) -> list[str]:
    """Return the packages that the code of ``cell``'s strategy and models imports."""
    own = ("parbench.models.", f"parbench.strategies.{cell.strategy.name}")
    engine = f"parbench.training.{strategies.of(cell).ENGINE}"
    code = provenance.cell_code(*provenance.names_of(cell))
    used = {name for name in code if name.startswith(own) or name == engine}
    found = {"psutil"} if cell.hardware.nodes > 1 else set()  # to find their networks
    if strategies.of(cell).PAIRS_ONLY:
        used.add("parbench.training.program")
    return sorted(found.union(*map(provenance.packages_of, used)))


class CompletedSoftware(DeployedSoftware):
    """The same, but whatever is asked for and missing is added to the host's environment first.

    Use it only in programs that run before Snakemake, when nothing is timed. A Python that is not
    an environment of parbench is not changed.
    """

    def __init__(self, deployment: Deployment):
        super().__init__(deployment)
        self.stack = host_environment.entered()

    def without_horovod(self) -> str | None:
        """Add Horovod if it is missing; return why cells still cannot use it, or None."""
        self._add("horovod", super().without_horovod())
        return super().without_horovod()

    def without(self, name: str, module: str) -> str | None:
        """Add optional packages that are missing; return why cells still lack them, or None."""
        self._add(name, super().without(name, module))
        return super().without(name, module)

    def _add(self, name: str, missing: str | None) -> None:
        wanted_here = self.interpreter is None or name == "text"
        if missing and wanted_here and self.stack and name in host_environment.optional(self.stack):
            host_environment.add([name], self.stack)
