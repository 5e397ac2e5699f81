"""Datasets and published weights: from entries of config.yaml to safetensors files with a
digest.json. Planning checks the entries, scripts/ write the files, training loads them.
"""
