"""DistilBERT (Sanh et al. 2019) from the transformers library; by default its base model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parbench.models import _bert

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    from parbench.data.tokens import Vocabulary

VOCABULARY = "wordpiece"
OPTIONS = _bert.options(hidden_dim=768, depth=6, num_heads=12, mlp_dim=3072)
SMALL = _bert.SMALL

cuts = _bert.cuts("distilbert")


def network(num_classes: int, vocabulary: Vocabulary, options: dict) -> PreTrainedModel:
    """Return the library's own classifier."""
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    settings: Any = DistilBertConfig  # its annotations omit some arguments
    return DistilBertForSequenceClassification(
        settings(
            vocab_size=vocabulary.size,
            pad_token_id=vocabulary.pad,
            dim=options["hidden_dim"],
            n_layers=options["depth"],
            n_heads=options["num_heads"],
            hidden_dim=options["mlp_dim"],
            max_position_embeddings=options["max_positions"],
            dropout=options["dropout"],
            attention_dropout=options["dropout"],
            num_labels=num_classes,
        )
    )


def build(num_classes: int, vocabulary: Vocabulary, options: dict) -> nn.Sequential:
    """Build the model: [B, L] tokens, int64 -> [B, num_classes] logits."""
    from torch import nn

    from parbench.models import _text, _vit

    model: Any = network(num_classes, vocabulary, options)
    head = _text.Head(
        token=_vit.ClassToken(),
        pre_classifier=model.pre_classifier,
        activation=nn.ReLU(),
        dropout=model.dropout,
        classifier=model.classifier,
    )
    body = model.distilbert
    return _text.row(body.embeddings, vocabulary.pad, body.transformer.layer, head)
