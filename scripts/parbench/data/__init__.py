"""Data sets and published weights: download, verify, convert, load."""
