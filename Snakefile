# parbench: config + study -> cells -> dataset -> metrics.json -> table.csv -> report.
# One file an arrow of that flow; scripts/ does the work.
from snakemake.utils import min_version

min_version("9.9")


# config.yaml is read there, and not by `configfile:`, whose message names no line.
include: "rules/common.smk"
include: "rules/images.smk"
include: "rules/dataset.smk"
include: "rules/weights.smk"
include: "rules/train.smk"
include: "rules/certificate.smk"
include: "rules/tables.smk"
include: "rules/report.smk"
include: "rules/evidence.smk"


wildcard_constraints:
    cell="[^/]+",
    dataset="[^/]+",
    evidence="[^/]+",
    image="[^/]+",
    place="[^/]+",
    study="[^/]+",
    weights="[^/]+",


rule all:
    default_target: True
    input:
        "reports/final.html",
        "reports/final.pdf",


onstart:
    # With its limit of jobs a second the scheduler looks around once more each second for every job
    # that has ended (Snakemake's issue 3744), and takes more and more of a core from what is timed.
    # The default limits nothing here; one that somebody types stays.
    limit = workflow.scheduler.job_rate_limiter
    if limit is not None and (limit.max_jobs, limit.timespan) == (100, 1):
        workflow.scheduler.job_rate_limiter = None
    RUN.begin()


onsuccess:
    RUN.finish()


onerror:
    RUN.fail()
