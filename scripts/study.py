"""Make a study of a table as a paper prints it, and show what a study decides.

    python scripts/study.py new mypaper --table table.md \\
        --columns "Model=model, GPUs=devices, img/s=samples_per_second" --given "strategy=ddp"

writes studies/mypaper.yaml, its small copy studies/mypaper-cpu.yaml, the values as printed in
studies/published/mypaper.csv, and prints a claim to start from. With --folder they are elsewhere,
and `studies` names them by path.

    python scripts/study.py check mypaper

reads the study, its values and claims, and shows the cells, what stands beside each published value
and what decides each claim, without running anything.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
from pathlib import Path

from parbench.audit import draft, printed_table
from parbench.errors import ParbenchError, run_main
from parbench.files import make_folder, user_path, write_atomically
from parbench.plan import config_files, consistency, expansion, places, state
from parbench.terminal import print_text
from parbench.verdicts import forecast, preview

NAME = "[a-z0-9][a-z0-9-]{0,63}"


def new(options: argparse.Namespace) -> None:
    """Write the drafts of a study."""
    if not re.fullmatch(NAME, options.name):
        raise ParbenchError(
            f"{options.name!r} is no name of a study; use small letters, digits and hyphens"
        )
    folder, name = options.folder, options.name
    _check_free(name, folder)
    mapped = printed_table.mapped
    columns, given = mapped(options.columns), mapped(options.given, "--given")
    printed = printed_table.read(options.table, columns, given, measured=True)
    rows = draft.renamed(options.table, printed.rows, mapped(options.names, "--names"))
    title = options.title or draft.title_of(rows)
    schema = os.path.relpath(places.ROOT / "rules/schemas/study.schema.yaml", folder)
    assumed = draft.assumed(printed.rows)
    files = {
        folder / "published" / f"{name}.csv": draft.values(
            name, options.table, rows, printed.texts
        ),
        folder / f"{name}.yaml": draft.study(name, title, rows, schema, assumed),
    }
    if small := draft.copy(name, title, rows, schema, assumed):
        files[folder / f"{name}-cpu.yaml"] = small
    for path, text in files.items():
        make_folder(path.parent)
        write_atomically(path, text)
        print(path)
    for note in (*printed.notes, *draft.merged(printed.rows, rows)):
        print(f"note: {note}")
    for each in assumed:
        print(f"assumed: {each}")
    if claim := draft.claims(name, rows):
        print(f"\nA claim to start from, for {folder}/published/claims.yaml:\n{claim}")
    study = name if folder == places.STUDIES else shlex.quote(str(list(files)[-1]))
    print(f"Fill in what the files ask for, then: python scripts/study.py check {study}")


def _check_free(name: str, folder: Path) -> None:
    """Raise ParbenchError if a study or source called ``name``, or a study called as its copy, is
    there already, in ``folder`` or in the checkout."""
    for path in (folder / f"{name}.yaml", folder / f"{name}-cpu.yaml"):
        if path.stem in places.studies() and folder.resolve() != places.STUDIES.resolve():
            raise ParbenchError(f"parbench has a study {path.stem!r} itself; choose another name")
        if path.exists():
            raise ParbenchError(f"{path} exists; choose another name, or remove it")
    values = folder / "published" / f"{name}.csv"
    if values.exists():
        raise ParbenchError(f"{values} exists; choose another name, or remove it")
    if name in {row.study for row in consistency.published_rows()}:
        raise ParbenchError(
            f"parbench has published values of {name!r} itself; choose another name"
        )


def check(options: argparse.Namespace) -> None:
    """Show a study as it would be run, without running anything. Raises ParbenchError."""
    named = options.study
    if named in config_files.read(options.configfile).studies:
        named = str(places.study(named))  # a configfile may name it by its path
    changes = {"studies": [named]}
    config = config_files.read(options.configfile, changes)
    deployment = config.resolved_deployment()
    consistency.stated_claims()
    plan = expansion.plan(config, deployment, options.configfile, changes)
    (name,) = config.studies
    runnable = plan.runnable(name)
    left = [cell for cell in runnable if state.state(cell, plan)[0] != "done"]
    preview_text = forecast.forecast(plan, left, config.budget_minutes)
    nothing = "all its cells are done" if runnable else "no cell of it runs here"
    for line in (*preview.preview(plan, name), "", str(deployment), *(preview_text or [nothing])):
        print_text(line)


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
    made.add_argument(
        "--folder", type=user_path, default=places.STUDIES, help="where to write them (studies)"
    )
    checked = commands.add_parser("check", help="show what a study runs and decides")
    checked.set_defaults(run=check)
    checked.add_argument("study", help="its name, or the path of its file")
    checked.add_argument(
        "--configfile", type=user_path, action="append", default=[], help="laid over config.yaml"
    )
    options = parser.parse_args()
    places.require_root("scripts/study.py")
    options.run(options)


if __name__ == "__main__":
    run_main(main)
