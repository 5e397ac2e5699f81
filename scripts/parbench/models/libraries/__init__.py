"""Models that are no file of the folder above, one module for each origin: a library's networks.

Each module defines ``names()``, the networks that exist; ``LISTED``, how a user finds them, in
words; ``PACKAGE``, which must be installed; and ``Network(name)``, which has what a model file
defines.
"""
