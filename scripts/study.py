"""Make a study of a table as a paper prints it.

    python scripts/study.py new mypaper --table table.md \\
        --columns "Model=model, GPUs=devices, img/s=samples_per_second" --given "strategy=ddp"

writes studies/mypaper.yaml, its small copy studies/mypaper-cpu.yaml, the values as printed in
studies/published/mypaper.csv, and prints a claim to start from.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from parbench.audit import draft, printed_table
from parbench.errors import ParbenchError, run_main
from parbench.files import user_path, write_atomically
from parbench.plan import places

NAME = "[a-z0-9][a-z0-9-]{0,63}"


def new(options: argparse.Namespace) -> None:
    """Write the drafts of a study."""
    if not re.fullmatch(NAME, options.name):
        raise ParbenchError(
            f"{options.name!r} is no name of a study; use small letters, digits and hyphens"
        )
    mapped = printed_table.mapped
    printed = printed_table.read(
        options.table, mapped(options.columns), mapped(options.given, "--given")
    )
    rows = draft.renamed(printed.rows, mapped(options.names, "--names"))
    title = options.title or draft.title_of(rows)
    files = {
        places.PUBLISHED / f"{options.name}.csv": draft.values(options.name, rows),
        Path("studies") / f"{options.name}.yaml": draft.study(options.name, title, rows),
    }
    if small := draft.copy(options.name, title, rows):
        files[Path("studies") / f"{options.name}-cpu.yaml"] = small
    for path in files:
        if path.exists():
            raise ParbenchError(f"{path} exists; choose another name, or remove it")
    for path, text in files.items():
        write_atomically(path, text)
        print(path)
    for note in printed.notes:
        print(f"note: {note}")
    print(f"\nA claim to start from, for {places.CLAIMS}:\n{draft.claims(options.name)}")
    print(f"Fill in what the files ask for, then: snakemake -n --config studies='[{options.name}]'")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    made = commands.add_parser("new", help="write the drafts of a study")
    made.set_defaults(run=new)
    made.add_argument("name", help="of the study and of its source")
    made.add_argument("--table", type=user_path, required=True, help="Markdown, plain text or CSV")
    made.add_argument(
        "--columns", required=True, help='"Model=model, GPUs=devices, Time (s)=train_seconds"'
    )
    made.add_argument("--given", default="", help='what no column states, "hardware=A100"')
    made.add_argument(
        "--names", default="", help='ours for the source\'s, "ResNet (ours)=resnet50"'
    )
    made.add_argument("--title", help="of the study")
    options = parser.parse_args()
    places.require_root("scripts/study.py")
    options.run(options)


if __name__ == "__main__":
    run_main(main)
