"""Run all cells: check before Snakemake starts, answer its rules, and decide what is still open.

Only this package runs Snakemake, and the programs that make tables and reports.
"""
