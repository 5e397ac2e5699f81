"""Read how Snakemake was called."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parbench import files
from parbench.arguments import of_snakemake
from parbench.errors import ParbenchError
from parbench.plan import config_files
from parbench.plan.yaml_file import YamlMapping


@dataclass(frozen=True)
class Invocation:
    """How Snakemake was called.

    ``main``: False in a job of a run, which reads the Snakefile again; ``cell``: the cell of such a
    job; ``forced``: whether jobs that are up to date run, too.
    """

    main: bool
    cell: str | None
    on_slurm: bool
    dry: bool
    forced: bool
    unlock: bool
    unlocking: list[str]  # the arguments for --unlock in the same profile and configuration
    triggers: frozenset[str]  # what makes Snakemake run a job again
    apptainer: bool  # --sdm apptainer was given
    configfiles: list[Path]
    changes: YamlMapping  # the values of --config


def read(workflow: Any) -> Invocation:
    """Read from ``workflow`` and the command line how Snakemake was called.

    The cells depend on where they will run and on the job's cell, but a Snakefile learns executor
    and targets only after it is read, so Snakemake's own parser reads command line and profiles.
    """
    options = [argument.partition("=")[0] for argument in sys.argv]
    if options.count("--configfile") + options.count("--configfiles") > 1:
        raise ParbenchError(
            "--configfile is given twice, and Snakemake reads only the last one's files; name all "
            "after one: --configfile a.yaml b.yaml"
        )
    if options.count("--config") + options.count("-C") > 1:
        raise ParbenchError(
            "--config is given twice, and Snakemake reads only the last one's values; name all "
            "after one: --config stack=paper studies=[laharsh-cpu]"
        )
    arguments = of_snakemake(sys.argv[1:])
    _check_grouping(arguments)
    main, methods = workflow.is_main_process, workflow.deployment_settings.deployment_method
    cells = [job.wildcards_dict.get("cell") for job in arguments.target_jobs or ()]
    return Invocation(
        main=main,
        cell=cells[0] if not main and len(cells) == 1 else None,
        on_slurm=main and arguments.executor == "slurm",
        dry=main and bool(arguments.dryrun),
        forced=main and bool(arguments.force or arguments.forceall or arguments.forcerun),
        unlock=main and bool(arguments.unlock),
        unlocking=[
            word
            for name in ("profile", "configfile", "config")
            if (values := getattr(arguments, name))
            for word in (f"--{name}", *map(str, values))
        ],
        triggers=frozenset(str(trigger) for trigger in arguments.rerun_triggers),
        apptainer=any(method.name == "APPTAINER" for method in methods),
        configfiles=[files.user_path(str(path)) for path in workflow.overwrite_configfiles],
        changes=config_files.parse_changes(arguments.config or []),
    )


def _check_grouping(arguments: Any) -> None:
    """Raise ParbenchError if Snakemake's ``arguments`` group several jobs into one Slurm job."""
    if arguments.executor != "slurm":
        return
    for key in ("groups", "group_components", "slurm_array_jobs"):
        if getattr(arguments, key) not in ({}, dataclasses.MISSING):
            raise ParbenchError(
                f"--{key.replace('_', '-')}, or this key of a profile: a cell needs a Slurm job of "
                "its own, with its own cores, GPUs, nodes and walltime, so that it can be requeued "
                "and found again for this cell only; leave it out. For many short cells, lower "
                "`jobs` and `slurm.minutes` (docs/slurm.md)"
            )
