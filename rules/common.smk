# Checks the configuration and expands it into cells: RUN, whose methods rules ask. No rules.
import os

from parbench import workflow as workflows
from parbench.measure import provenance
from parbench.plan import places

# Jobs inherit the terminal, and the bars of cells that run at once would overwrite each other.
# A cell's launcher ends with the process that runs its rule: this one.
# `python` in a rule is the one that runs Snakemake, also where nobody activated its environment.
os.environ.update(
    PARBENCH_QUIET="1",
    PARBENCH_PARENT=str(os.getpid()),
    PATH=os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    ),
)

RUN = or_stop(workflows.Run, or_stop(workflows.invocation, workflow), config)
STUDIES = RUN.config["studies"]
# Those of this machine, where cells run here: none is timed beside more ranks than cores.
ALL_CORES = 1 if RUN.called.on_slurm else workflow.cores or 1


def entered_by_launcher(wildcards):
    """No container directive's image: scripts/launch.py enters it, where srun can stand outside
    and GPU and isolation flags are a cell's own. Nor does `--sdm apptainer` rerun anything.
    """
    return None


def code_of(*modules):
    """Digest of the meaning of ``modules`` and all that they import.

    Reckoned for a job of its own rule, and not whenever a cell's job reads the rules on its node.
    """
    return lambda wildcards: provenance.combined(provenance.closure(*modules))
