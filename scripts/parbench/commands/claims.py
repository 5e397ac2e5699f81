"""Show what the last report says about claims, from results/claims.json.

parbench claims list          # a line for each
parbench claims show <claim>  # its parts, comparisons and cells, and what is missing
parbench claims junit         # as JUnit XML, for a CI service
"""

import argparse
import sys
from pathlib import Path

from parbench.files import user_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the file and the actions."""
    parser.add_argument(
        "--data", type=user_path, default=Path("results/claims.json"), help="default: %(default)s"
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("list", help="a line for each claim")
    show = actions.add_parser("show", help="one claim in full")
    show.add_argument("claim", help="its name in studies/published/claims.yaml")
    actions.add_parser("junit", help="JUnit XML of all claims")


def run(options: argparse.Namespace) -> None:
    """Print the claims."""
    from parbench.terminal import print_text
    from parbench.verdicts import claims_json

    made = claims_json.read(options.data)
    if options.action == "junit":
        sys.stdout.write(claims_json.junit(made))
    elif options.action == "show":
        for claim in claims_json.find(made, options.claim, options.data):
            print_text("\n".join(claims_json.shown(claim)))
    else:
        if not made["claims"]:
            print_text(
                "the last report judges no claims: its studies make none (`claims`, `published`)"
            )
        for claim in made["claims"]:
            print_text(f"{claim['name']}: {claim['sentence']} ({claim['study']})")
