"""Measure on a bare machine: pack a kit here, run it there, and take its results home.

    python scripts/kit.py pack                                # -> kit/
    python3 kit/scripts/kit.py run --minutes 9.5 --out <out>  # there; repeat until all is done
    python scripts/kit.py home <out>/results.json             # checked, -> results/

`run` needs only torch, torchvision and numpy. The machine keeps nothing, so each visit takes a new
kit, which `pack` writes after `home`. See docs/evidence.md.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from parbench.arguments import duration
from parbench.errors import run_main
from parbench.files import user_path


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="action", required=True)
    pack = commands.add_parser("pack", help="what is not measured yet -> a folder to carry there")
    pack.add_argument("--out", type=user_path, default=Path("kit"), help="default: kit")
    run = commands.add_parser("run", help="there: cell after cell, until the time is over")
    run.add_argument("--minutes", type=duration, default=9.5, help="that the command may take")
    run.add_argument("--out", type=user_path, required=True, help="folder for results.json")
    work = Path(tempfile.gettempdir(), "parbench-kit")
    run.add_argument("--work", type=user_path, default=work, help=f"default: {work}")
    home = commands.add_parser("home", help="results.json -> results/, checked")
    home.add_argument("results", type=user_path, nargs="+", help="results.json of each visit")
    for command in (pack, home):
        command.add_argument("--order", type=user_path, default=Path("profiles/kit.yaml"))
        command.add_argument(
            "--configfile",
            type=user_path,
            nargs="+",
            default=[],
            help="laid over config.yaml and profiles/gpu.yaml",
        )
    arguments = parser.parse_args()
    if arguments.action == "run":
        from parbench.launch import kit

        return kit.run(
            kit.ROOT, arguments.out.absolute(), arguments.work.absolute(), arguments.minutes
        )
    from parbench.launch import packing  # imported late: a bare machine lacks its packages

    files = [Path("profiles/gpu.yaml"), *arguments.configfile]

    if arguments.action == "pack":
        packed = packing.pack(arguments.order, files, arguments.out)
        print(f"{arguments.out}: {len(packed.cells)} cells are left to measure")
        return 0
    for path in arguments.results:
        results, studies = packing.home(path, arguments.order, files)
        print(f"{path}: {len(results.runs)} results")
        for cell, failure in results.failed.items():
            print(f"  {cell}: {failure.sentence}")
        print(f"  keep them: make evidence ARGS='--partial {' '.join(studies)}'")
    return 0


if __name__ == "__main__":
    run_main(main)
