rule image:
    # `ancient`: as for a dataset; an image's name says what it is built from.
    input:
        plan=ancient(RUN.planned("images.json")),
    output:
        "results/images/{image}.json",
    log:
        "results/images/{image}.log",
    # Before all cells.
    priority: 1_000_000
    localrule: RUN.prepares_here
    # Never beside a timed cell.
    threads: ALL_CORES
    resources:
        **RUN.preparing,
    params:
        name=lambda wildcards: wildcards.image.partition("-")[0],
    shell:
        "python scripts/bin/parbench images build {params.name:q} --plan {input.plan:q}"
        " --out {output:q} 2>&1 | tee {log:q}"
