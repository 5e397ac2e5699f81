"""A damaged file is read or refused in a sentence, and nothing is written outside its folder."""

from __future__ import annotations

import contextlib
import copy
import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import constructed
from constructed import CPU1, CPU2, Group
from parbench import files
from parbench.__main__ import main
from parbench.audit import checks
from parbench.equivalence import certificate
from parbench.errors import ParbenchError
from parbench.plan import config_files, expansion, published
from parbench.plan.places import shown
from parbench.verdicts import evidence
from workspace import ROOT

# The same examples each time: no landing may depend on luck.
BOUNDED = settings(max_examples=100, derandomize=True, database=None)

BYTES = [b"", b"\0", b"\xe9", b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b"\n", b"\t", b'"', b"'", b"[{"]
BYTES += [b",", b";", b":", b"- ", b"&a ", b"*a", b"<<: ", b"!!int ", b"\\ud800", b"9" * 400]
BYTES += [b"1e999", b".nan", b"NaN", b"0123", b"4:00:00", b"no", b"2024-01-31", b"56,4", b"1e-3"]
NAMES = ["../../../../escaped", "/escaped", "..", "", "a/b", "x" * 300, "a\nb", "\N{SNOWMAN}"]
ODD = [None, True, 0, -1, 1.5, 10**400, [], {}, [[]], [None], {"a": None}, "\x1b[2J", *NAMES]


@st.composite
def damaged_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """Draw ``content`` with some of its bytes or lines replaced, doubled or taken away."""
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.booleans()):
            lines = content.splitlines(keepends=True) or [b""]
            at = draw(st.integers(0, len(lines) - 1))
            lines[at : at + draw(st.integers(0, 2))] = draw(st.sampled_from(lines)).splitlines(True)
            content = b"".join(lines)
        else:
            at = draw(st.integers(0, len(content)))
            end = at + draw(st.integers(0, 8))
            content = content[:at] + draw(st.sampled_from(BYTES)) + content[end:]
    return content


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each part of ``value`` as its parent and its key or index there."""
    if isinstance(value, (dict, list)):
        for key, part in list(value.items() if isinstance(value, dict) else enumerate(value)):
            yield value, key
            yield from _places(part)


@st.composite
def damaged_values(draw: st.DrawFn, value: Any) -> Any:
    """Draw ``value`` with some of its parts replaced, doubled, renamed or taken away."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 2))):
        places = list(_places(value))
        parent, key = places[draw(st.integers(0, len(places) - 1))]
        match draw(st.sampled_from(["replace", "replace", "double", "rename", "take away"])):
            case "double" if isinstance(parent, list):
                parent.append(parent[key])
            case "rename" if isinstance(parent, dict):
                parent[draw(st.sampled_from(NAMES))] = parent.pop(key)
            case "take away":
                del parent[key]
            case _:
                parent[key] = draw(st.sampled_from(ODD))
    return value


