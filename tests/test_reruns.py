"""docs/reruns.md, line by line: after each change, all four that decide agree with the page."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from isolated import ROOT
from workspace import Workspace, small_study

VARIANTS = "eager: {strategy: eager, hardware: cpu1}"
# Prints, as JSON, the id of the only cell, what `parbench why` says of it, whether its finished
# result would be taken over, and whether it would go on from its checkpoint. With a word, writes a
# checkpoint first.
ASK = """
import contextlib, io, json, pathlib, shutil, sys
sys.path.insert(0, "scripts")
from parbench import identity
from parbench.files import read_record
from parbench.launch import outcome
from parbench.measure import environment
from parbench.plan import config_files, expansion, places, state
from parbench.training import checkpoint

config = config_files.read()
plan = expansion.plan(config, config.resolved_deployment())
cell = next(iter(plan.cells.values()))
folder, data = places.folder(cell.id), state.data_path(cell).parent
said = io.StringIO()
with contextlib.redirect_stdout(said):
    state.show_why(cell.id, plan)
before = pathlib.Path("before")
if before.exists():  # what is outdated is deleted; of another cell, as if it were its own
    shutil.copytree(before / "checkpoints", folder / "checkpoints", dirs_exist_ok=True)
    shutil.copy(before / "finished.json", folder)
labels = state.image_labels(cell, plan)
image = labels[0] and {"label": labels[0], "sha256": "0" * 64, "python": "3", "packages": {}}
description = data / "digest.json"
sha256 = read_record(description, "sha256")["sha256"] if description.exists() else None
own = identity.recorded(cell, [environment.describe(cell, sha256, image=image)])
store = checkpoint.Store(folder / "checkpoints", own)
if sys.argv[1:]:
    import torch
    store.write(1, {"weight": torch.zeros(1)}, {})
    shutil.copytree(folder, before)
with contextlib.redirect_stdout(io.StringIO()):
    resumes = store.find() is not None
now = identity.current(cell, labels, data.absolute())
taken = outcome.take_finished(folder, pathlib.Path("taken.json"), now)
print(json.dumps([cell.id, said.getvalue(), taken, resumes]))
"""
STUDY = small_study("One cell", "simple_cnn: {}", VARIANTS, images=48)


def ask(work: Workspace, *words: str) -> list:
    """Return what ASK prints."""
    return json.loads(work.run("-c", ASK, *words).stdout.splitlines()[-1])


def trains(work: Workspace, cell: str) -> bool:
    """Return whether a dry run of Snakemake would train ``cell``."""
    return "train" in work.jobs(f"results/cells/{cell}/metrics.json")


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """Make a folder of small images of two classes."""
    folder = tmp_path_factory.mktemp("my images")
    for part, count in (("train", 24), ("test", 25)):
        for number in range(2 * count):
            image = folder / part / ("red", "green")[number % 2] / f"{number}.png"
            image.parent.mkdir(parents=True, exist_ok=True)
            Image.effect_noise((16, 16), 10 + number).convert("RGB").save(image)
    return folder


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """Make a Python with all packages of this one, of which it can have other versions."""
    folder = tmp_path_factory.mktemp("python")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (place,) = folder.glob("lib/python*/site-packages")
    (place / "all.pth").write_text(sysconfig.get_path("purelib"))
    for name in ("safetensors", "pyspark"):
        install(folder, name, "1.0")
    return folder


def install(folder: Path, name: str, version: str) -> None:
    """Install ``version`` of a package, as its installer records it."""
    (place,) = folder.glob("lib/python*/site-packages")
    record = place / f"{name}.dist-info"
    record.mkdir(exist_ok=True)
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.fixture(scope="module")
def on_host(tmp_path_factory, images, python) -> Workspace:
    """Train the cell on the host, of a folder of images."""
    folder = tmp_path_factory.mktemp("base") / "work"
    work = Workspace(folder, python=python / "bin" / "python")
    (work.folder / "studies/one.yaml").write_text(STUDY)
    entry = f"  mine:\n    kind: image-folder\n    path: '{images}'\n"
    work.edit("config.yaml", "datasets:\n", f"datasets:\n{entry}")
    work.edit("config.yaml", "override: {}", "override: {one: {dataset: mine}}")
    work.edit("config.yaml", "studies: [quickstart]", "studies: [one]")
    work.snakemake("measure")
    ask(work, "checkpoint")
    return work


@pytest.fixture(scope="module")
def in_image(tmp_path_factory) -> Workspace:
    """Write what a cell in an image, which starts from published weights, leaves."""
    work = Workspace(tmp_path_factory.mktemp("base") / "work", "apptainer")
    models = "resnet18: {pretrained: true}"
    (work.folder / "studies/one.yaml").write_text(small_study("One", models, VARIANTS))
    work.edit("config.yaml", "studies: [quickstart]", "studies: [one]")
    runs = "def probe() -> Apptainer:\n"
    answer = '    return Apptainer("apptainer", "1.4.5")\n'
    work.edit("scripts/parbench/deploy/apptainer.py", runs, runs + answer)
    work.run("-c", LEAVE, str(ROOT / "tests"))
    (result,) = work.folder.glob("results/cells/*/metrics.json")
    work.snakemake("--touch", "--force", str(result.relative_to(work.folder)))
    shutil.copy(result, result.with_name("finished.json"))
    ask(work, "checkpoint")
    return work


LEAVE = """
import sys
sys.path[:0] = ["scripts", sys.argv[1]]
import constructed
from parbench import identity
from parbench.data import source
from parbench.files import write_json
from parbench.measure import provenance
from parbench.plan import config_files, expansion, places, state

