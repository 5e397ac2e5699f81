rule train:
    input:
        data=RUN.cell_dataset,
        weights=RUN.cell_weights,
        image=RUN.cell_image,
    output:
        metrics="results/cells/{cell}/metrics.json",
    log:
        "results/cells/{cell}/log.txt",
    priority: RUN.cell_priority
    threads: RUN.cell_threads
    resources:
        **RUN.resources(),
    params:
        identity=RUN.cell_identity,
        cell=subpath(output.metrics, parent=True),
        data=subpath(input.data, parent=True),
    shell:
        "exec python scripts/bin/parbench launch --cell {params.cell:q}/cell.json --data {params.data:q}"
        " --out {output.metrics:q} --log {log:q}"


# Cells whose weights other cells predict with; these weights are kept.
use rule train as train_and_keep with:
    output:
        metrics="results/cells/{cell}/metrics.json",
        weights="results/cells/{cell}/weights.safetensors",
        digest="results/cells/{cell}/weights.json",
    wildcard_constraints:
        cell=RUN.keeps_weights,


ruleorder: train_and_keep > train
