"""RoBERTa (Liu et al. 2019) of the transformers library; the defaults are its base model."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    """The library's own classifier."""
    from transformers import RobertaConfig, RobertaForSequenceClassification

    return RobertaForSequenceClassification(
        RobertaConfig(
            vocab_size=vocabulary.size,
            pad_token_id=vocabulary.pad,
            hidden_size=options["hidden_dim"],
            num_hidden_layers=options["depth"],
            num_attention_heads=options["num_heads"],
            intermediate_size=options["mlp_dim"],
            # Its positions are counted from behind the number of padding.
            max_position_embeddings=options["max_positions"] + vocabulary.pad + 1,
            type_vocab_size=1,
            layer_norm_eps=1e-5,
            hidden_dropout_prob=options["dropout"],
            attention_probs_dropout_prob=options["dropout"],
            num_labels=num_classes,
        )
    )


def build(num_classes: int, vocabulary: Vocabulary, options: dict) -> nn.Sequential:
    """[B, L] tokens, int64 -> [B, num_classes] logits."""
    from parbench.models import _text

    theirs = network(num_classes, vocabulary, options)
    body, head = theirs.roberta, _text.Head(True, classifier=theirs.classifier)
    return _text.row(body.embeddings, vocabulary.pad, body.encoder.layer, head)