config = config_files.read()
plan = expansion.plan(config, config.resolved_deployment())
(cell,) = plan.cells.values()
(label,) = state.image_labels(cell, plan)
write_json(places.RESULTS / "images" / f"{label}.json", {})
data, start = {"sha256": "0" * 64}, cell.model.pretrained
write_json(state.data_path(cell), data)
state.data_path(cell).with_name("data.safetensors").touch()
(path,) = state.weights(cell)
write_json(path, {"source_sha256": start.sha256, "conversion": start.conversion})
path.with_name("weights.safetensors").touch()
environment = {"code": identity.code_of(cell), "dataset_digest": "0" * 64, "image": label}
result = constructed.make_metrics(cell.json(), environment=environment)
write_json(places.folder(cell.id) / "metrics.json", result)
"""


# ---------------------------------------------------------------- causes


MODEL = "scripts/parbench/models/simple_cnn.py"
FUTURE = "from __future__ import annotations\n"


def setting(work: Workspace) -> None:
    work.edit("studies/one.yaml", "learning_rate: 0.05", "learning_rate: 0.1")


def code(work: Workspace) -> None:
    work.edit(MODEL, FUTURE, f"{FUTURE}UNUSED = 1\n")


def recipe(work: Workspace) -> None:
    work.edit("containers/torch.def", "%post", "%post\n    true")


def entry(work: Workspace) -> None:
    work.edit("config.yaml", "  mine:\n", "  mine:\n    image_size: 8\n")


def no_data(work: Workspace) -> None:
    shutil.rmtree(work.folder / "results/data/mine")


def other_weights(work: Workspace) -> None:
    (path,) = work.folder.glob("results/weights/*/digest.json")
    path.write_text(json.dumps({"source_sha256": "1" * 64, "conversion": 1}))


def no_weights(work: Workspace) -> None:
    shutil.rmtree(work.folder / "results/weights/resnet18")


def comment(work: Workspace) -> None:
    work.edit(MODEL, FUTURE, f"{FUTURE}# So it is.\n")


def out_of_reach(work: Workspace) -> None:
    for name in ("strategies/gpipe", "models/swin", "verdicts/tables", "reporting/report"):
        work.edit(f"scripts/parbench/{name}.py", FUTURE, f"{FUTURE}UNUSED = 1\n")


def times(work: Workspace) -> None:
    for name in ("scripts/parbench/training/train.py", "studies/one.yaml", "config.yaml"):
        (work.folder / name).touch()


def limits(work: Workspace) -> None:
    for key in ("timeout_seconds", "checkpoint_seconds", "grace_seconds"):
        path = work.folder / "config.yaml"
        path.write_text(re.sub(rf"^{key}: .*\n", f"{key}: 77\n", path.read_text(), flags=re.M))
    work.edit("config.yaml", "partition: null", "partition: gpu")


def more_cells(work: Workspace) -> None:
    more = "eager: {strategy: eager, hardware: cpu1}\n  more: {strategy: ddp, hardware: cpu1}"
    work.edit("studies/one.yaml", VARIANTS, more)
    work.edit("studies/one.yaml", "seeds: [0]", "seeds: [0, 1]")


def published(work: Workspace) -> None:
    work.edit("studies/published/published_results.csv", "56.4", "56.5")
    work.edit("studies/one.yaml", "title: One cell", "title: The only cell")
    work.edit("studies/one.yaml", "metrics: [test_accuracy, ", "metrics: [")


AGAIN: dict[str, Callable[[Workspace], None] | None] = {
    "a setting of its study, model, strategy or hardware, where it runs (`deployment`), or its "
    "`stack`; this makes another cell, which runs": setting,
    "a module of parbench that it can reach": code,
    "the version of a package that it can reach, on the host": None,
    "an input of its image, such as its recipe or lock file": recipe,
    "a file of a local dataset": None,
    "its dataset's entry in config.yaml (except `urls`), or the version of its conversion": entry,
    "the weights that it starts from": other_weights,
}
NOT_AGAIN: dict[str, Callable[[Workspace], None] | None] = {
    "only a comment or a docstring": comment,
    "code that it cannot reach: other strategies and models, tables, the report": out_of_reach,
    "a file's time stamp, but not its content": times,
    "its dataset was deleted (it is rebuilt when a cell needs it)": no_data,
    "the weights that it starts from were deleted": no_weights,
    "the version of a package that it cannot reach, on the host": None,
    "time limits (`timeout_seconds`), checkpoint intervals (`checkpoint_seconds`, "
    "`grace_seconds`), Slurm settings": limits,
    "its study got more seeds or variants": more_cells,
    "a published value, the title or a table of its study": published,
}
IN_IMAGE = (recipe, other_weights, no_weights)


def lines(title: str) -> list[list[str]]:
    """Return the cells of each line of the table below ``title``."""
    text = (ROOT / "docs/reruns.md").read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_the_page_has_the_causes_that_are_tested():
    assert [row[0] for row in lines("It runs again")] == list(AGAIN)
    assert [row[0] for row in lines("It does not run again")] == list(NOT_AGAIN)


def pattern(printed: str) -> str:
    """Return a regular expression of what a line of the page says is printed."""
    return re.sub("<[^>]+>", ".+", re.escape(printed.strip("`")))


@pytest.mark.parametrize(("cause", "printed"), lines("It runs again"))
def test_what_makes_a_cell_run_again(cause, printed, request, tmp_path, python, images):
    apply = AGAIN[cause]
    base = request.getfixturevalue("in_image" if apply in IN_IMAGE else "on_host")
    work = base.copied(tmp_path / "work")
    is_local = cause == "a file of a local dataset"
    image = next(images.rglob("*.png"))
    content = image.read_bytes()
    if apply is not None:
        apply(work)
    elif is_local:
        Image.effect_noise((16, 16), 99).convert("RGB").save(image)
    else:
        install(python, "safetensors", "99.0")
    try:
        cell, said, taken, resumes = ask(work)
        assert re.search(f"^  - {pattern(printed)}$", said, re.M), said
        assert trains(work, cell)
        if is_local or apply is entry:  # whether the bytes are others shows when they are made
            work.snakemake("results/data/mine/digest.json")
            _, said, taken, resumes = ask(work)
            assert "the dataset mine changed from " in said
        assert not taken
        # A rank refuses such weights before it looks for a checkpoint.
        assert not resumes or apply is other_weights
    finally:
        image.write_bytes(content)
        install(python, "safetensors", "1.0")


@pytest.mark.parametrize("cause", [row[0] for row in lines("It does not run again")])
def test_what_does_not_make_a_cell_run_again(cause, request, tmp_path, python):
    apply = NOT_AGAIN[cause]
    base = request.getfixturevalue("in_image" if apply in IN_IMAGE else "on_host")
    work = base.copied(tmp_path / "work")
    if apply is None:
        install(python, "pyspark", "99.0")
    else:
        apply(work)
    cell, said, taken, resumes = ask(work)
    assert "It would not run" in said, said
    assert (taken, resumes) == (True, True)
    assert not trains(work, cell)
