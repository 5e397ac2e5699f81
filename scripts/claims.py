"""Show what the last report says of claims, from results/claims.json.

python scripts/claims.py list          # a line for each
python scripts/claims.py show <claim>  # its parts and comparisons, what they rest on and lack
python scripts/claims.py junit         # as JUnit XML, for a CI service
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from parbench import by_schema
from parbench.errors import ParbenchError, run_main
from parbench.files import read_record, user_path
from parbench.plan import places
from parbench.terminal import print_text
from parbench.verdicts import claims_json
from parbench.words import nearest


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=user_path, default=Path("results/claims.json"), help="default: %(default)s"
    )
    commands = parser.add_subparsers(dest="action", required=True)
    commands.add_parser("list", help="a line for each claim")
    show = commands.add_parser("show", help="one claim in full")
    show.add_argument("claim", help="its name in studies/published/claims.yaml")
    commands.add_parser("junit", help="JUnit XML of all claims")
    options = parser.parse_args()
    places.require_root("claims.py")
    if not options.data.exists():
        other = Path("results/unfinished/claims.json")
        hint = f"; --data {other} is of the run that stopped" if other.exists() else ""
        raise ParbenchError(f"{options.data}: no such file; make report writes it{hint}")
    made = read_record(options.data, "claims")
    by_schema.check(made, "judged", str(options.data), "make report writes it anew")
    if options.action == "junit":
        sys.stdout.write(claims_json.junit(made))
    elif options.action == "list":
        if not made["claims"]:
            print_text(
                "the last report judges no claims: its studies make none (`claims`, `published`)"
            )
        for claim in made["claims"]:
            print_text(f"{claim['name']}: {claim['sentence']} ({claim['study']})")
    else:
        found = [claim for claim in made["claims"] if claim["name"] == options.claim]
        if not found:
            names = {claim["name"] for claim in made["claims"]}
            hint = nearest(options.claim, names)
            raise ParbenchError(f"{options.data}: no claim {options.claim!r}{hint}")
        for claim in found:
            print_text("\n".join(claims_json.shown(claim)))
    return 0


if __name__ == "__main__":
    run_main(main)
