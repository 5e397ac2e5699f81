"""The summary at the end of a run: the results of the report's studies, and its files."""

from __future__ import annotations

from pathlib import Path

from parbench.files import read_record
from parbench.verdicts import terminal
from parbench.verdicts.rows import read_rows

REPORTS = (Path("reports/final.html"), Path("reports/final.pdf"))


def main() -> None:
    """Print the table of every study in the report, the claims' verdicts and its files."""
    source = Path("results/report.json")
    report = (
        read_record(source, "studies", "claims")
        if source.exists()
        else {"studies": [], "claims": None}
    )
    for study in report["studies"]:
        table = Path(f"results/tables/{study['name']}.csv")
        if table.exists():
            terminal.say(f"{terminal.closing(read_rows(table))}\n")
    if claims := report["claims"]:
        terminal.say("\n".join([claims["sentence"], *terminal.aligned(claims["terminal"]), ""]))
    for path in filter(Path.exists, REPORTS):
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
