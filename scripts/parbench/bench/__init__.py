"""Measure what parbench itself costs, against another checkout, and how often its verdicts err.

Input: checkouts, started only through their programs' command lines; restarts of A/A pairs.
Output: results/bench.json; a table on the terminal. Only `parbench bench` and `parbench calibrate`
call it.
"""
