"""Sources of text datasets: files of rows, and vocabularies, each pinned by its digest."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar

import pydantic
from pydantic import Field

from parbench import files
from parbench.data import download
from parbench.data.source import Source
from parbench.data.texts import Texts
from parbench.errors import ParbenchError
from parbench.words import brief

if TYPE_CHECKING:
    from tokenizers.implementations.base_tokenizer import BaseTokenizer


class File(pydantic.BaseModel, extra="forbid", strict=True, frozen=True):
    """A file that is pinned by its size and SHA-256."""

    urls: list[Annotated[str, Field(pattern=download.ADDRESS)]] = Field(
        default=[],
        description="mirrors of the file, or of an archive with it (http://, https:// or file:///, "
        "without a user name), tried in turn",
    )
    member: str = Field(default="", description="name of the file in the zip archive at the urls")
    archive_md5: str = Field(
        default="",
        pattern=r"^[0-9a-f]{32}$",
        description="MD5 of that archive: 32 hexadecimal digits, in lower case",
    )
    path: str = Field(
        default="",
        min_length=1,
        description="path of a local file, instead of a download",
    )
    size: int | None = Field(default=None, ge=1, description="size of the file in bytes")
    sha256: str = Field(
        pattern=r"^[0-9a-f]{64}$",
        description="SHA-256 of the file: 64 hexadecimal digits, in lower case",
    )

    @property
    def name(self) -> str:
        """The path or, without one, the first URL."""
        return self.path or self.urls[0]

    def content(self) -> bytes:
        """Return the verified bytes. Raises ParbenchError if they differ from the digest."""
        if self.path:
            path = files.user_path(self.path, "path")
            try:
                return download.verify(path, self.size, self.sha256).read_bytes()
            except ValueError as reason:
                published = self.member or next(iter(self.urls), None)
                fix = f"give {published}" if published else "correct `path`, or `size` and `sha256`"
                raise ParbenchError(f"{path}: {reason}; {fix}") from None
        if not self.member:
            return download.fetch(self.urls, self.size, self.sha256).read_bytes()
        archive = download.fetch(self.urls, None, self.archive_md5)
        try:
            with zipfile.ZipFile(archive) as opened:
                content = opened.read(self.member)
        # zipfile raises RuntimeError for an encrypted member.
        except (zipfile.BadZipFile, zlib.error, KeyError, RuntimeError) as error:
            raise ParbenchError(
                f"{archive}: {self.member} cannot be read from it ({error}); `member` names a file "
                "of a zip archive"
            ) from None
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise ParbenchError(f"{archive}: {self.member} has another SHA-256 than {self.sha256}")
        return content

    @pydantic.model_validator(mode="after")
    def _has_a_source(self) -> File:
        if not (self.urls or self.path):
            raise ValueError("the key 'urls' (mirrors of the file) is missing; add it, or path")
        if bool(self.member) != bool(self.archive_md5):
            raise ValueError("member and archive_md5 go together: set both or neither")
        return self


def table(
    content: bytes, name: str, delimiter: str, columns: list[str], head: bool
) -> Iterator[tuple[str, list[str]]]:
    """Yield each row of a table: its place, for messages, and its values of ``columns``.

    With ``head`` the first row names the columns; otherwise a row has exactly ``columns``, in this
    order. Empty lines are skipped. Raises ParbenchError, which names the line.
    """
    is_quoted = delimiter != "\t"
    quoting = csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE
    text = io.StringIO(files.text_of(content, name))
    rows = csv.reader(text, delimiter=delimiter, quoting=quoting, strict=True)
    names, positions = columns, list(range(len(columns)))
    first_line, number = 1, 0
    try:
        for row in rows:
            line, first_line = first_line, rows.line_num + 1
            if not row:
                continue
            number += 1
            if head and number == 1:
                names, positions = row, _positions(row, columns, name)
                continue
            # In a file without quotes, lines are rows.
            where = f"{name}: row {number}, line {line}" if is_quoted else f"{name}: line {line}"
            if len(row) != len(names):
                separator = "commas" if is_quoted else "tabs"
                raise ParbenchError(
                    f"{where}: {len(row)} columns between {separator}, {len(names)} are expected"
                )
            yield where, [row[position] for position in positions]
    except csv.Error as error:
        raise ParbenchError(f"{name}: the row that begins in line {first_line}: {error}") from None
    if number <= head:
        raise ParbenchError(f"{name}: it holds no text")


def _positions(names: list[str], columns: list[str], file: str) -> list[int]:
    """Return the positions of ``columns`` in ``names``. Raises ParbenchError unless each is there
    once."""
    for column in columns:
        if (count := names.count(column)) != 1:
            raise ParbenchError(
                f"{file}: {count or 'no'} column{'s' * (count > 1)} {column!r}; its columns are "
                f"{brief(', '.join(names))}"
            )
    return [names.index(column) for column in columns]


# ---------------------------------------------------------------- vocabularies


PUBLISHED = "https://huggingface.co/{}/resolve/main/{}"
VOCABULARIES = {
    "vocab.txt": File(  # BERT's, uncased
        urls=[PUBLISHED.format("google-bert/bert-base-uncased", "vocab.txt")],
        size=231508,
        sha256="07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    ),
    "vocab.json": File(  # RoBERTa's, like the next one
        urls=[PUBLISHED.format("FacebookAI/roberta-base", "vocab.json")],
        size=798293,
        sha256="ed19656ea1707df69134c4af35c8ceda2cc9860bf2c3495026153a133670ab5e",
    ),
    "merges.txt": File(
        urls=[PUBLISHED.format("FacebookAI/roberta-base", "merges.txt")],
        size=456318,
        sha256="1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    ),
}


class TextSource(Source, frozen=True):
    """A dataset entry whose files hold texts; each kind reads them in its own way."""

    vocabularies: str = Field(
        default="",
        min_length=1,
        description="path of a local folder, instead of downloads, with BERT's vocab.txt and "
        "RoBERTa's vocab.json and merges.txt",
    )
    CLASSES: ClassVar[list[str]]
    HOLDS: ClassVar[str] = "texts"

    def rows(self) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
        """Return the label and text of each training sample, then of each test sample."""
        raise NotImplementedError

    def files(self) -> list[File]:
        """Return the files that the rows are read from."""
        raise NotImplementedError

    def read(self) -> Texts:
        """Read the files and the vocabularies."""
        import numpy as np

        train, test = self.rows()
        tokenizers, sha256 = self._tokenizers()
        return Texts(
            train_texts=[text for _, text in train],
            train_labels=np.array([label for label, _ in train], np.int64),
            test_texts=[text for _, text in test],
            test_labels=np.array([label for label, _ in test], np.int64),
            classes=self.CLASSES,
            source=self.files()[0].name,
            source_sha256=files.digest([file.sha256 for file in self.files()]),
            tokenizers=tokenizers,
            vocabulary_sha256=sha256,
        )

    def _tokenizers(self) -> tuple[dict[str, BaseTokenizer], str]:
        """Return tokenizers by kind of vocabulary, and the digest of their files."""
        from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer

        contents = {}
        for name, file in VOCABULARIES.items():
            if self.vocabularies:
                path = files.user_path(self.vocabularies, "vocabularies") / name
                file = file.model_copy(update={"path": str(path)})
            contents[name] = file.content().decode()
        id_by_word = {word: at for at, word in enumerate(contents["vocab.txt"].splitlines())}
        merges = [tuple(line.split(" ")) for line in contents["merges.txt"].splitlines()[1:]]
        tokenizers = {
            "wordpiece": BertWordPieceTokenizer(id_by_word, lowercase=True),
            "bpe": ByteLevelBPETokenizer(json.loads(contents["vocab.json"]), merges),
        }
        return tokenizers, files.digest([file.sha256 for file in VOCABULARIES.values()])


class Parted(TextSource, frozen=True):
    """A source with one file for training and one for testing, read in the same way."""

    train: File = Field(description="the file for training")
    test: File = Field(description="the file for testing")

    def files(self) -> list[File]:
        """Return both files."""
        return [self.train, self.test]

    def rows(self) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
        """Return the rows of both files."""
        return self.rows_of(self.train), self.rows_of(self.test)

    def rows_of(self, file: File) -> list[tuple[int, str]]:
        """Return the label and text of each sample of ``file``."""
        raise NotImplementedError


def labeled(label: str, names: list[str], where: str) -> int:
    """Return the index of ``label`` in ``names``. Raises ParbenchError if it is not there."""
    if label not in names:
        raise ParbenchError(f"{where}: the label {brief(label)!r} is not one of {', '.join(names)}")
    return names.index(label)
