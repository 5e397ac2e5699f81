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
        code=RUN.cell_code,
        cell=subpath(output.metrics, parent=True),
        data=subpath(input.data, parent=True),
    shell:
        "exec python scripts/launch.py --cell {params.cell:q}/cell.json --data {params.data:q}"
        " --out {output.metrics:q} --log {log:q}"
