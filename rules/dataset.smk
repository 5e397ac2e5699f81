rule dataset:
    output:
        data="results/data/{dataset}/data.safetensors",
        digest="results/data/{dataset}/digest.json",
    params:
        spec=dataset_spec,
        code=code_of("dataset.py"),
    log:
        "results/data/{dataset}/log.txt",
    container:
        entered_by_launcher
    localrule: True
    shell:
        "python {workflow.basedir:q}/scripts/dataset.py --name {wildcards.dataset:q} --spec {params.spec:q}"
        " --out {output.data:q} --digest {output.digest:q} --log {log:q}"
