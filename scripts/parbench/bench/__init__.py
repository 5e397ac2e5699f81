"""Measure the cost of parbench itself, also against another checkout, and how often verdicts err.

Input: checkouts, used only through their programs' command lines; restarts of A/A pairs.
Output: results/bench.json; a table on the terminal. Only `parbench bench` and `parbench calibrate`
call it.
"""
