# Snakemake's own message for a broken YAML file is a page long: ours names file and line.
import sys
from pathlib import Path

sys.path.insert(0, str(Path(workflow.basedir) / "scripts"))

from parbench.plan.places import ROOT
from parbench.plan.yaml_file import read_yaml
from parbench.errors import ParbenchError
from parbench.printable import printable


def or_stop(function, *arguments):
    """Call ``function``; a user's error ends Snakemake with its one sentence and status 2."""
    try:
        return function(*arguments)
    except ParbenchError as error:
        # Not a WorkflowError: Snakemake would print the lines of this file with it.
        print(f"error: {printable(str(error))}", file=sys.stderr)
        sys.exit(2)


if Path.cwd().resolve() != ROOT:
    # Results, studies and scripts belong together: a checkout is a work folder.
    sys.exit(
        f"error: run Snakemake in the project's folder {ROOT} "
        f"(this is {Path.cwd()}); a second checkout is a second work folder"
    )

# Those of --configfile Snakemake has read already; but it takes the last of two values for a key.
for file in [ROOT / "config.yaml", *workflow.overwrite_configfiles]:
    or_stop(read_yaml, file)
