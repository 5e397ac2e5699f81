"""Prepare a run before Snakemake starts.

The files of `--configfile` are read, since Snakemake's error for invalid YAML names no file. No
other run may be using this folder, and each argument must be an option or a file to make: Snakemake
would not report this when it prints little. Packages that the cells need and the environment lacks
are added, so that this does not happen later, while cells are timed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from parbench.arguments import of_snakemake
from parbench.deploy.deployment import CompletedSoftware
from parbench.errors import ParbenchError
from parbench.launch import run_lock, slurm, slurm_cluster
from parbench.plan import config_files, expansion
from parbench.plan.yaml_file import read_yaml
from parbench.verdicts import closing


def prepare(arguments: Sequence[str]) -> None:
    """Check the configuration of a run and add packages; a dry run adds none.

    ``arguments``: Snakemake's arguments. Raises ParbenchError.
    """
    from snakemake.exceptions import CliException  # pyright: ignore[reportMissingTypeStubs]  # it has none

    try:
        options = of_snakemake(arguments)
    except (SystemExit, CliException):  # Snakemake itself says what is wrong
        return
    files: list[Path] = options.configfile or []
    for file in files:
        read_yaml(file)
    for word in options.targets or ():
        if not word.startswith(("results/", "reports/")):
            raise ParbenchError(
                f"{word}: neither an option of Snakemake nor a file in results/ or reports/; "
                "values of the configuration follow --config: --config studies=[laharsh-cpu]"
            )
    if options.dryrun:
        return
    run_lock.require_none()
    for path in filter(Path.exists, closing.REPORTS):
        if not os.access(path, os.W_OK):
            raise ParbenchError(f"{path}: cannot be written; chmod u+w it, or delete it")
    changes = config_files.parse_changes(options.config or [])
    typed = any(method.name == "APPTAINER" for method in options.software_deployment_method)
    config = config_files.read(files, changes)
    deployment = config.resolved_deployment(typed)
    software = CompletedSoftware(deployment)
    if options.executor == "slurm":
        why_unavailable = slurm.why_unavailable(slurm_cluster.ask(), config, software)
    else:
        why_unavailable = expansion.unavailable_here(config, software)
    expansion.plan(config, deployment, why_unavailable)
