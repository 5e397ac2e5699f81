"""TinyBERT (Huawei; Jiao et al. 2020): BERT with 4 layers of width 312. It learns only from the
labels, without the teacher from which its authors distilled it.
"""

from __future__ import annotations

from parbench.models import _bert

VOCABULARY = "wordpiece"
OPTIONS = _bert.options(hidden_dim=312, depth=4, num_heads=12, mlp_dim=1200)
SMALL = _bert.SMALL

cuts = _bert.cuts("tinybert")
network = _bert.network
build = _bert.build
