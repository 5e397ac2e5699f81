"""Start or end a Spark cluster on this machine, to try cells that need a cluster.

python scripts/spark.py up     # start a master and workers; print the entry for config.yaml
python scripts/spark.py down   # end them

Cells can use any other cluster, too: docs/spark.md.
"""

from __future__ import annotations

import argparse

from parbench.arguments import count, memory, port
from parbench.errors import run_main
from parbench.files import user_path
from parbench.launch import spark_cluster
from parbench.plan import config_files, places


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="action", required=True)
    up = commands.add_parser("up", help="start it")
    up.add_argument("--workers", type=count, default=2, help="default: 2")
    up.add_argument("--cores", type=count, default=1, help="of each worker; default: 1")
    up.add_argument(
        "--memory", type=memory, default="2g", help="of each worker's executors; default: 2g"
    )
    up.add_argument("--port", type=port, default=7077, help="of the master; default: 7077")
    up.add_argument(
        "--configfile", type=user_path, nargs="+", default=[], help="laid over config.yaml"
    )
    commands.add_parser("down", help="end it")
    arguments = parser.parse_args()
    places.require_root("spark.py")
    if arguments.action == "down":
        print("parbench: " + ("the cluster is ended" if spark_cluster.down() else "there is none"))
        return 0
    deployment = config_files.read(arguments.configfile).resolved_deployment()
    address = spark_cluster.up(
        deployment, arguments.workers, arguments.cores, arguments.memory, arguments.port
    )
    print(f"parbench: {arguments.workers} workers with {arguments.cores} cores each at {address}")
    print(f"for config.yaml, or a file of --configfile:\n  spark: {{master: '{address}'}}")
    return 0


if __name__ == "__main__":
    run_main(main)
