"""From plans and metrics.json to tables, claims, the audit, evidence and certificates.

Programs in scripts/ and the room `reporting` call it; it knows nothing of how a report looks.
"""
