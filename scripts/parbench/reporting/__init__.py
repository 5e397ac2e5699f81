"""The report: turns plans, tables, metrics and certificates into report.json, HTML and PDF.

`parbench collect` and `render` call it. report.py shows the order of the sections.
"""
