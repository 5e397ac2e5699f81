"""Turn plans and metrics.json files into tables, claims and evidence.

Called by commands, by `workflow` and by `reporting`; it knows nothing of how a report looks.
"""
