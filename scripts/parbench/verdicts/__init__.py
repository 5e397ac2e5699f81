"""From plans and metrics.json to tables, claims, the audit, evidence and certificates.

Called by programs in scripts/ and by `reporting`; it knows nothing of how a report looks.
"""
