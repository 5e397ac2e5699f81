"""Read CSV files that users write; errors name file, line, column and fix."""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from parbench.errors import ParbenchError
from parbench.files import read_text
from parbench.words import brief

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}  # what spreadsheets write


def read_csv(
    path: str | Path, required: Sequence[str], optional: Sequence[str], hint: str = ""
) -> list[tuple[int, dict[str, str]]]:
    """Return each row's line number and its values by column, stripped of surrounding blanks.

    Empty rows are skipped, and so are columns that are neither ``required`` nor ``optional``.
    Raises ParbenchError if the header lacks a ``required`` column (``hint`` says what else may
    help) or misspells one, or if a row has more or fewer values than the header.
    """
    text = read_text(path)
    first_line = text.lstrip("\n").partition("\n")[0]
    known = {*required, *optional}

    def columns_by(separator: str) -> int:
        return len(known.intersection(map(str.strip, first_line.split(separator))))

    separator = max(SEPARATORS, key=columns_by)
    records = _records(str(path), text, separator)
    line, names = next(records, (1, list[str]()))
    _check_header(f"{path}: line {line}", names, required, optional, hint)
    rows: list[tuple[int, dict[str, str]]] = []
    for line, fields in records:
        extra = fields[len(names) :]
        if len(fields) < len(names) or any(extra):
            raise ParbenchError(
                f"{path}: line {line}: {len(fields)} values, but the header has {len(names)} "
                f"columns separated by {SEPARATORS[separator]}; add what is missing, and put a "
                f"value that holds {separator!r} in quotes"
            )
        rows.append((line, dict(zip(names, fields, strict=False))))
    return rows


def _records(path: str, text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line number and the fields of each record that is not empty."""
    reader = csv.reader(io.StringIO(text), delimiter=separator, skipinitialspace=True, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            fields = [field.strip() for field in next(reader)]
        except StopIteration:
            return
        except csv.Error as error:
            if "end of data" in str(error):
                problem = "a quotation mark is opened in this row and never closed"
            else:
                problem = f"{error} (in the row that begins here, at line {reader.line_num})"
            raise ParbenchError(
                f"{path}: line {line}: {problem}; close quotation marks where a value ends, and "
                "write those inside a value twice"
            ) from None
        if any(fields):
            yield line, fields


def _check_header(
    where: str, names: list[str], required: Sequence[str], optional: Sequence[str], hint: str
) -> None:
    """Raise ParbenchError, beginning with ``where``, if ``names`` cannot be a header."""
    found = brief(", ".join(names), 300) or "an empty file"
    missing = [name for name in required if name not in names]
    for name in names if len(missing) < len(required) else ():
        close = difflib.get_close_matches(name.lower(), [*required, *optional], n=1, cutoff=0.8)
        if name and names.count(name) > 1:
            raise ParbenchError(f"{where}: duplicate column {brief(name)!r}; keep one of them")
        if close and close[0] not in names:
            raise ParbenchError(
                f"{where}: unknown column {brief(name)!r}; did you mean {close[0]!r}?"
            )
    if missing:
        raise ParbenchError(
            f"{where}: the header must name the columns {', '.join(required)}; missing: "
            f"{', '.join(missing)}; found: {found}{'; ' * bool(hint)}{hint}"
        )