def read_or_refused(read: Callable[[], object], path: Path) -> None:
    """Call ``read``; any error but a ParbenchError that names the file ``path`` is our fault."""
    message = shown(path)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            read()
    except ParbenchError as error:
        message = str(error)
    assert message.startswith(shown(path))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return a folder with config.yaml, studies and published values, deep in an empty one."""
    folder = tmp_path_factory.mktemp("damage") / "a/b/c/d/e"
    (folder / "studies").mkdir(parents=True)
    for part in ("containers", "studies/published"):
        (folder / part).symlink_to(ROOT / part)
    return folder


def plan_with(path: Path, name: str, content: bytes) -> None:
    """Plan the quickstart with ``content`` in place of ``name`` of the project."""
    path.write_bytes(content)
    if name == "config.yaml":
        damaged = config_files.read([path])
    else:
        config_files.study("quickstart")
        damaged = config_files.read()
    damaged = damaged.model_copy(update={"deployment": "host", "studies": ["quickstart"]})
    expansion.plan(damaged, damaged.resolved_deployment(), lambda group, cell: None)


@pytest.mark.parametrize("name", ["config.yaml", "studies/quickstart.yaml"])
@pytest.mark.parametrize("damage", [damaged_bytes, damaged_values])
def test_a_damaged_configuration(folder, name, damage):
    whole = (ROOT / name).read_bytes()
    value = whole if damage is damaged_bytes else yaml.safe_load(whole)
    for part in ("config.yaml", "studies/quickstart.yaml"):
        (folder / part).write_bytes((ROOT / part).read_bytes())

    @BOUNDED
    @given(damage(value))
    def check(drawn: Any) -> None:
        content = drawn if isinstance(drawn, bytes) else yaml.safe_dump(drawn).encode()
        path = folder / ("mine.yaml" if name == "config.yaml" else name)
        read_or_refused(lambda: plan_with(path, name, content), path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("parbench.plan.places.ROOT", folder)
        check()


@pytest.mark.parametrize("damage", [damaged_bytes, damaged_values])
def test_damaged_claims(folder, damage):
    source = ROOT / "studies/published"
    path, whole = folder / "claims.yaml", (source / "claims.yaml").read_bytes()
    rows = published.rows(source / "published_results.csv")

    @BOUNDED
    @given(damage(whole if damage is damaged_bytes else yaml.safe_load(whole)))
    def check(drawn: Any) -> None:
        path.write_bytes(drawn if isinstance(drawn, bytes) else yaml.safe_dump(drawn).encode())
        read_or_refused(
            lambda: list(
                checks.of_claims(published.claims(path), rows, checks.DatasetAssumptions())
            ),
            path,
        )

    check()


@pytest.mark.parametrize("damage", [damaged_bytes, damaged_values])
def test_damaged_published_values(folder, damage):
    path = folder / "own" / "mine.csv"
    path.parent.mkdir(exist_ok=True)
    whole = (ROOT / "studies/published/published_results.csv").read_text().splitlines(True)[:40]
    rows = list(csv.reader(whole))

    @BOUNDED
    @given(damage("".join(whole).encode() if damage is damaged_bytes else rows))
    def check(drawn: Any) -> None:
        if isinstance(drawn, bytes):
            path.write_bytes(drawn)
        else:
            with open(path, "w", newline="") as file:
                rows = [row if isinstance(row, list) else [row] for row in drawn]
                csv.writer(file).writerows(rows)
        read_or_refused(lambda: main(["audit", str(path)]), path)

    check()


@pytest.mark.parametrize("damage", [damaged_bytes, damaged_values])
def test_damaged_evidence(folder, damage):
    """The digest fits, as of a file that somebody made to be read."""
    groups = [Group("resnet18", "eager", CPU1, seeds=(0,)), Group("swin", "ddp", CPU2, seeds=(0,))]
    constructed.write_study(folder, constructed.usual_study(published=None), groups)
    certificate.write(folder / "results/certificates/host.json", "host", {}, [])
    made = evidence.gather("constructed", folder / "results")
    path = folder / "constructed-x2.json"
    outside = {each for each in folder.parents[3].rglob("*") if folder not in each.parents}

    @BOUNDED
    @given(damage(json.dumps(made).encode() if damage is damaged_bytes else made))
    def check(drawn: Any) -> None:
        with contextlib.suppress(ValueError):
            drawn = json.loads(drawn) if isinstance(drawn, bytes) else drawn
        if isinstance(drawn, dict):
            content = {key: value for key, value in drawn.items() if key != "digest"}
            with contextlib.suppress(ValueError):
                drawn = content | {"digest": files.digest(content)}
        path.write_bytes(drawn if isinstance(drawn, bytes) else json.dumps(drawn).encode())
        read_or_refused(lambda: evidence.unpack(path, folder / "out"), path)

    check()
    assert outside == {each for each in folder.parents[3].rglob("*") if folder not in each.parents}
