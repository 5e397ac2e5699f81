"""Start or stop a Spark cluster on this machine, to try cells that need a cluster.

    parbench spark up     # start a master and workers; print the entry for config.yaml
    parbench spark down   # stop them

Cells can also use any other cluster: docs/spark.md.
"""

import argparse

from parbench.arguments import add_configfile, count, memory, port


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add both actions."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    up = actions.add_parser("up", help="start a master and workers")
    up.add_argument("--workers", type=count, default=2, help="default: 2")
    up.add_argument("--cores", type=count, default=1, help="cores of each worker; default: 1")
    up.add_argument(
        "--memory", type=memory, default="2g", help="memory of each worker's executors; default: 2g"
    )
    up.add_argument("--port", type=port, default=7077, help="port of the master; default: 7077")
    add_configfile(up)
    actions.add_parser("down", help="stop them")


def run(options: argparse.Namespace) -> None:
    """Start or end the cluster."""
    from parbench.launch import spark_cluster
    from parbench.plan import config_files

    if options.action == "down":
        print("parbench: " + ("the cluster is ended" if spark_cluster.down() else "there is none"))
        return
    deployment = config_files.read(options.configfile).resolved_deployment()
    address = spark_cluster.up(
        deployment, options.workers, options.cores, options.memory, options.port
    )
    print(f"parbench: {options.workers} workers with {options.cores} cores each at {address}")
    print(f"for config.yaml, or a file of --configfile:\n  spark: {{master: '{address}'}}")
