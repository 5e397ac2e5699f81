"""From plans and metrics.json to tables, claims and evidence.

Called by programs in scripts/ and by `reporting`; it knows nothing of how a report looks.
"""
