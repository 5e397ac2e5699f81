rule image:
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
        "python scripts/bin/parbench images build {params.name:q} --plan results/plan/images.json"
        " --out {output:q} 2>&1 | tee {log:q}"
