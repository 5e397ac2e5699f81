rule dataset:
    # `ancient`: what it says of other datasets makes no job stale; `source` is what counts.
    input:
        entries=ancient(RUN.planned("datasets/specs.json")),
    output:
        data="results/data/{dataset}/data.safetensors",
        digest="results/data/{dataset}/digest.json",
    log:
        "results/data/{dataset}/log.txt",
    # Before all cells.
    priority: 1_000_000
    localrule: RUN.prepares_here
    resources:
        **RUN.preparing,
    params:
        source=RUN.dataset_source,
    shell:
        "python scripts/bin/parbench dataset --name {wildcards.dataset:q} --entries {input.entries:q}"
        " --out {output.data:q} --digest {output.digest:q} 2>&1 | tee {log:q}"
