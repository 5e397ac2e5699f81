"""RoBERTa (Liu et al. 2019) from the transformers library; by default its base model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parbench.models import _bert

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    from parbench.data.tokens import Vocabulary

VOCABULARY = "bpe"
OPTIONS = _bert.options(hidden_dim=768, depth=12, num_heads=12, mlp_dim=3072)
SMALL = _bert.SMALL

cuts = _bert.cuts("roberta")


def network(num_classes: int, vocabulary: Vocabulary, options: dict) -> PreTrainedModel:
    """Return the library's own classifier."""
    from transformers import RobertaConfig, RobertaForSequenceClassification

    settings = _bert.settings(num_classes, vocabulary, options)
    # RoBERTa numbers positions from the padding id + 1.
    settings["max_position_embeddings"] += vocabulary.pad + 1
    settings |= {"type_vocab_size": 1, "layer_norm_eps": 1e-5}
    return RobertaForSequenceClassification(RobertaConfig(**settings))


def build(num_classes: int, vocabulary: Vocabulary, options: dict) -> nn.Sequential:
    """Build the model: [B, L] tokens, int64 -> [B, num_classes] logits."""
    from parbench.models import _text

    model: Any = network(num_classes, vocabulary, options)
    body, head = model.roberta, _text.Head(classifier=model.classifier)
    return _text.row(body.embeddings, vocabulary.pad, body.encoder.layer, head)
