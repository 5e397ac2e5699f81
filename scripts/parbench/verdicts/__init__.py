"""Turn plans and metrics.json files into tables, claims and evidence.

Called by programs in scripts/ and by `reporting`; it knows nothing of how a report looks.
"""
