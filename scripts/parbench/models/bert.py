"""BERT (Devlin et al. 2019) from the transformers library; by default its base model."""

from __future__ import annotations

from parbench.models import _bert

VOCABULARY = "wordpiece"
OPTIONS = _bert.options(hidden_dim=768, depth=12, num_heads=12, mlp_dim=3072)
SMALL = _bert.SMALL

cuts = _bert.cuts("bert")
network = _bert.network
build = _bert.build
