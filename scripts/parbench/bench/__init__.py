"""What parbench itself costs, beside another checkout.

In: checkouts, started by their programs' command lines alone. Out: results/bench.json. Nobody but
scripts/bench.py calls it.
"""
