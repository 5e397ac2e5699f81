"""Make the report: plans, tables and metrics -> report.json -> an HTML file and a PDF."""

from parbench.errors import run_main
from parbench.reporting.report import main

if __name__ == "__main__":
    run_main(main)
