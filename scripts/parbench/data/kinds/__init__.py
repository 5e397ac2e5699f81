"""Kinds of datasets, one file each, loaded by name (parbench.data.source).

A file's class ``Kind`` defines the keys of an entry in config.yaml and reads the dataset.
"""
