# Checks the configuration, expands it into cells, and holds the functions that rules use. No rules.
import atexit
import contextlib
import io
import json
import os
import subprocess

import cells
import certificate
import deployment
import files
import images
import machine
import monitor
import provenance
import record
import slurm
import unfinished

from snakemake.cli import parse_args

# Jobs inherit the terminal, and the bars of cells that run at once would overwrite each other.
os.environ.update(PARBENCH_QUIET="1")
# `python` in a rule is the one that runs Snakemake, also where nobody activated its environment.
os.environ.update(
    PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
)

# Snakemake lists the files of --configfile before the one that they are laid over.
configuration_files = [
    configuration.ROOT / "config.yaml",
    *workflow.overwrite_configfiles,
]
# `--sdm apptainer`, as Snakemake's users type it.
SDM_APPTAINER = any(
    method.name == "APPTAINER"
    for method in workflow.deployment_settings.deployment_method
)
# What `--config` says, and what lies under it.
CHANGES = or_stop(configuration.typed, workflow.config_settings.config)
CONFIG = or_stop(
    deployment.settle,
    or_stop(
        configuration.checked,
        configuration.merged(config, CHANGES),
        configuration_files,
        CHANGES,
    ),
    SDM_APPTAINER,
)


def executor():
    """Where jobs will run, as Snakemake's command line and profiles say; a dry run's, too.

    Snakemake itself tells a Snakefile only after it has read it. A job of a run, which reads it
    again on a compute node, does not need to know.
    """
    if not workflow.is_main_process:
        return None
    # It would say a second time which profiles it reads.
    with contextlib.redirect_stderr(io.StringIO()):
        return parse_args(sys.argv[1:])[1].executor


SLURM = executor() == "slurm"
# What counts is the machine that runs the cells: this one, a cluster, or, for a job of a run, what
# was found when that run began.
CLUSTER = or_stop(slurm.ask) if SLURM else None
LEFT_BEHIND = or_stop(slurm.left_behind, configuration.ROOT) if SLURM else {}
# Read now: the plugin takes it out of the environment.
INSIDE_JOB = os.environ.get("SLURM_JOB_ID")
if SLURM:
    lacking = slurm.lacking(CLUSTER, CONFIG, configuration_files)
elif workflow.is_main_process:
    lacking = cells.lacking_here(CONFIG)
else:
    lacking = cells.lacking_as_planned(CONFIG["studies"])
PLAN = or_stop(
    cells.plan,
    CONFIG,
    workflow.overwrite_configfiles,
    CHANGES,
    lacking,
)
# The report reads them, after hours of training: a typo is told now.
or_stop(configuration.claims, "studies/published/claims.yaml")
REQUESTS = slurm.Requests(PLAN, CONFIG, CLUSTER, LEFT_BEHIND)
if SLURM:
    slurm.outlast_silence()
# Preparation and report: jobs, or run where Snakemake runs.
PREPARE_HERE = CONFIG["slurm"]["prepare"] == "submit"
PREPARING = or_stop(slurm.preparing, CONFIG, CLUSTER)


def entered_by_launcher(wildcards):
    """No container directive's image: scripts/launch.py enters it, where srun can stand outside
    and GPU and isolation flags are a cell's own. Nor does `--sdm apptainer` rerun anything.
    """
    return None


def planned_cell(wildcards):
    """The cell of a job; an id that no study asks for, or that cannot run here, is an error."""
    if wildcards.cell not in PLAN.cells:
        near = configuration.nearest(wildcards.cell, list(PLAN.cells), listed=False)
        raise WorkflowError(f"error: unknown cell {wildcards.cell!r}{near}")
    if wildcards.cell in PLAN.not_run:
        reason = PLAN.not_run[wildcards.cell]
        raise WorkflowError(f"error: {wildcards.cell} is not run here: {reason}")
    return PLAN.cells[wildcards.cell]


def cell_dataset(wildcards):
    """The small digest file of a cell's dataset: Snakemake compares its content, not its time."""
    return f"results/data/{planned_cell(wildcards)['dataset']['name']}/digest.json"


def cell_weights(wildcards):
    """The same of the published weights that a cell starts from; none where its seed draws them."""
    wanted = planned_cell(wildcards)["model"].get("pretrained")
    return f"results/weights/{wanted['weights']}/digest.json" if wanted else []


def digest_file(image):
    """The small file that stands for an image: its name holds the digest of what it is made from."""
    return f"results/images/{image.label}.json"


def cell_image(wildcards):
    """The digest file of a cell's image; none where cells run on the host."""
    image = cells.image_of(planned_cell(wildcards), PLAN)
    return [] if image is None else digest_file(image)


def certificates_of(studies):
    """The certificates that stand for the cells of ``studies``: of their images, or of the host."""
    first = {
        group["cells"][0]
        for study in studies
        for group in PLAN.studies[study]["groups"]
        if group["not_run"] is None
    }
    found = {cells.image_of(PLAN.cells[cell], PLAN) for cell in first}
    places = {certificate.HOST if image is None else image.label for image in found}
    return [str(certificate.path(place)) for place in sorted(places)]


