"""Write the drafts of a study from a table as a paper prints it."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from parbench.audit import draft, printed_table
from parbench.errors import ParbenchError
from parbench.files import make_folder, write_atomically
from parbench.plan import consistency, places

NAME = "[a-z0-9][a-z0-9-]{0,63}"


def write(
    name: str,
    table: Path,
    columns: str,
    *,
    given: str = "",
    names: str = "",
    title: str | None = None,
    folder: Path = places.STUDIES,
) -> None:
    """Write the drafts of the study ``name`` into ``folder``, and print what they assume.

    ``table``: as a paper prints it; ``columns``, ``given`` and ``names``: see `parbench study new
    --help`. Raises ParbenchError.
    """
    if not re.fullmatch(NAME, name):
        raise ParbenchError(
            f"{name!r} is not a valid study name; use lowercase letters, digits and hyphens"
        )
    _check_free(name, folder)
    mapped = printed_table.mapped
    printed = printed_table.read(table, mapped(columns), mapped(given, "--given"), measured=True)
    rows = draft.renamed(table, printed.rows, mapped(names, "--names"))
    title = title or draft.title_of(rows)
    schema = os.path.relpath(places.ROOT / "rules/schemas/study.schema.yaml", folder)
    assumed = draft.assumed(printed.rows)
    files = {
        folder / "published" / f"{name}.csv": draft.values(name, table, rows, printed.texts),
        folder / f"{name}.yaml": draft.study(name, title, rows, schema, assumed),
    }
    if small := draft.copy(name, title, rows, schema, assumed):
        files[folder / f"{name}-cpu.yaml"] = small
    for path, text in files.items():
        make_folder(path.parent)
        write_atomically(path, text)
        print(path)
    for note in (*printed.notes, *draft.merged(printed.rows, rows)):
        print(f"note: {note}")
    for each in assumed:
        print(f"assumed: {each}")
    if claim := draft.claims(name, rows):
        print(f"\nA claim to start from, for {folder}/published/claims.yaml:\n{claim}")
    study = name if folder == places.STUDIES else shlex.quote(str(list(files)[-1]))
    print(f"Fill in what the files ask for, then: parbench study check {study}")


def _check_free(name: str, folder: Path) -> None:
    """Raise ParbenchError if ``folder`` or the checkout already has a study or source named
    ``name``, or a study with the name of its small copy."""
    for path in (folder / f"{name}.yaml", folder / f"{name}-cpu.yaml"):
        if path.stem in places.studies() and folder.resolve() != places.STUDIES.resolve():
            raise ParbenchError(f"parbench already has a study {path.stem!r}; choose another name")
        if path.exists():
            raise ParbenchError(f"{path} exists; choose another name, or remove it")
    values = folder / "published" / f"{name}.csv"
    if values.exists():
        raise ParbenchError(f"{values} exists; choose another name, or remove it")
    if name in {row.study for row in consistency.published_rows()}:
        raise ParbenchError(
            f"parbench already has published values of {name!r}; choose another name"
        )
