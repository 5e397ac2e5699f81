"""Write what a machine measured for a study to one small file, or unpack such a file.

    parbench evidence write quickstart   # -> reports/evidence/<study>-<machine>-<date>.json
    parbench evidence unpack <file> --folder results/evidence

docs/evidence.md says what a file holds, and how reports are made of files from other machines.
"""

import argparse

from parbench.files import user_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add both actions."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    write = actions.add_parser("write", help="write finished studies to reports/evidence/")
    write.add_argument(
        "study", nargs="*", help="name or path of a study (default: those of the last report)"
    )
    write.add_argument(
        "--partial", action="store_true", help="also write studies with missing cells"
    )
    unpack = actions.add_parser("unpack", help="unpack a file into plan, cells and certificates")
    unpack.add_argument("file", type=user_path)
    unpack.add_argument(
        "--folder",
        type=user_path,
        required=True,
        help="where to make a folder with the file's name",
    )


def run(options: argparse.Namespace) -> None:
    """Write or unpack."""
    from parbench.verdicts import evidence

    if options.action == "unpack":
        evidence.unpack(options.file, options.folder)
    else:
        evidence.keep(options.study, options.partial)
