# parbench: config + study -> cells -> dataset -> metrics.json -> table.csv -> report.
# Each arrow is a file in rules/ and a command of parbench.
from snakemake.utils import min_version


# common.smk reads config.yaml, since errors of `configfile:` do not name the line. It comes before the
# check of the version: it explains which environment to enter, and another one's Snakemake may be older.
include: "rules/common.smk"


min_version("9.9")


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
    # With a limit on jobs per second, the scheduler wakes up every second once for each job that has
    # ended (Snakemake issue 3744), and takes more and more of a core from timed cells. Runs never reach
    # the default limit, so it is removed; a limit that a user sets stays.
    limit = workflow.scheduler.job_rate_limiter
    if limit is not None and (limit.max_jobs, limit.timespan) == (100, 1):
        workflow.scheduler.job_rate_limiter = None
    or_exit(RUN.begin)


onsuccess:
    or_exit(RUN.finish)


onerror:
    or_exit(RUN.fail)
