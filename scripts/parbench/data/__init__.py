"""Datasets and published weights: entries of config.yaml come in, files of safetensors with a
digest.json go out, which ranks load. Planning checks entries, scripts/ make the files, training
loads them.
"""
