rule train:
    input:
        data=cell_dataset,
    output:
        metrics="results/cells/{cell}/metrics.json",
    params:
        code=cell_code,
        cell=subpath(output.metrics, parent=True),
        data=subpath(input.data, parent=True),
    log:
        "results/cells/{cell}/log.txt",
    threads: cell_threads
    priority: cell_priority
    container:
        entered_by_launcher
    shell:
        "python {workflow.basedir:q}/scripts/launch.py --cell {params.cell:q}/cell.json --data {params.data:q}"
        " --out {output.metrics:q} --log {log:q}"
