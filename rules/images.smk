rule image:
    output:
        "results/images/{image}.json",
    log:
        "results/images/{image}.log",
    localrule: True
    container:
        entered_by_launcher
    params:
        name=lambda wildcards: wildcards.image.partition("-")[0],
    shell:
        "python scripts/images.py build {params.name:q} --plan results/plan/images.json"
        " --out {output:q} 2>&1 | tee {log:q}"
