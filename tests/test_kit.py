"""A kit for a bare machine: packing it, running it there, and taking the results home.

The machine is a Python that has torch, torchvision, their dependencies and nothing else.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import venv
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from launched import wait_for
from parbench.launch import packing
from workspace import HANG_SECONDS, ROOT, Workspace, small_study

ORDER = """
config:
  deployment: host
  available: {{cpu: 2, cuda: {{}}}}
  datasets: {{jpeg: {{kind: image-folder, path: jpeg}}}}
packages: [safetensors, torchgpipe]
most_mib: {most}
stages:
  - {{study: small, cells: [eager], models: [deit]}}
  - {{study: small, pairs: [gpipe]}}
  - {{study: small, cells: [eager], models: [simple_cnn]}}
"""
VARIANTS = """
eager: {strategy: eager, hardware: cpu1}
gpipe: {strategy: gpipe, models: [simple_cnn], options: {balance: [2]}, hardware: cpu1}
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> Path:
    """Return the Python of the bare machine."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder)
    (packages,) = folder.glob("lib/*/site-packages")
    waiting, known = ["torch", "torchvision"], set()
    while waiting:
        name = waiting.pop()
        try:
            held = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # needed on other systems
            continue
        for part in {file.parts[0] for file in held.files} - {"..", "__pycache__"}:
            if not (packages / part).exists():
                (packages / part).symlink_to(held.locate_file(part))
        needed = {re.match(r"[\w.-]+", one)[0] for one in held.requires or () if "extra" not in one}
        waiting += needed - known
        known |= needed
    return folder / "bin" / "python"


@pytest.fixture
def work(tmp_path) -> Workspace:
    """Return a project with a small study of JPEG images, one cell of which needs timm."""
    work = Workspace(tmp_path / "home")
    drawn = np.random.default_rng(0).integers(0, 256, (60, 32, 32, 3), np.uint8)
    for number, pixels in enumerate(drawn):
        part = "train" if number < 40 else "test"
        path = work.folder / "jpeg" / part / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    study = small_study("Small", "simple_cnn: {}\ndeit: {}", VARIANTS, images=40)
    study = study.replace("dataset: digits", "dataset: jpeg").replace(": 50", ": 20")
    study += "pairs: {restarts: 1, compare: [{variant: gpipe, baseline: eager}]}\n"
    (work.folder / "studies" / "small.yaml").write_text(study)
    (work.folder / "order.yaml").write_text(ORDER.format(most=64))
    return work


def start(bare: Path, work: Workspace, **variables: str) -> subprocess.Popen:
    """Start the kit's `run` in its own process group, so that a test can kill all of it."""
    words = ["kit/scripts/kit.py", "run", "--out", "out", "--work", "there", "--minutes", "90"]
    kept = {"PATH": "/usr/bin:/bin", "PARBENCH_LOCKS": str(work.folder / "locks")}
    return subprocess.Popen(
        [bare, *words],
        cwd=work.folder,
        env={**kept, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def results(work: Workspace) -> dict:
    path = work.folder / "out" / "results.json"
    return json.loads(path.read_text()) if path.exists() else {"runs": {}, "failed": {}}


def left(work: Workspace) -> list[str]:
    told = json.loads((work.folder / "kit" / "kit.json").read_text())
    return [each["id"] for each in told["cells"]]


@pytest.mark.whole
def test_a_kit_goes_on_where_it_was_killed_and_its_results_become_evidence(bare, work):
    pack = ("scripts/kit.py", "pack", "--order", "order.yaml")
    work.run(*pack)
    timm, pair, whole = left(work)
    assert ".pair." in pair

    # Killed before the last cell starts.
    launch = work.folder / "kit" / "scripts" / "launch.py"
    right = launch.read_text()
    held = f"import signal, sys\nif {whole!r} in ' '.join(sys.argv):\n    signal.pause()\n"
    launch.write_text(held + right)
    first = start(bare, work)
    wait_for(lambda: pair in results(work)["runs"])
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    assert results(work)["failed"][timm]["sentence"].endswith("No module named 'timm'")

    launch.write_text(right)
    second = start(bare, work)
    said, _ = second.communicate(timeout=HANG_SECONDS)
    assert second.returncode == 1, said
    assert f"{pair}: starts" not in said  # it has its result
    assert said.index(f"{whole}: ok") < said.index(f"error: {timm}:")  # what failed comes last
    assert "2 of 3 cells have a result, 1 failed" in said

    taken = work.run("scripts/kit.py", "home", "out/results.json", "--order", "order.yaml")
    assert "2 results" in taken.stdout
    assert "No module named 'timm'" in taken.stdout
    work.run(*pack)
    assert left(work) == [timm]
    work.run("scripts/evidence.py", "write", "--partial", "small")
    (path,) = (work.folder / "reports" / "evidence").glob("small-*.json")
    assert sorted(json.loads(path.read_text())["cells"]) == sorted([pair, whole])


def test_a_cell_that_cannot_end_in_time_is_not_started(bare, work):
    work.run("scripts/kit.py", "pack", "--order", "order.yaml")
    path = work.folder / "kit" / "kit.json"
    told = json.loads(path.read_text())
    for each in told["cells"]:
        each["seconds"] = 90 * 60
    path.write_text(json.dumps(told))
    process = start(bare, work)
    said, _ = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 1
    assert "starts on" not in said
    assert "0 of 3 cells have a result" in said


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"runs": {"x": {}}}, "x: schema_version: is missing"),
        ({"failed": {"x": {}}}, "results.json: failed.x: .*sentence"),
        ({"more": 1}, "unknown key 'more'"),
    ],
)
def test_what_comes_home_is_checked(work, change, words):
    told = dict(schema_version=1, git_commit=None, git_dirty=None, code="", runs={}, failed={})
    (work.folder / "results.json").write_text(json.dumps(told | change))
    told = ("scripts/kit.py", "home", "results.json", "--order", "order.yaml")
    done = work.run(*told, check=False)
    assert done.returncode == 2
    assert re.search(words, done.stderr), done.stderr


def test_a_kit_that_is_too_large_is_refused_with_its_largest_part(work):
    (work.folder / "order.yaml").write_text(ORDER.format(most=1))
    done = work.run("scripts/kit.py", "pack", "--order", "order.yaml", check=False)
    assert re.search(r"MiB, and most_mib is 1; the largest part is \S+ with", done.stderr)


def test_the_kit_for_a_gpu_takes_restarts_in_turn_and_needs_no_more_than_it_brings():
    order = packing.read_order(ROOT / "profiles" / "kit.yaml")
    plan = packing.planned(order, [ROOT / "profiles" / "gpu.yaml"])
    cells = [plan.cells[cell] for cell in packing.in_order(order, plan, "kit.yaml")]
    first = [cell for cell in cells if len(cell.sides) > 1][:12]
    assert [cell.seed for cell in first] == sorted(cell.seed for cell in first)
    assert first[0].seed < first[-1].seed
    for side in (side for cell in cells for side in cell.sides):
        assert side.model.name not in ("convnextv2", "deit"), "which need timm"
        assert side.hardware.devices == side.hardware.nodes == 1
