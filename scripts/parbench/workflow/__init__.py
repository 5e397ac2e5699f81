"""One run of all cells: checks before Snakemake starts, what its rules ask, what follows it.

All that runs Snakemake, or programs that make tables and reports, is here.
"""
