# Checks the configuration, expands it into cells, and holds the functions that rules use. No rules.
import os

from parbench import files, machine, workflow as workflows
from parbench.deploy import deployment, images
from parbench.measure import provenance
from parbench.plan import cells
from parbench.verdicts import certificate

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
PLAN, CONFIG = RUN.plan, RUN.config
PREPARE_HERE, PREPARING = RUN.prepares_here, RUN.preparing


def or_raise(function, *arguments):
    """Call ``function`` for a job; a user's error is Snakemake's, with its one sentence."""
    try:
        return function(*arguments)
    except ParbenchError as error:
        raise WorkflowError(f"error: {error}")


def entered_by_launcher(wildcards):
    """No container directive's image: scripts/launch.py enters it, where srun can stand outside
    and GPU and isolation flags are a cell's own. Nor does `--sdm apptainer` rerun anything.
    """
    return None


def planned_cell(wildcards):
    """The cell of a job."""
    return or_raise(RUN.cell, wildcards.cell)


def cell_dataset(wildcards):
    """The small digest file of a cell's dataset: Snakemake compares its content, not its time."""
    return f"results/data/{planned_cell(wildcards).dataset.name}/digest.json"


def cell_weights(wildcards):
    """The same of the published weights that a cell starts from; none where its seed draws them."""
    wanted = planned_cell(wildcards).model.pretrained
    return f"results/weights/{wanted.weights}/digest.json" if wanted else []


def digest_file(image):
    """The small file that stands for an image: its name holds the digest of what it is made from."""
    return f"results/images/{image.label}.json"


def cell_image(wildcards):
    """The digest file of a cell's image; none where cells run on the host."""
    image = cells.image_of(planned_cell(wildcards), PLAN)
    return [] if image is None else digest_file(image)


def study_certificates(wildcards):
    """The certificates of the study of a table."""
    return RUN.certificates([wildcards.study])


def certified(wildcards):
    """What a certificate is to hold."""
    return certificate.wanted(PLAN.studies.values(), wildcards.place)


def certified_plans(wildcards):
    """The plans that ask for any of it."""
    return RUN.certified_plans(wildcards.place)


def certified_image(wildcards):
    """The digest file of the image in which a certificate is made; none on the host."""
    on_host = wildcards.place == certificate.HOST
    return [] if on_host else f"results/images/{wildcards.place}.json"


def all_cores(wildcards):
    """Those of this machine, where cells run here: none is timed beside more ranks than cores."""
    return 1 if RUN.called.on_slurm else workflow.cores or 1


def report_image():
    """The digest file of the image that makes tables and report."""
    in_images = deployment.in_images(CONFIG)
    wanted = in_images and images.image("report", CONFIG["stack"], CONFIG["images"])
    return digest_file(wanted) if in_images else []


def inside_report_image():
    """What stands before the programs that make tables and report."""
    run = "python scripts/images.py run report --plan results/plan/images.json --"
    return run if deployment.in_images(CONFIG) else ""


def evidence_files(pattern):
    """What each file of evidence is unpacked to; asked only by the report that is made of them."""
    return lambda wildcards: or_raise(workflows.evidence_files, pattern)


def cell_code(wildcards):
    """Digest of the code that a cell can reach: comments and other strategies do not count."""
    return cells.code_digest(planned_cell(wildcards))


def cell_threads(wildcards):
    """The cores of devices of kind cpu; a GPU's process needs one for itself."""
    return machine.cores_of(planned_cell(wildcards).hardware)


def cell_priority(wildcards):
    """Seeds in turn: strategies that are compared run near each other in time.

    Among cells of as many cores. A cell of more waits until no smaller one fills the last core; for
    numbers to be kept, docs/evidence.md says how to run one seed after the other.
    """
    return -PLAN.cells[wildcards.cell].seed


def study_metrics(wildcards):
    """metrics.json of all the study's cells that this machine can run."""
    return or_raise(RUN.metrics, wildcards.study)


def plan_digest(wildcards):
    """Changes when the shape of a study does: its groups, tables, texts."""
    return files.digest(PLAN.studies[wildcards.study])


def code_of(*modules):
    """Digest of the meaning of ``modules`` and all that they import.

    Reckoned for a job of its own rule, and not whenever a cell's job reads the rules on its node.
    """
    return lambda wildcards: provenance.combined(provenance.closure(*modules))
