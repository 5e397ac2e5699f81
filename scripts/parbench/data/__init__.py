"""Datasets and published weights: from entries of config.yaml to safetensors files with a
digest.json. Planning checks the entries, this package writes the files, training loads them.
"""
