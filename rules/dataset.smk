rule dataset:
    output:
        data="results/data/{dataset}/data.safetensors",
        digest="results/data/{dataset}/digest.json",
    log:
        "results/data/{dataset}/log.txt",
    localrule: True
    container:
        entered_by_launcher
    params:
        spec=dataset_spec,
        code=code_of("dataset.py"),
    shell:
        "python scripts/dataset.py --name {wildcards.dataset:q} --spec {params.spec:q}"
        " --out {output.data:q} --digest {output.digest:q} 2>&1 | tee {log:q}"
