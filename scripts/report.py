"""The report: plans, tables and metrics -> one report.json -> one HTML file and one PDF."""

from parbench.errors import run_main
from parbench.reporting.report import main

if __name__ == "__main__":
    run_main(main)
