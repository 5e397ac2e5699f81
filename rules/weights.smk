rule weights:
    # `ancient`: as for a dataset.
    input:
        entries=ancient(RUN.planned("weights.json")),
    output:
        data="results/weights/{weights}/weights.safetensors",
        digest="results/weights/{weights}/digest.json",
    log:
        "results/weights/{weights}/log.txt",
    # Before all cells.
    priority: 1_000_000
    localrule: RUN.prepares_here
    resources:
        **RUN.preparing,
    params:
        source=RUN.weights_source,
    shell:
        "python scripts/bin/parbench weights --name {wildcards.weights:q} --entries {input.entries:q}"
        " --out {output.data:q} --digest {output.digest:q} 2>&1 | tee {log:q}"
