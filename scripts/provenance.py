"""What code a cell runs, by digest: a comment or docstring changes nothing, a line of code does."""

from __future__ import annotations

import ast
import functools
import hashlib
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import strategies

SCRIPTS = Path(__file__).resolve().parent


def closure(*roots: str) -> dict[str, str]:
    """Digests of ``roots`` (files below scripts/) and of all the project's own modules they import.

    Returns {file below scripts/: SHA-256 of its meaning}, sorted. Imports inside functions count;
    modules that are loaded by name (a strategy, a model) must be among ``roots``.
    """
    found: dict[str, str] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name], imports = _module(name, _stamp(SCRIPTS / name))
            waiting.extend(imports)
    return dict(sorted(found.items()))


def cell_code(
    strategy: str, model: str, profile: str = "none", beside: Iterable[str] = ()
) -> dict[str, str]:
    """The code that a cell can reach: loop, strategy, model, instrument and the models beside."""
    named = (f"strategies/{strategy}.py", f"models/{model}.py", f"profiling/{profile}.py")
    return closure("train.py", *named, *(f"models/{name}.py" for name in beside))


def code_of(cell: Mapping) -> dict[str, str]:
    """``cell_code`` of a cell.json."""
    return cell_code(*names_of(cell))


def names_of(cell: Mapping) -> tuple[str, str, str, tuple[str, ...]]:
    """Strategy, model, instrument and the models beside: what of a cell.json decides its code."""
    strategy = cell["strategy"]["name"]
    beside = tuple(strategies.load(strategy).beside(cell))
    return strategy, cell["model"]["name"], cell["training"]["profile"], beside


def combined(digests: dict[str, str]) -> str:
    """One digest for the whole of ``digests``."""
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def constant(file: str, name: str) -> object:
    """The literal that ``file`` (below scripts/) gives to ``name``, read without importing it."""
    for node in ast.parse((SCRIPTS / file).read_bytes()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == name:
            return ast.literal_eval(node.value)
    raise LookupError(f"{file} has no {name}")


def git_state(folder: Path = SCRIPTS) -> dict:
    """{"git_commit", "git_dirty"} of the checkout; both None where there is none.

    Evidence that was just written and is not added yet changes nothing that is measured.
    """
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        others = (":(top)", ":(top,exclude)reports/evidence")
        dirty = bool(_git(folder, "status", "--porcelain", "--", *others))
    except (OSError, subprocess.CalledProcessError):
        return {"git_commit": None, "git_dirty": None}
    return {"git_commit": commit, "git_dirty": dirty}


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _stamp(path: Path) -> tuple[int, int]:
    """Changes when the file does, so that one process may ask again after an edit."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size


@functools.cache
def _module(name: str, stamp: tuple[int, int]) -> tuple[str, tuple[str, ...]]:
    tree = ast.parse((SCRIPTS / name).read_bytes(), filename=name)
    imports = tuple(sorted(set(_imports(tree))))
    _drop_docstrings(tree)
    return hashlib.sha256(_spell(tree).encode()).hexdigest(), imports


def _imports(tree: ast.AST):
    """Files below scripts/ that ``tree`` imports; everything else is somebody else's package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            path = name.replace(".", "/")
            for file in (f"{path}.py", f"{path}/__init__.py"):
                if (SCRIPTS / file).is_file():
                    yield file


def _drop_docstrings(tree: ast.AST) -> None:
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, owners) and ast.get_docstring(node, clean=False) is not None:
            # `pass` keeps a body that held nothing else whole.
            node.body = node.body[1:] or [ast.Pass()]


def _spell(node: object) -> str:
    """A syntax tree as text that does not depend on the Python version.

    ast.dump alone differs between 3.11, 3.12 and 3.13: fields that are new there and empty
    (type_params, ...) are left out here, as are all empty ones, and so are line numbers.
    """
    if isinstance(node, ast.AST):
        fields = ((name, getattr(node, name, None)) for name in node._fields)
        kept = [f"{name}={_spell(value)}" for name, value in fields if value not in (None, [])]
        # A constant None must stay: `x = None` is not `x`.
        if isinstance(node, ast.Constant):
            kept = [f"value={node.value!r}"]
        return f"{type(node).__name__}({','.join(kept)})"
    if isinstance(node, list):
        return "[" + ",".join(_spell(item) for item in node) + "]"
    return repr(node)
