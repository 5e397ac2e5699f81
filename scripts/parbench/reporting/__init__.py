"""The report: plans, tables, metrics and certificates come in, report.json, HTML and PDF go out.

scripts/report.py, closing.py and the rules call it. report.py says which section is where.
"""
