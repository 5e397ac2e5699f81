rule dataset:
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
        "python scripts/bin/parbench dataset --name {wildcards.dataset:q} --entries results/plan/datasets/specs.json"
        " --out {output.data:q} --digest {output.digest:q} 2>&1 | tee {log:q}"
