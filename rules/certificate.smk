rule certificate:
    # `ancient`: a plan also has titles and tables; `certified` is what counts.
    input:
        plans=ancient(RUN.certified_plans),
        image=RUN.certified_image,
    output:
        "results/certificates/{place}.json",
    log:
        "results/certificates/{place}.log",
    # After the cells, for which users wait, and never beside a timed cell.
    priority: -1_000_000
    localrule: RUN.prepares_here
    threads: ALL_CORES
    resources:
        **RUN.preparing,
    params:
        certified=RUN.certified,
        python=RUN.certified_python,
    shell:
        "python scripts/bin/parbench certificate --plan {input.plans:q} --place {wildcards.place:q} {params.python:q} --out {output:q}"
        " >{log:q} 2>&1 && tail -n 1 {log:q} || {{ cat {log:q} >&2; exit 1; }}"
