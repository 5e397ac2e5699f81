"""The strategy `command`: a user's own program as a side of a pair."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys

import psutil
import pytest

import as_json
import training
from launched import launched_pairs, wait_for
from parbench.cell import Cell, Strategy
from parbench.errors import ParbenchError
from parbench.plan import config_files, expansion
from parbench.strategies import command
from parbench.verdicts import preview
from workspace import HANG_SECONDS, ROOT, Workspace, small_study

TRAINS = """
import os
import sys
from parbench_turns import step

assert "RANK" not in os.environ, "it is no rank of ours"
print("a line of the program's")
while True:
    sum(range(20_000))
    step(samples=int(sys.argv[1]))
"""
KEEPS = """
import resource
from parbench_turns import step

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

bytearray(2**26)
before = faults()
bytearray(2**26)
assert faults() - before < 1000, "the kernel gave all 16384 pages once more"
while True:
    sum(range(20_000))
    step(samples=1)
"""
HANGS_BETWEEN = """
import subprocess, sys
from parbench_turns import step

# Like torchrun's ranks: in a session of its own, and deaf to what a terminal sends.
subprocess.Popen(
    [sys.executable, "-c", "import signal; signal.signal(15, signal.SIG_IGN); signal.pause()"],
    start_new_session=True,
)
while True:
    sum(range(20_000))
    step(samples=1)
"""


@pytest.fixture
def of(tmp_path):
    """Return a function that makes a cell of a program with this text and these arguments."""

    def made(text: str, *words: str) -> Cell:
        folder = tmp_path / "a folder"
        folder.mkdir(exist_ok=True)
        (folder / "program.py").write_text(text)
        stated = {"command": " ".join(["python", "program.py", *words]), "variables": {"KEY": "a"}}
        defaults = {key: part.get("default") for key, part in command.Strategy.OPTIONS.items()}
        options = command.Strategy.resolved(defaults | stated, folder, "study.yaml")
        return training.altered(training.cell(), strategy=Strategy("command", options))

    return made


@pytest.fixture
def launch(tmp_path, digits):
    yield from launched_pairs(tmp_path, digits)


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Return a copy of the project whose slices are short and few."""
    work = Workspace(tmp_path_factory.mktemp("quick") / "work")
    work.edit("scripts/parbench/launch/interleaving.py", "PAIRS = 4", "PAIRS = 1")
    return work.folder


def test_it_takes_turns_with_ours(launch, of, quick):
    it = launch(of(TRAINS, "3"), training.cell(), root=quick)
    status, _, errors = it.run()
    assert status == 0, errors + it.log.read_text()
    found = as_json.read(it.out)
    assert [each["side"] for each in found["slices"]][:2] == [0, 1]
    (samples,) = {each["samples"] for each in found["slices"] if each["side"] == 0}
    side = found["sides"][0]
    assert samples == 3 * side["steps"] * side["turns"]
    told = side["environment"]
    assert (told["world_size"], told["packages"]) == (1, {})
    assert told["stack"] == "the program's own"
    assert told["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "torch" in found["sides"][1]["environment"]["packages"]
    assert "a line of the program's" in it.log.read_text()


def test_it_keeps_freed_memory_as_cells_do(launch, of, quick):
    it = launch(of(KEEPS), training.cell(), root=quick)
    status, _, errors = it.run()
    assert status == 0, errors + it.log.read_text()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("print('done')", "ended without a training step; add to it: from parbench_turns"),
        ("1 / 0", "ended with status 1 after 0 steps; ran /"),
        (
            "from parbench_turns import step\nwhile True: step(samples=0.3)",
            "samples in a turn; pass whole numbers to step()",
        ),
    ],
    ids=["no step", "an error", "no whole samples"],
)
def test_one_that_cannot_take_turns_is_one_sentence(launch, of, quick, text, sentence):
    it = launch(training.cell(), of(text), root=quick)
    status, _, errors = it.run()
    assert status == 1
    start = "error: pair: side test.swin.eager: rank 0 of 1: the program (python program.py): "
    assert errors.startswith(start)
    assert sentence in errors


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_none_of_its_processes_outlives_the_launcher(launch, of, quick, number):
    it = launch(of(HANGS_BETWEEN), training.cell(), root=quick)
    process = it.start()
    deaf = "import signal; signal.signal"

    def running() -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):  # one has just ended
            return [each for each in it.processes() if deaf in " ".join(each.cmdline())]
        return []

    wait_for(lambda: running() or process.poll() is not None)
    process.send_signal(number)
    process.communicate(timeout=HANG_SECONDS)
    wait_for(lambda: not it.processes())


