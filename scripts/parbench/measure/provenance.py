"""Digests of the code that a cell runs. They ignore comments and docstrings."""

from __future__ import annotations

import ast
import functools
import hashlib
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from parbench import git, models, strategies
from parbench.cell import Cell, Pair

SCRIPTS = Path(__file__).resolve().parents[2]  # the folder that holds the package


def closure(*roots: str) -> dict[str, str]:
    """Return digests of the modules ``roots`` and of all parbench modules that they import.

    The result is {module: SHA-256 of its syntax tree}, sorted. It includes imports inside functions
    and the packages that contain a module, but not imports under TYPE_CHECKING. Modules loaded by
    name (a strategy, a model) must be among ``roots``. Raises LookupError if a module does not
    exist.
    """
    digests: dict[str, str] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in digests:
            file = _file(name)
            if file is None:
                raise LookupError(f"there is no module {name} below {SCRIPTS}")
            found = _module(name, file, _stamp(file))
            digests[name] = found.digest
            waiting.extend(found.imports)
    return dict(sorted(digests.items()))


def cell_code(
    strategy: str, model: str, profile: str = "none", companions: Iterable[str] = ()
) -> dict[str, str]:
    """Return digests of the code that a cell can reach: loop, strategy, models and profiler.

    ``companions``: the models that train at the same time (`beside`).
    """
    return closure(
        "parbench.training.train",
        f"parbench.strategies.{strategy}",
        f"parbench.training.{strategies.load(strategy).ENGINE}",
        f"parbench.measure.profiling.{profile}",
        *map(models.module, (model, *companions)),
    )


Names = tuple[str, str, str, tuple[str, ...]]


def code_of(cell: Cell | Pair) -> dict[str, str]:
    """Return ``cell_code`` of ``cell``; for a pair, of both sides and of the code for turns."""
    return code_named(tuple(map(names_of, cell.sides)))


def code_named(sides: Sequence[Names]) -> dict[str, str]:
    """Return ``code_of`` a cell whose ``sides`` have these names, as ``names_of`` gives them."""
    digests = {key: value for names in sides for key, value in cell_code(*names).items()}
    if len(sides) > 1:
        turns = {strategies.load(strategy).TURNS for strategy, *_ in sides}
        digests |= closure(*(f"parbench.training.{name}" for name in turns))
    return dict(sorted(digests.items()))


def names_of(cell: Cell) -> Names:
    """Return a cell's strategy, model, profile, and companions (`beside`), which decide its
    code."""
    companions = tuple(strategies.of(cell).companions)
    return cell.strategy.name, cell.model.name, cell.training.profile, companions


def packages_of(module: str) -> frozenset[str]:
    """Return the third-party packages that ``module`` itself imports."""
    file = _file(module)
    assert file is not None
    return _module(module, file, _stamp(file)).packages


def combined(digests: dict[str, str]) -> str:
    """Return one digest of all ``digests``."""
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def git_state(folder: Path = SCRIPTS) -> git.GitState:
    """Return git_commit and git_dirty of the checkout with ``folder``; both None without git."""
    return git.state(folder.parent)


def _stamp(path: Path) -> tuple[int, int]:
    """Return a cache key that changes with the file, so that a running process notices an edit."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def _file(module: str) -> Path | None:
    """Return the file of a module or package below scripts/; None if there is none."""
    path = SCRIPTS / module.replace(".", "/")
    return next((f for f in (path.with_suffix(".py"), path / "__init__.py") if f.is_file()), None)


@dataclass(frozen=True)
class _Module:
    """A module: the digest of its code, the modules of parbench and the packages it imports."""

    digest: str
    imports: tuple[str, ...]
    packages: frozenset[str]


@functools.cache
def _module(name: str, file: Path, stamp: tuple[int, int]) -> _Module:
    tree = ast.parse(file.read_bytes(), filename=str(file))
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    imports = set(itertools.accumulate(package.split("."), "{}.{}".format)) - {name, ""}
    others: set[str] = set()
    for node in _executed(tree):
        imports.update(_imported(node, package))
        if isinstance(node, ast.Import):
            others.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            others.add(node.module)
    others = {name.partition(".")[0] for name in others} - sys.stdlib_module_names - {"parbench"}
    _drop_docstrings(tree)
    digest = hashlib.sha256(_spell(tree).encode()).hexdigest()
    return _Module(digest, tuple(sorted(imports)), frozenset(others))


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes below ``node`` except those under `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and getattr(child.test, "id", None) == "TYPE_CHECKING":
            continue
        yield child
        yield from _executed(child)


def _imported(node: ast.AST, package: str) -> Iterator[str]:
    """Yield the parbench modules that an import statement loads; none for any other node."""
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
            # A body must not be empty.
            node.body = node.body[1:] or [ast.Pass()]


def _spell(node: object) -> str:
    """Return a syntax tree as text that does not depend on the Python version.

    ast.dump differs between 3.11, 3.12 and 3.13, which add empty fields (type_params, ...). So all
    empty fields are left out here, and so are line numbers.
    """
    if isinstance(node, ast.AST):
        fields = ((name, getattr(node, name, None)) for name in node._fields)
        parts = [f"{name}={_spell(value)}" for name, value in fields if value not in (None, [])]
        # A constant's value stays even if it is None.
        if isinstance(node, ast.Constant):
            parts = [f"value={node.value!r}"]
        return f"{type(node).__name__}({','.join(parts)})"
    if isinstance(node, list):
        return "[" + ",".join(_spell(item) for item in node) + "]"
    return repr(node)
