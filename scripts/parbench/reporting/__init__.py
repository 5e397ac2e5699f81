"""The report: turns plans, tables, metrics and certificates into report.json, HTML and PDF.

scripts/report.py and the rules call it. report.py shows which section is where.
"""
