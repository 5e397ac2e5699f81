"""BERT (Devlin et al. 2019) from the transformers library, in any size."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from parbench.models import _cuts
from parbench.models._options import number, share

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

    from parbench.data.tokens import Vocabulary

SMALL = {"hidden_dim": 12, "depth": 4, "num_heads": 2, "mlp_dim": 24, "max_positions": 32}


def options(hidden_dim: int, depth: int, num_heads: int, mlp_dim: int) -> dict[str, dict]:
    """Return the OPTIONS of a text classifier, with these defaults."""
    return {
        "hidden_dim": number("width of a token", hidden_dim, 16384),
        "depth": number("transformer blocks", depth, 1000),
        "num_heads": number("attention heads of a block", num_heads, 1024),
        "mlp_dim": number("width inside a block's two fully connected layers", mlp_dim, 65536),
        "max_positions": number("largest number of tokens in a text", 512, 65536),
        "dropout": share("dropout of embeddings, attention and branches", 0.1),
    }


def cuts(model: str):
    """Return the function `cuts` for the file of ``model``."""
    return partial(_cuts.transformer, model, "hidden_dim")


def settings(num_classes: int, vocabulary: Vocabulary, options: dict) -> dict:
    """Return the arguments of BertConfig or RobertaConfig."""
    return {
        "vocab_size": vocabulary.size,
        "pad_token_id": vocabulary.pad,
        "hidden_size": options["hidden_dim"],
        "num_hidden_layers": options["depth"],
        "num_attention_heads": options["num_heads"],
        "intermediate_size": options["mlp_dim"],
        "max_position_embeddings": options["max_positions"],
        "hidden_dropout_prob": options["dropout"],
        "attention_probs_dropout_prob": options["dropout"],
        "num_labels": num_classes,
    }


def network(num_classes: int, vocabulary: Vocabulary, options: dict) -> PreTrainedModel:
    """Return the library's own classifier."""
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(**settings(num_classes, vocabulary, options)))


def build(num_classes: int, vocabulary: Vocabulary, options: dict) -> nn.Sequential:
    """Build the model: [B, L] tokens, int64 -> [B, num_classes] logits."""
    from parbench.models import _text

    model: Any = network(num_classes, vocabulary, options)
    head = _text.Head(pooler=model.bert.pooler, dropout=model.dropout, classifier=model.classifier)
    body = model.bert
    return _text.row(body.embeddings, vocabulary.pad, body.encoder.layer, head)
