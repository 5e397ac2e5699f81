"""Limits that the linters do not check: lines per file and function, re-exports."""

from __future__ import annotations

import ast
import re
from collections import Counter
from graphlib import TopologicalSorter

import grimp
import pytest

from workspace import ROOT

FILES = sorted((ROOT / "scripts").rglob("*.py"))
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_over_500_lines_and_no_function_over_60(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 500
    long = [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, FUNCTIONS) and node.end_lineno - node.lineno >= 60
    ]
    assert not long


def test_packages_hand_on_nothing_of_others():
    for path in ROOT.glob("scripts/**/__init__.py"):
        tree = ast.parse(path.read_text())
        imported = {
            alias.asname or alias.name
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.module.startswith("parbench")
            for alias in node.names
        }
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert imported <= used, path


@pytest.fixture(scope="module")
def imports():
    """Which modules of parbench each of them imports, also inside functions and for types alone."""
    graph = grimp.build_graph("parbench", cache_dir=None)
    return {each: graph.find_modules_directly_imported_by(each) for each in graph.modules}


def test_no_files_import_each_other(imports):
    """Nor for types alone, which the import contracts leave out."""
    TopologicalSorter(imports).prepare()  # CycleError names the circle


def test_no_file_imports_two_of_one_name_or_one_of_its_own(imports):
    """Commands may: they are called what a user types."""
    for module, imported in imports.items():
        of_a_command = module.startswith("parbench.commands.")
        named = [*imported, *([] if of_a_command else [module])]
        names = Counter(each.rpartition(".")[2] for each in named)
        assert {name for name, count in names.items() if count > 1} == set(), module


def test_no_message_blames_config_yaml_without_asking_which_file_sets_the_key():
    """`Config.error` and `Config.set_in` know it: a --configfile or --config may."""
    blamed = re.compile(r"config\.yaml(:|, line|$)")
    for path in (ROOT / "scripts/parbench/plan").glob("*.py"):
        found = [
            node.lineno
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and blamed.match(node.value)
        ]
        assert path.name == "places.py" or not found, (path, found)


# A plugin's class has the name by which it is loaded; the parts of models are torch's terms.
PLUGINS = {"Strategy", "Kind", "Profile", "Network"}
PARTS_OF_MODELS = {"Block", "Embedding", "Head"}


def test_each_name_of_a_class_is_one_thing():
    files = {}
    for path in ROOT.glob("scripts/parbench/**/*.py"):
        conventional = PLUGINS | (PARTS_OF_MODELS if path.parent.name == "models" else set())
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and node.name not in conventional:
                files.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in files.items() if len(paths) > 1} == {}
