rule image:
    output:
        "results/images/{image}.json",
    log:
        "results/images/{image}.log",
    localrule: PREPARE_HERE
    container:
        entered_by_launcher
    # None is built beside a cell that is timed.
    threads: all_cores
    resources:
        **PREPARING,
    params:
        name=lambda wildcards: wildcards.image.partition("-")[0],
    shell:
        "python scripts/images.py build {params.name:q} --plan results/plan/images.json"
        " --out {output:q} 2>&1 | tee {log:q}"
