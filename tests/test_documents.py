"""The documents: links lead somewhere, generated pages are up to date, versions agree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from parbench.plan import places
from parbench.reporting import glossary, pages
from parbench.runs import metrics
from workspace import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("containers/**/*.md")])
CODE = re.compile(r"^```.*?^```", re.M | re.S)


def text_of(page: Path) -> str:
    """Return a page without its code blocks."""
    return CODE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    found: set[str] = set()
    for title in re.findall(r"^#+ (.*)$", text_of(page), re.M):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        later = (f"{slug}-{number}" for number in range(1, 100))
        found.add(slug if slug not in found else next(each for each in later if each not in found))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file_and_a_heading(page):
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_the_examples_of_metrics_are_metrics():
    text = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    section = text.partition("\n## A metric\n")[2].partition("\n## ")[0]
    examples = re.findall(r"```python\n(.*?)```", section, re.S)
    assert len(examples) == 2
    for code in examples:
        exec(code, dict(vars(metrics)))


def test_the_readme_is_short_and_leads_to_every_page():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 130
    pages_of_docs = {f"docs/{page.name}" for page in ROOT.glob("docs/*.md")}
    assert pages_of_docs <= set(re.findall(r"\((docs/[\w-]+\.md)", text))


def test_the_table_of_studies_is_up_to_date():
    """If not, run PYTHONPATH=scripts python -m parbench.reporting.pages. tests/test_expected.py
    holds the other page that it makes."""
    page = (ROOT / pages.STUDIES).read_text(encoding="utf-8")
    assert pages.with_studies(page) == page
    assert all(f"[`{name}`]" in page for name in places.studies())


def test_the_table_of_metrics_is_up_to_date():
    """If not, run PYTHONPATH=scripts python -m parbench.reporting.pages."""
    page = (ROOT / pages.METRICS_PAGE).read_text(encoding="utf-8")
    assert pages.with_metrics(page) == page
    assert all(f"| `{name}` |" in page for name in metrics.METRICS)


def test_the_tables_of_terms_are_up_to_date():
    """If not, run PYTHONPATH=scripts python -m parbench.reporting.pages."""
    text = ""
    for path in (pages.TERMS_PAGE, pages.METRICS_PAGE):
        page = (ROOT / path).read_text(encoding="utf-8")
        assert pages.with_terms(page) == page
        text += page
    assert all(f"| {term.name} | {term.meaning} |" in text for term in glossary.ALL.values())


def test_every_study_says_what_it_needs():
    for path in (ROOT / "studies").glob("*.yaml"):
        assert yaml.safe_load(path.read_text(encoding="utf-8")).get("needs"), path


def test_the_version_is_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", changelog, re.M)
    version, date = released[0]
    assert project["version"] == citation["version"] == version
    assert str(citation["date-released"]) == date


def test_every_command_and_every_package_is_described():
    commands = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    names = {path.stem for path in (ROOT / "scripts/parbench/commands").glob("[a-z]*.py")}
    assert names <= set(re.findall(r"`parbench (\w+)", commands))
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    packages = page.partition("## The packages")[2]
    folders = {path.parent.name for path in (ROOT / "scripts/parbench").glob("*/__init__.py")}
    assert folders <= set(re.findall(r"`(\w+)/`", packages))


# Pages about the code: what they name in backticks must be there.
OF_CODE = ["docs/architecture.md", "docs/extending.md", "CONTRIBUTING.md"]


@pytest.mark.parametrize("page", OF_CODE)
def test_every_file_and_function_that_a_page_names_is_there(page):
    names = re.findall(r"`([^`\n]+)`", text_of(ROOT / page))
    package = ROOT / "scripts/parbench"
    paths = [name for name in names if re.fullmatch(r"[\w./-]+(/|\.(py|smk|yaml|md|def))", name)]
    assert [
        path
        for path in paths
        if not (package / path).exists()
        and not (ROOT / path).exists()
        and not path.startswith(("results/", "train/", "test/"))
    ] == []
    placed = re.findall(
        r"`(?:\w+\.)?(\w+)(?:\(\))?`(?: and `\w+`)? in `([\w/]+\.py)`", text_of(ROOT / page)
    )
    for name, path in placed:
        file = package / path if (package / path).exists() else ROOT / path
        assert re.search(rf"\b{name}\b", file.read_text(encoding="utf-8")), (name, path)
    sources = [path.read_text(encoding="utf-8") for path in package.rglob("*.py")]
    called = {found[1] for name in names if (found := re.fullmatch(r"(?:\w+\.)?(\w+)\(\)", name))}
    defined = {name for text in sources for name in re.findall(r"^ *def (\w+)\(", text, re.M)}
    assert called <= defined
