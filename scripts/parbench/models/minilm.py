"""MiniLM-L12-H384 (Microsoft; Wang et al. 2020): BERT with 12 layers of width 384. It learns only
from the labels, without the teacher from which its authors distilled it.
"""

from __future__ import annotations

from parbench.models import _bert

VOCABULARY = "wordpiece"
OPTIONS = _bert.options(hidden_dim=384, depth=12, num_heads=12, mlp_dim=1536)
SMALL = _bert.SMALL

cuts = _bert.cuts("minilm")
network = _bert.network
build = _bert.build
