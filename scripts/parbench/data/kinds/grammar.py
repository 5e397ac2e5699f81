"""Sentences drawn from a small grammar: learnable texts for machines without a network."""

from __future__ import annotations

import itertools
from random import Random
from typing import ClassVar, Literal

from pydantic import Field

from parbench import files
from parbench.data.text_source import File, TextSource
from parbench.data.texts import SPECIAL, Texts

# The last word of a clause depends on the class; one in four is drawn from any class.
TEMPLATES = {
    "praise": ("delightful", "brilliant", "charming", "superb", "moving", "clever", "graceful"),
    "blame": ("dreadful", "clumsy", "tedious", "shallow", "noisy", "careless", "bleak"),
    "doubt": ("uneven", "curious", "puzzling", "unfinished", "uncertain", "strange", "vague"),
}
PLAIN = ("long", "short", "recent", "famous", "local", "quiet")
THINGS = ("film", "book", "song", "play", "dance", "story", "picture", "speech")
PEOPLE = ("critic", "reader", "neighbour", "teacher", "student", "editor")
VERBS = ("called", "found", "thought", "considered")
FILLERS = ("the", "this", "that", "a", "our", "their")
WORDS = sorted(
    itertools.chain(*TEMPLATES.values(), PLAIN, THINGS, PEOPLE, VERBS, FILLERS, ["and", ","])
)


class Kind(TextSource, frozen=True):
    """Texts of one to four clauses such as `the critic called this film long and clumsy`."""

    kind: Literal["grammar"]
    train_samples: int = Field(ge=3, le=1_000_000, description="number of texts for training")
    test_samples: int = Field(ge=3, le=1_000_000, description="number of further texts for testing")
    seed: int = Field(
        ge=0, lt=2**32, description="random seed; the same one gives the same texts everywhere"
    )
    CLASSES: ClassVar[list[str]] = list(TEMPLATES)

    def files(self) -> list[File]:
        """Return no files, since the texts are drawn."""
        return []

    def read(self) -> Texts:
        """Draw the texts."""
        import numpy as np
        from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer
        from tokenizers.pre_tokenizers import ByteLevel

        parts = [
            [_text(self.seed, part, at) for at in range(count)]
            for part, count in enumerate((self.train_samples, self.test_samples))
        ]
        # WordPiece: all words, and letters for any other. BPE: single bytes.
        letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
        pieces = [*SPECIAL["wordpiece"], *WORDS, *letters, *(f"##{letter}" for letter in letters)]
        symbols = [*SPECIAL["bpe"], *sorted(ByteLevel.alphabet())]
        vocabularies = [
            {token: at for at, token in enumerate(dict.fromkeys(tokens))}
            for tokens in (pieces, symbols)
        ]
        digest = files.digest(["grammar", self.model_dump(), WORDS])
        return Texts(
            train_texts=parts[0],
            train_labels=np.arange(self.train_samples) % len(TEMPLATES),
            test_texts=parts[1],
            test_labels=np.arange(self.test_samples) % len(TEMPLATES),
            classes=self.CLASSES,
            source=f"drawn from a grammar, seed {self.seed}",
            source_sha256=digest,
            tokenizers={
                "wordpiece": BertWordPieceTokenizer(vocabularies[0]),
                "bpe": ByteLevelBPETokenizer(vocabularies[1], []),
            },
            vocabulary_sha256=files.digest(vocabularies),
        )


def _text(seed: int, part: int, at: int) -> str:
    """Return text number ``at`` of a part, of the class ``at`` modulo the number of classes."""
    # Python guarantees the seeding by a string and the stream of `random()`, not of other methods.
    stream = Random(f"parbench grammar {seed} {part} {at}")  # noqa: S311

    def one(words: tuple[str, ...]) -> str:
        return words[int(stream.random() * len(words))]

    classes, own_class = tuple(TEMPLATES), list(TEMPLATES)[at % len(TEMPLATES)]
    clauses = []
    for _ in range(1 + int(stream.random() * 4)):
        last_words = TEMPLATES[own_class] if stream.random() < 0.75 else TEMPLATES[one(classes)]
        person, thing = f"{one(FILLERS)} {one(PEOPLE)}", f"{one(FILLERS)} {one(THINGS)}"
        clauses.append(f"{person} {one(VERBS)} {thing} {one(PLAIN)} and {one(last_words)}")
    return " , ".join(clauses)
