"""What parbench itself costs, beside another checkout; and how often its verdicts err.

In: checkouts, started by their programs' command lines alone; restarts of A/A pairs. Out:
results/bench.json; a table on the terminal. Nobody but scripts/bench.py and scripts/calibrate.py
calls it.
"""