STUDY = small_study(
    "A program of one's own",
    "simple_cnn: {}",
    """
eager: {strategy: eager, hardware: cpu1}
mine:
  strategy: command
  hardware: cpu1
  options: {command: python mine.py 32}
""",
)
PAIRS = "pairs: {restarts: 1, compare: [{variant: mine, baseline: eager}]}\n"


def planned(deployment: str = "host") -> expansion.Plan:
    """Return the plan of the study `own`."""
    config = config_files.read([], {"studies": ["own"], "deployment": deployment})
    return expansion.plan(config, config.resolved_deployment())


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Return the studies' folder of a checkout with a study of a program, which is there, too."""
    for part in ("studies", "containers", "config.yaml"):
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, tmp_path / part)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("parbench.plan.places.ROOT", tmp_path)
    folder = tmp_path / "studies"
    (folder / "own.yaml").write_text(STUDY + PAIRS)
    (folder / "mine.py").write_text(TRAINS)
    return folder


def test_it_is_run_as_a_side_alone(study):
    plan = planned()
    (pair,) = plan.studies["own"].pairs
    mine = next(group for group in plan.studies["own"].groups if group.variant == "mine")
    assert (mine.cells, mine.not_run) == ([], command.Strategy.PAIRS_ONLY)
    assert pair.not_run is None
    assert pair.id.startswith("simple_cnn.pair.mine-cpu1.eager-cpu1-")
    assert pair.cells[0] in plan.cells


def test_the_deployment_that_was_typed_is_typed_again(study):
    changes = {"studies": ["own"], "deployment": "host", "timeout_seconds": 60}
    config = config_files.read([], changes)
    plan = expansion.plan(config, config.resolved_deployment())
    assert plan.studies["own"].arguments[2:] == ["deployment=host"]


def test_another_program_is_another_cell(study):
    def cells() -> list[str]:
        return planned().studies["own"].pairs[0].cells

    first = cells()
    (study / "mine.py").write_text(TRAINS + "# changed")
    assert cells() != first
    (study / "mine.py").write_text(TRAINS)
    assert cells() == first


def test_a_claim_about_it_waits_for_pairs(study):
    claim = "{metric: samples_per_second, numerator: {strategy: command}, "
    claim += "denominator: {strategy: eager}, op: same}"
    text = f"as-fast: {{study: own, citation: mine, claim: It is as fast., test: {claim}}}\n"
    with open(study / "published/claims.yaml", "a") as file:
        file.write(text)
    (study / "own.yaml").write_text(f"{STUDY}{PAIRS}claims: [as-fast]\n")
    lines = list(preview.preview(planned(), "own"))
    assert "      mine over eager of simple_cnn: decided by pairs" in lines


def test_images_hold_none(study):
    (pair,) = planned("apptainer").studies["own"].pairs
    assert pair.not_run.startswith("images do not have your own programs: set deployment: host")


def test_a_package_that_it_needs_and_lacks_is_said(study):
    path = study / "own.yaml"
    path.write_text(path.read_text().replace("32}", "32, packages: {ray: no_such_module}}"))
    (pair,) = planned().studies["own"].pairs
    assert pair.not_run == "no_such_module is not installed: make env ARGS=ray"


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("mine.py 32", "other.py", "options.command: 'python other.py' names no file in studies, "),
        ("mine.py 32", "mine.py '", "options.command: .*: No closing quotation; close the quotes"),
        ("32}", "32, files: [a.py]}", "options.files: there is no file studies/a.py; correct it"),
        ("32}", "32, folder: away}", "options.folder: studies/away is not a folder; correct it"),
        ("32}", "32, sha256: abc}", "options.sha256: abc is set, but the digest of mine.py in"),
        (
            "command: python mine.py 32",
            "files: []",
            "the key .command. is missing",
        ),
        ("options: {", "settings: {fused: true}\n    options: {", "has its own settings"),
    ],
)
def test_mistakes(study, old, new, sentence):
    path = study / "own.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ParbenchError, match=rf"^studies/own.yaml: variants.mine.*{sentence}"):
        planned()
