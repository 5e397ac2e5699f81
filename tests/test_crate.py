"""A finished run as a Workflow Run RO-Crate: valid, complete, and true to its files."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from parbench.deploy import uv
from parbench.errors import ParbenchError
from parbench.files import read_json, sha256_file, write_json
from require import lacking, require_package
from workspace import ROOT

pytestmark = pytest.mark.whole

PROFILES = (
    *("ro-crate-1.1", "process-run-crate-0.5"),
    *("workflow-run-crate-0.5", "provenance-run-crate-0.5"),
)


@pytest.fixture
def finished(quickstart, tmp_path):
    """Return a copy of a finished run, to be changed; one of its cells diverged."""
    require_package("crate", "rocrate")
    work = copy.copy(quickstart[0])
    left = shutil.ignore_patterns("data.safetensors", ".snakemake", "__pycache__")
    work.folder = shutil.copytree(work.folder, tmp_path / "work folder", ignore=left)
    path = next((work.folder / "results/cells").glob("swin.eager*/metrics.json"))
    write_json(path, read_json(path) | {"status": "diverged", "reason": "the loss is not finite"})
    return work


@pytest.fixture(scope="module")
def validator(tmp_path_factory) -> Path:
    """Return the Python of an environment with the validator."""
    program, place = Path(sys.executable).with_name("uv"), tmp_path_factory.mktemp("validator")
    python = place / "bin/python"
    try:
        uv.run(program, ["venv", "--python", sys.executable, str(place)])
        words = ["pip", "sync", "--require-hashes", "--python", str(python)]
        uv.run(program, [*words, str(ROOT / "tests/validator.txt")])
    except ParbenchError as error:
        lacking("crate", str(error))
    return python


def test_a_crate_is_valid_and_tells_of_each_file_and_cell(finished, validator, tmp_path):
    out = tmp_path / "crate"
    finished.parbench("crate", "--agent", "Ada Lovelace", "--out", str(out))
    told = {each["@id"]: each for each in read_json(out / "ro-crate-metadata.json")["@graph"]}

    held = [each for each in told.values() if "File" in each["@type"]]
    assert {"Snakefile", "config.yaml", "reports/final.html", "reports/final.pdf"} <= set(told)
    for file in held:
        name = unquote(file["@id"])
        assert file["sha256"] == sha256_file(out / name) == sha256_file(finished.folder / name)
    data = read_json(finished.folder / "results/data/digits/digest.json")
    assert told["#results/data/digits"]["sha256"] == data["sha256"]

    runs = {path.parent.name: path for path in finished.folder.glob("results/cells/*/metrics.json")}
    for cell, path in runs.items():
        action, run = told[f"#{cell}"], read_json(path)
        assert (action["startTime"], action["endTime"]) == (run["started"], run["finished"])
        assert action["result"][0] == {"@id": quote(f"results/cells/{cell}/metrics.json")}
        assert {"@id": "#results/data/digits"} in action["object"]
        assert action["instrument"] == {"@id": "scripts/bin/parbench"}
        assert told[action["agent"]["@id"]]["name"] == "Ada Lovelace"
        failed = "Failed" in action["actionStatus"]
        assert failed == (run["status"] != "ok")
        assert action.get("error") == run["reason"]
        for side in run.get("sides", [run]):
            image = side["environment"]["image"]
            assert image is None or {"@id": f"#{image}"} in action["containerImage"]
    assert sum("error" in each for each in told.values()) == 1
    plan = read_json(finished.folder / "results/plan/quickstart.json")
    cells = {cell for each in plan["groups"] + plan["pairs"] for cell in each["cells"]}
    said = f"{len(runs)} of {len(cells)} cells were run"
    assert told["./"]["description"].startswith(said)

    words = [validator, ROOT / "tests/validate.py", out, tmp_path / "cache", *PROFILES]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_an_archive_is_written_and_nothing_is_written_over(finished):
    finished.parbench("crate", "--out", "run.zip")
    shutil.unpack_archive(finished.folder / "run.zip", finished.folder / "out")
    assert (finished.folder / "out/ro-crate-metadata.json").exists()
    again = finished.parbench("crate", "--out", "run.zip", check=False)
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "run.zip: already exists; move or delete it" in again.stderr


def test_what_is_not_finished_is_refused_and_nothing_written(finished):
    def refused() -> str:
        done = finished.parbench("crate", check=False)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert not list(finished.folder.glob("*crate*"))
        return done.stderr

    path = next((finished.folder / "results/cells").glob("swin.eager*/metrics.json"))
    later = read_json(path) | {"finished": "2100-01-01T00:00:00Z"}
    for content, said in (
        (json.dumps(later), "quickstart.csv: a cell was finished since it was made; first: make"),
        (
            "{",
            f"such as {path.parent.name}: results/cells/{path.parent.name}/metrics.json, line 1: "
            "not va",
        ),
    ):
        path.write_text(content)
        assert said in refused()
    path.unlink()
    assert "it has not been trained yet; first: make report, with the same ARGS" in refused()
