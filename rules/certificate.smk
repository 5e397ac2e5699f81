rule certificate:
    input:
        image=certified_image,
    output:
        "results/certificates/{place}.json",
    log:
        "results/certificates/{place}.log",
    localrule: PREPARE_HERE
    container:
        entered_by_launcher
    threads: all_cores
    resources:
        **PREPARING,
    params:
        plans=certified_plans,
        wanted=lambda wildcards: files.digest(certified(wildcards)),
        code=lambda wildcards: certificate.code(certified(wildcards)),
    shell:
        "python scripts/certificate.py --plan {params.plans:q} --place {wildcards.place:q} --out {output:q}"
        " 2>&1 | tee {log:q}"
