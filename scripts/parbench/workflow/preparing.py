"""What a run does before Snakemake starts.

It reads the files of `--configfile`, since Snakemake's error for broken YAML names no file, checks
that no other run works in this folder and that the words are options or files to make, which a
silenced Snakemake would not report, and adds what the cells of the studies need and the environment
lacks: not later, beside cells that are timed.
"""

from __future__ import annotations

from collections.abc import Sequence

from parbench import arguments
from parbench.deploy.deployment import CompletedSoftware
from parbench.errors import ParbenchError
from parbench.launch import run_lock, slurm, slurm_cluster
from parbench.plan import config_files, expansion
from parbench.plan.yaml_file import read_yaml


def prepare(words: Sequence[str]) -> None:
    """Read the configuration of a run with these ``words`` of Snakemake's command line, and add
    packages; a dry run adds none. Raises ParbenchError."""
    from snakemake.exceptions import CliException

    try:
        asked = arguments.of_snakemake(words)
    except (SystemExit, CliException):  # Snakemake itself says what is wrong
        return
    files = asked.configfile or []
    for file in files:
        read_yaml(file)
    for word in asked.targets or ():
        if not word.startswith(("results/", "reports/")):
            raise ParbenchError(
                f"{word}: neither an option of Snakemake nor a file in results/ or reports/; "
                "values of the configuration follow --config: --config studies=[laharsh-cpu]"
            )
    if asked.dryrun:
        return
    run_lock.require_none()
    changes = config_files.parse_changes(asked.config or [])
    typed = any(method.name == "APPTAINER" for method in asked.software_deployment_method)
    config = config_files.read(files, changes)
    deployment = config.resolved_deployment(typed)
    software = CompletedSoftware(deployment)
    if asked.executor == "slurm":
        why_unavailable = slurm.why_unavailable(slurm_cluster.ask(), config, files, software)
    else:
        why_unavailable = expansion.unavailable_here(config, software)
    expansion.plan(config, deployment, files, changes, why_unavailable)
