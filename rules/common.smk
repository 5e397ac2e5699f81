# Read and check the configuration and expand it into cells: RUN, whose methods the rules call.
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(workflow.basedir) / "scripts"))

from parbench import outside, variables

variables.enter()  # before other imports read variables
try:
    outside.require_packages()
    from parbench.workflow import invocation, snakefile
    from parbench.exits import or_exit
    from parbench.measure import provenance
    from parbench.plan import places
except ImportError as error:
    advice = outside.sentence(error, ["snakemake", *sys.argv[1:]])
    if advice is None:
        raise
    sys.exit(advice)

or_exit(lambda: places.require_root("Snakemake"))

# PARBENCH_PARENT: a cell's launcher ends with this process. PATH: `python` in a rule is the one that
# runs Snakemake, even if its environment is not activated.
os.environ.update(
    PARBENCH_PARENT=str(os.getpid()),
    PATH=os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    ),
)

# Not a WorkflowError, with which Snakemake would print lines of this file.
RUN = or_exit(lambda: snakefile.WorkflowRun(invocation.read(workflow)))
STUDIES = RUN.config.studies
# All cores of this machine if cells run on it: no cell may be timed beside other jobs.
ALL_CORES = 1 if RUN.invocation.on_slurm else workflow.cores or 1


def entered_by_launcher(wildcards):
    """Return no image: the launcher starts ranks in it, by srun and with flags for each cell.

    As a result, `--sdm apptainer` does not make jobs run again.
    """
    return None


def code_of(*modules):
    """Return a digest of ``modules`` and all that they import, without comments and docstrings.

    The result is a function, so that jobs of cells, which also read the rules, do not compute it.
    """
    return lambda wildcards: provenance.combined(provenance.closure(*modules))


# For all rules.
container: entered_by_launcher
