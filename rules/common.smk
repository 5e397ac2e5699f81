# Reads and checks the configuration and expands it into cells: RUN, whose methods rules ask. No rules.
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(workflow.basedir) / "scripts"))

from parbench import workflow as workflows
from parbench.errors import ParbenchError
from parbench.measure import provenance
from parbench.plan import places
from parbench.printable import printable

if Path.cwd().resolve() != places.ROOT:
    # Results, studies and scripts belong together: a checkout is a work folder.
    sys.exit(
        f"error: run Snakemake in the project's folder {places.ROOT} "
        f"(this is {Path.cwd()}); a second checkout is a second work folder"
    )

# A cell's launcher ends with the process that runs its rule: this one.
# `python` in a rule is the one that runs Snakemake, also where nobody activated its environment.
os.environ.update(
    PARBENCH_PARENT=str(os.getpid()),
    PATH=os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    ),
)

try:
    RUN = workflows.WorkflowRun(workflows.invocation(workflow))
except ParbenchError as error:
    # Not a WorkflowError: Snakemake would print the lines of this file with it.
    print(f"error: {printable(str(error))}", file=sys.stderr)
    sys.exit(2)
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


# Of every rule.
container: entered_by_launcher