def study_certificates(wildcards):
    """The certificates of the study of a table."""
    return certificates_of([wildcards.study] if wildcards.study in PLAN.studies else [])


def certified(wildcards):
    """What a certificate is to hold."""
    return certificate.wanted(PLAN.studies.values(), wildcards.place)


def certified_plans(wildcards):
    """The plans that ask for any of it."""
    asked = [
        name
        for name, plan in PLAN.studies.items()
        if certificate.wanted([plan], wildcards.place)
    ]
    return [f"results/plan/{name}.json" for name in asked]


def all_cores(wildcards):
    """Those of this machine, where cells run here: none is timed beside more ranks than cores."""
    return 1 if SLURM else workflow.cores or 1


def certified_image(wildcards):
    """The digest file of the image in which a certificate is made; none on the host."""
    on_host = wildcards.place == certificate.HOST
    return [] if on_host else f"results/images/{wildcards.place}.json"


def report_image():
    """The digest file of the image that makes tables and report."""
    if not deployment.in_images(CONFIG):
        return []
    return digest_file(images.image("report", CONFIG["stack"], CONFIG["images"]))


def evidence_files(pattern):
    """What each file of evidence is unpacked to; asked only by the report that is made of them."""

    def of_each(wildcards):
        names = sorted(path.stem for path in Path("reports/evidence").glob("*.json"))
        if not names:
            raise WorkflowError(
                "error: reports/evidence holds no file of evidence; make one of a finished study: "
                "make evidence ARGS=<study>"
            )
        return expand(f"results/evidence/{{evidence}}/{pattern}", evidence=names)

    return of_each


def inside_report_image():
    """What stands before the programs that make tables and report."""
    if not deployment.in_images(CONFIG):
        return ""
    return "python scripts/images.py run report --plan results/plan/images.json --"


def cell_code(wildcards):
    """Digest of the code that a cell can reach: comments and other strategies do not count."""
    return cells.code_digest(planned_cell(wildcards))


def cell_threads(wildcards):
    """The cores of devices of kind cpu; a GPU's process needs one for itself."""
    return machine.cores_of(planned_cell(wildcards)["hardware"])


def cell_resources():
    """The resources of cells, by the plugin's names: none where cells run on this machine.

    They never come from `threads`, which the cores of the submitting machine limit.
    """
    if workflow.is_main_process and not SLURM:
        return {}

    def one(key):
        return lambda wildcards: REQUESTS.of(wildcards.cell).get(key)

    return {key: one(key) for key in slurm.KEYS}


def cell_priority(wildcards):
    """Seeds in turn: strategies that are compared run near each other in time.

    Among cells of as many cores. A cell of more waits until no smaller one fills the last core; for
    numbers to be kept, docs/evidence.md says how to run one seed after the other.
    """
    return -PLAN.cells[wildcards.cell]["seed"]


def study_metrics(wildcards):
    """metrics.json of all the study's cells that this machine can run."""
    if wildcards.study not in PLAN.studies:
        near = configuration.nearest(wildcards.study, list(PLAN.studies))
        raise WorkflowError(
            f"error: study {wildcards.study!r} is not in `studies`{near}"
        )
    return [
        f"results/cells/{cell}/metrics.json" for cell in PLAN.runnable(wildcards.study)
    ]


def plan_digest(wildcards):
    """Changes when the shape of a study does: its groups, tables, texts."""
    return files.digest(PLAN.studies[wildcards.study])


def dataset_source(wildcards):
    """What decides a dataset's bytes: not the mirrors, nor the code that fetches it.

    A change of the conversion itself raises CONVERSION in scripts/dataset.py. Of a local folder it
    is the bytes and not the times: a run of this rule is a run of all its cells.
    """
    if wildcards.dataset not in CONFIG["datasets"]:
        near = configuration.nearest(wildcards.dataset, list(CONFIG["datasets"]))
        raise WorkflowError(f"error: unknown dataset {wildcards.dataset!r}{near}")
    spec = CONFIG["datasets"][wildcards.dataset]
    kept = {key: value for key, value in spec.items() if key != "urls"}
    conversion = provenance.constant("dataset.py", "CONVERSION")
    held = cells.source_digest(wildcards.dataset, PLAN)
    return json.dumps([kept, conversion, *([held] if held else [])], sort_keys=True)


def weights_source(wildcards):
    """What decides the bytes of published weights: not the mirrors, nor the code that fetches them."""
    if wildcards.weights not in CONFIG["weights"]:
        near = configuration.nearest(wildcards.weights, list(CONFIG["weights"]))
        raise WorkflowError(f"error: unknown weights {wildcards.weights!r}{near}")
    spec = CONFIG["weights"][wildcards.weights]
    kept = {key: value for key, value in spec.items() if key != "urls"}
    conversion = provenance.constant("pretrained.py", "CONVERSION")
    # They get the names of the model's own blocks.
    model = provenance.combined(provenance.closure(f"models/{spec['model']}.py"))
    return json.dumps([kept, conversion, model], sort_keys=True)


