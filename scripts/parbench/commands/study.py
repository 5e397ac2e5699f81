"""Draft a study from a paper's table, or show what a study runs and decides.

    parbench study new mypaper --table table.md \\
        --columns "Model=model, GPUs=devices, img/s=samples_per_second" --given "strategy=ddp"

writes studies/mypaper.yaml, its small copy studies/mypaper-cpu.yaml, and the values as printed in
studies/published/mypaper.csv, and prints a claim to start from. With --folder, the files are
written there, and `studies` must name them by path.

    parbench study check mypaper

reads the study, its values and claims, and shows the cells, what is compared with each published
value and what decides each claim, without running anything.
"""

import argparse

from parbench.arguments import add_configfile
from parbench.files import user_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add both actions."""
    actions = parser.add_subparsers(required=True, dest="action", metavar="ACTION")
    new = actions.add_parser("new", help="write the drafts of a study")
    new.add_argument("name", help="name of the study and of its source")
    new.add_argument("--table", type=user_path, required=True, help="Markdown, plain text or CSV")
    new.add_argument(
        "--columns", required=True, help='"Model=model, GPUs=devices, Time (s)=train_seconds"'
    )
    new.add_argument(
        "--given", default="", help='what the table does not say, such as "hardware=A100"'
    )
    new.add_argument(
        "--names",
        default="",
        help='names to use instead of the source\'s, "ResNet (ours)=resnet50"',
    )
    new.add_argument("--title", help="title of the study")
    new.add_argument("--folder", type=user_path, help="where to write them (default: studies)")
    check = actions.add_parser("check", help="show what a study runs and decides")
    check.add_argument("study", help="its name, or the path of its file")
    add_configfile(check, beside=True)


def run(options: argparse.Namespace) -> None:
    """Write the drafts, or show the study."""
    from parbench.plan import places

    if options.action == "check":
        from parbench.verdicts import preview

        preview.show(options.study, options.configfile)
        return
    from parbench.audit import new_study

    new_study.write(
        options.name,
        options.table,
        options.columns,
        given=options.given,
        names=options.names,
        title=options.title,
        folder=options.folder or places.STUDIES,
    )
