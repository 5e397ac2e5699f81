"""Check that strategies compute the same: each against eager training, on one batch.

    parbench certify --model resnet18 --out certificate.json

The first step's gradients, three steps' losses and the weights after them are compared, in real
processes. The status is 1 if something differs. docs/equivalence.md says what is compared and how
to read the result. `parbench report` certifies what its studies use automatically.
"""

import argparse
from pathlib import Path

ANYWHERE = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to certify, and the file to write."""
    from parbench import models

    selection = parser.add_mutually_exclusive_group()
    selection.add_argument(
        "--model", action="append", choices=models.names(), help="default: all; repeatable"
    )
    selection.add_argument(
        "--plan", type=Path, nargs="+", help="certify what these studies' plans use"
    )
    parser.add_argument("--place", default="host", help="label of the image it runs in")
    parser.add_argument("--out", type=Path, help="certificate to write")


def run(options: argparse.Namespace) -> int:
    """Certify; return 1 if, without --plan, something differs from eager."""
    from parbench.equivalence import certify

    if options.plan is not None:
        # Status 0: the report shows what differs, and a strategy may differ on purpose.
        certify.certify_plans(options.plan, options.out, options.place)
        return 0
    return int(certify.certify_models(options.model, options.out, options.place) > 0)
