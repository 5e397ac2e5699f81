"""Kinds of datasets, one file each, loaded by name (parbench.data.source).

The class ``Kind`` of a file defines the keys of an entry in config.yaml and reads the dataset.
"""
