"""Kinds of datasets, one file each, loaded by name (parbench.data.source).

A file's class ``Kind`` states the keys of its entry in config.yaml and reads what they name.
"""
