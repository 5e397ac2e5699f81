rule dataset:
    output:
        data="results/data/{dataset}/data.safetensors",
        digest="results/data/{dataset}/digest.json",
    log:
        "results/data/{dataset}/log.txt",
    localrule: PREPARE_HERE
    container:
        entered_by_launcher
    resources:
        **PREPARING,
    params:
        source=lambda wildcards: or_raise(RUN.dataset_source, wildcards.dataset),
    shell:
        "python scripts/dataset.py --name {wildcards.dataset:q} --datasets results/plan/datasets/specs.json"
        " --out {output.data:q} --digest {output.digest:q} 2>&1 | tee {log:q}"
