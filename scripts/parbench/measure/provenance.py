"""What code a cell runs, by digest: a comment or docstring changes nothing, a line of code does."""

from __future__ import annotations

import ast
import functools
import hashlib
import itertools
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from parbench import strategies
from parbench.cell import Cell, Pair

SCRIPTS = Path(__file__).resolve().parents[2]  # holds the package


def closure(*roots: str) -> dict[str, str]:
    """Digests of the modules ``roots`` and of all of parbench's own modules that they import.

    Returns {module: SHA-256 of its meaning}, sorted. Imports inside functions count, and so do the
    packages that a module lies in; those for type checkers alone do not. Modules that are loaded by
    name (a strategy, a model) must be among ``roots``. Raises LookupError for an import that cannot
    be followed.
    """
    found: dict[str, str] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in found:
            file = _file(name)
            if file is None:
                raise LookupError(f"there is no module {name} below {SCRIPTS}")
            found[name], imports = _module(name, file, _stamp(file))
            waiting.extend(imports)
    return dict(sorted(found.items()))


def cell_code(
    strategy: str, model: str, profile: str = "none", companions: Iterable[str] = ()
) -> dict[str, str]:
    """The code that a cell can reach: loop, strategy, model, instrument and companions."""
    return closure(
        "parbench.training.train",
        f"parbench.strategies.{strategy}",
        f"parbench.training.{strategies.load(strategy).ENGINE}",
        f"parbench.measure.profiling.{profile}",
        *(f"parbench.models.{name}" for name in (model, *companions)),
    )


def code_of(cell: Cell | Pair) -> dict[str, str]:
    """``cell_code`` of ``cell``; of a pair that of all its sides, and how they take turns."""
    found = {key: value for side in cell.sides for key, value in cell_code(*names_of(side)).items()}
    if len(cell.sides) > 1:
        found |= closure("parbench.training.turns")
    return dict(sorted(found.items()))


def names_of(cell: Cell) -> tuple[str, str, str, tuple[str, ...]]:
    """Strategy, model, instrument and companions: what of a cell decides its code."""
    companions = tuple(strategies.of(cell).companions)
    return cell.strategy.name, cell.model.name, cell.training.profile, companions


def combined(digests: dict[str, str]) -> str:
    """One digest for the whole of ``digests``."""
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


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


def _file(module: str) -> Path | None:
    """The file of a module or package below scripts/."""
    path = SCRIPTS / module.replace(".", "/")
    return next((f for f in (path.with_suffix(".py"), path / "__init__.py") if f.is_file()), None)


@functools.cache
def _module(name: str, file: Path, stamp: tuple[int, int]) -> tuple[str, tuple[str, ...]]:
    tree = ast.parse(file.read_bytes(), filename=str(file))
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    imports = set(itertools.accumulate(package.split("."), "{}.{}".format)) - {name, ""}
    for node in _executed(tree):
        imports.update(_imported(node, package))
    _drop_docstrings(tree)
    return hashlib.sha256(_spell(tree).encode()).hexdigest(), tuple(sorted(imports))


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes below ``node`` but those under `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and getattr(child.test, "id", None) == "TYPE_CHECKING":
            continue
        yield child
        yield from _executed(child)


def _imported(node: ast.AST, package: str) -> Iterator[str]:
    """parbench's own modules that an import statement loads; any other node loads none."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.partition(".")[0] == "parbench":
                yield alias.name
    elif isinstance(node, ast.ImportFrom):
        parents = package.split(".")
        above = parents[: len(parents) + 1 - node.level] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        if base.partition(".")[0] == "parbench":
            yield base
            for alias in node.names:
                if _file(f"{base}.{alias.name}") is not None:
                    yield f"{base}.{alias.name}"


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
