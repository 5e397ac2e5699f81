"""A dataset of texts before conversion, and its tokens.

The tokenizers library cuts every text once for each kind of vocabulary that models use: WordPiece
and byte-level BPE.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from tokenizers.implementations.base_tokenizer import BaseTokenizer

# The padding, first, last and unknown tokens, by kind of vocabulary.
SPECIAL = {
    "wordpiece": ("[PAD]", "[CLS]", "[SEP]", "[UNK]"),
    "bpe": ("<pad>", "<s>", "</s>", "<unk>"),
}
BATCH = 4096  # texts that are tokenized at once


@dataclass(frozen=True)
class Texts:
    """A dataset of texts before conversion; labels int64 [N].

    ``tokenizers`` are by kind of vocabulary; ``vocabulary_sha256`` is of their source files.
    """

    train_texts: list[str]
    train_labels: np.ndarray
    test_texts: list[str]
    test_labels: np.ndarray
    classes: list[str]
    source: str
    source_sha256: str
    tokenizers: dict[str, BaseTokenizer]
    vocabulary_sha256: str

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the labels and, for each vocabulary, the concatenated tokens of all texts, int32,
        without first and last tokens, and the offsets where each text begins, int64 [N + 1].
        """
        import numpy as np

        arrays = {"train_labels": self.train_labels, "test_labels": self.test_labels}
        for kind, tokenizer in self.tokenizers.items():
            for part, texts in (("train", self.train_texts), ("test", self.test_texts)):
                tokens = [
                    np.array(encoding.ids, np.int32)
                    for start in range(0, len(texts), BATCH)
                    for encoding in tokenizer.encode_batch(
                        texts[start : start + BATCH], add_special_tokens=False
                    )
                ]
                arrays[f"{part}_tokens.{kind}"] = np.concatenate(tokens)
                ends = np.cumsum([0, *map(len, tokens)], dtype=np.int64)
                arrays[f"{part}_offsets.{kind}"] = ends
        return arrays

    def metadata(self) -> dict[str, object]:
        """Return metadata stored with the tensors, so that the file's digest covers it."""
        vocabularies = {}
        for kind, tokenizer in self.tokenizers.items():
            pad, first, last, _ = map(tokenizer.token_to_id, SPECIAL[kind])
            size = tokenizer.get_vocab_size()
            vocabularies[kind] = {"size": size, "pad": pad, "first": first, "last": last}
        return {
            "vocabularies": vocabularies,
            "vocabulary_sha256": self.vocabulary_sha256,
            "tokenizers": version("tokenizers"),
        }

    def described(self) -> dict[str, object]:
        """Return nothing, as digest.json needs no further fields for texts."""
        return {}
