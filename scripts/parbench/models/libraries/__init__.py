"""Models from outside the folder above, such as a library's networks, one module for each source.

Each module defines ``names()``, which returns the networks that exist; ``LISTED``, a phrase on how
a user finds them; ``PACKAGE``, which must be installed; and ``Network(name)``, which has the
attributes that a model file defines.
"""