def code_of(*scripts):
    """Digest of the meaning of ``scripts`` and all that they import.

    Reckoned for a job of its own rule, and not whenever a cell's job reads the rules on its node.
    """
    return lambda wildcards: provenance.combined(provenance.closure(*scripts))


# Rules that this run has jobs of: results are told at its end where tables are made anew.
TOLD = set()
# Tells of cells that run elsewhere, from the start of such a run to its end.
MONITOR = []


def cells_of(jobs):
    """The cells that these jobs train."""
    return [job.wildcards.cell for job in jobs if job.rule.name == "train"]


def begin(workflow):
    """At the start of a run: write cells and plans, and say what will happen."""
    cells.write(PLAN)
    deployment.keep(CONFIG, SDM_APPTAINER)
    jobs = list(workflow.dag.needrun_jobs())
    TOLD.update(job.rule.name for job in jobs)
    trained = cells_of(jobs)
    cells.write_progress(PLAN, trained)
    say_where(trained)
    take_over(workflow, jobs)
    keep_records(workflow)
    unfinished.REPORT.unlink(missing_ok=True)
    # Where cells run here, their launchers have the terminal.
    if workflow.non_local_exec and trained:
        MONITOR.append(monitor.Monitor(trained, cells.progress_entries(PLAN)))
        MONITOR[-1].start(workflow.logger_manager.logger)


def say_where(trained):
    """What is not run and why, where the rest runs, and whose results are waited for."""
    if INSIDE_JOB and PREPARE_HERE:
        print(
            f"parbench: inside Slurm's job {INSIDE_JOB}: datasets, images, tables and report "
            "are made on its nodes"
        )
    if SLURM:
        for line in slurm.not_run(PLAN):
            print(f"parbench: {line}")
    waited = {cell: LEFT_BEHIND[cell] for cell in trained if cell in LEFT_BEHIND}
    for cell, numbers in waited.items():
        print(
            f"parbench: {cell}: job {', '.join(numbers)} of an earlier run is still there; its "
            "result is taken over"
        )


def take_over(workflow, jobs):
    """Tell launchers whose results count, though Snakemake knows nothing of them: of runs that
    were killed, those that their cells go on without, and those whose end was not noticed.
    """
    known = {}
    for job in jobs:
        if job.rule.name == "train":
            cell = job.wildcards.cell
            incomplete = workflow.persistence.incomplete(job)
            finished = bool(workflow.async_run(incomplete))
            # Slurm tells better which of its jobs are still there.
            if finished or not SLURM:
                found = record.left_behind(cells.folder(cell), finished)
                if found is not None:
                    known[cell] = found["job"]
            if cell in LEFT_BEHIND:
                known[cell] = LEFT_BEHIND[cell][-1]
    files.write_json("results/plan/taken_over.json", known)


def keep_records(workflow):
    """Tell Snakemake of cells that were finished by jobs whose submitter was gone.

    Only a submitter writes its records. Without one, no later change would run the cell again.
    """
    needed = set(workflow.dag.needrun_jobs())
    for job in workflow.dag.jobs:
        finished = job.rule.name == "train" and job not in needed
        if not finished or workflow.persistence.has_metadata(job):
            continue
        word, reasons = cells.state(job.wildcards.cell, PLAN)
        if word == "done":
            workflow.async_run(workflow.persistence.finished(job))
        else:
            print(
                f"parbench: {job.wildcards.cell} is kept though {reasons[0]}; to train it again: "
                f"rm {job.output.metrics}"
            )


@atexit.register
def foretell():
    """At the end of a dry run for Slurm: what the run will cost."""
    if SLURM and workflow.dryrun and workflow.dag is not None:
        # Those that are finished, too: a dry run has finished them all.
        jobs = workflow.dag.needrun_jobs(exclude_finished=False)
        print(slurm.predicted(cells_of(jobs), PLAN))


def finish():
    """At the end of a run: the results in short. `make` prints them itself, also when Snakemake
    found nothing to do and calls nobody."""
    for each in MONITOR:
        each.stop()
    if "table" in TOLD and os.environ.get("PARBENCH_CLOSING") != "make":
        subprocess.run([sys.executable, "scripts/closing.py"], check=False)


def fail(workflow):
    """At the end of a run that failed: which cells did, and a report of what is there."""
    for each in MONITOR:
        each.stop()
    print(
        "The run stopped: see the error above. What is finished is kept; start it again to go on.",
        file=sys.stderr,
    )
    failed = cells_of(workflow.scheduler.failed)
    if failed:  # none where somebody typed Ctrl-C
        unfinished.tell(PLAN, failed, inside_report_image())
