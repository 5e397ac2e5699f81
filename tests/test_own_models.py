"""Models that are not in parbench: networks of libraries, and files of a user's own."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
import timm
import torch
import torchvision

from parbench import models
from parbench.equivalence import certificate, certify, trials
from parbench.errors import ParbenchError
from parbench.models.libraries import file as model_files
from parbench.plan import config_files, expansion, places
from parbench.strategies import _stages as stages
from workspace import Workspace, small_study

EAGER = "eager: {strategy: eager, hardware: cpu1}\n"
GPIPE = "gpipe: {strategy: gpipe, options: {balance: [1, 1]}, hardware: cpu2}\n"
DDP = "ddp: {strategy: ddp, hardware: cpu2, baseline: eager}\n"
MINE = """
from torch import nn

class Net(nn.Module):
    def __init__(self, classes, size, width):
        super().__init__()
        self.convolution = nn.Conv2d(3, width, 3, padding=1)
        self.head = nn.Linear(width * size * size, classes)

    def forward(self, images):
        return self.head(self.convolution(images).relu().flatten(1))

def build(num_classes, image_size, options):
    return Net(num_classes, image_size, 4)
"""
IN_BLOCKS = """
from collections import OrderedDict

OPTIONS = {"width": {"description": "channels", "type": "integer", "minimum": 1, "default": 4}}

def cuts(stages, options):
    return ["head"][: stages - 1]

def build(num_classes, image_size, options):
    from torch import nn
    width = options["width"]
    stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.ReLU())
    head = nn.Sequential(nn.Flatten(1), nn.Linear(width * image_size**2, num_classes))
    return nn.Sequential(OrderedDict(stem=stem, head=head))
"""


@pytest.fixture(autouse=True)
def _no_studies_elsewhere():
    yield
    places.look_in([])


def planned(study: Path) -> expansion.Plan:
    """Plan a study for a machine that has everything."""
    values = config_files.read([], {"studies": [str(study)], "deployment": "host"})
    deployment = values.resolved_deployment()
    return expansion.plan(values, deployment, why_unavailable=lambda group, cell: None)


def plan_of(folder: Path, entries: str, variants: str = EAGER) -> expansion.Plan:
    """Plan a study in ``folder``, with these models (YAML), for a machine that has everything."""
    study = folder / "own-study.yaml"
    study.write_text(small_study("Own", entries, variants))
    return planned(study)


def refusal(folder: Path, entries: str, variants: str = EAGER) -> str:
    with pytest.raises(ParbenchError) as raised:
        plan_of(folder, entries, variants)
    return str(raised.value)


# ---------------------------------------------------------------- libraries


@pytest.mark.parametrize(
    ("name", "build", "size", "most"),
    [
        ("torchvision/resnet34", torchvision.models.resnet34, 32, 16),
        pytest.param(
            *("torchvision/resnext50_32x4d", torchvision.models.resnext50_32x4d, 32, 16),
            marks=pytest.mark.whole,
        ),
        pytest.param(
            *("torchvision/vgg11_bn", torchvision.models.vgg11_bn, 32, 5), marks=pytest.mark.whole
        ),
        ("torchvision/mobilenet_v3_small", torchvision.models.mobilenet_v3_small, 32, 1),
        ("torchvision/regnet_y_400mf", torchvision.models.regnet_y_400mf, 32, 1),
        ("timm/resnet10t", lambda **given: timm.create_model("resnet10t", **given), 32, 1),
    ],
)
def test_a_network_of_a_library_is_the_librarys_whole_and_in_stages(name, build, size, most):
    """The same seed gives the same weights in the same order, and the same output."""
    model = models.load(name)
    torch.manual_seed(7)
    blocks = model.build(10, size, {})
    torch.manual_seed(7)
    theirs = build(num_classes=10)
    pairs = zip(blocks.parameters(), theirs.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs.eval()(images)
        for number in {1, 2, most} if most > 1 else {1}:
            staged = stages.group(blocks, model.cuts(number, {}), "fp32", "cpu")
            assert len(staged) == number
            assert torch.equal(staged.eval()(images), expected)
    with pytest.raises(ParbenchError, match=f"cannot be cut into {most + 1} stages"):
        model.cuts(most + 1, {})


def test_a_network_that_must_know_the_image_size_is_given_it():
    for name in ("torchvision/vit_b_32", "timm/vit_tiny_patch16_224", "torchvision/maxvit_t"):
        size = 224 if "maxvit" in name else 64
        assert models.load(name).problem(size, {}) is None


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        (
            "torchvision/resnet43: {}",
            "models: unknown name 'torchvision/resnet43'; did you mean 'resnet34'?",
        ),
        (
            "timm/no-such-thing: {}",
            "own-study.yaml: models: unknown name 'timm/no-such-thing'; timm.list_models() lists",
        ),
        ("keras/resnet50: {}", "own-study.yaml: models: unknown name 'keras/resnet50'; "),
        (
            "file/mine: {}",
            "own-study.yaml: models: unknown name 'file/mine'; name a model file of ",
        ),
        (
            "torchvision/inception_v3: {}",
            "torchvision/inception_v3: it does not accept images of 32x32: RuntimeError: "
            "Calculated padded input size per channel",
        ),
        (
            "torchvision/vit_b_16: {settings: {image_size: 40}}",
            "torchvision/vit_b_16: `build` raises AssertionError: Input shape indivisible by patch",
        ),
        (
            "torchvision/resnet34: {options: {width: 3}}",
            "own-study.yaml: models.torchvision/resnet34.options: unknown key 'width' (value 3)",
        ),
    ],
)
def test_a_network_that_cannot_be_is_refused_when_planned(tmp_path, entry, sentence):
    assert sentence in refusal(tmp_path, entry)


def test_a_network_without_cuts_is_refused_for_pipelines(tmp_path):
    said = refusal(tmp_path, "torchvision/mobilenet_v3_small: {}", EAGER + GPIPE)
    assert "variants.gpipe with model torchvision/mobilenet_v3_small: " in said
    assert "is one block, and cannot be cut into 2 stages: nothing says that its parts" in said
    assert len(plan_of(tmp_path, "torchvision/resnet34: {}", EAGER + GPIPE).cells) == 2


def test_what_lacks_timm_is_not_run():
    class Without:
        def without(self, name: str, module: str) -> str | None:
            return "it is not here" if module == "timm" else None

    cell = certificate.cell_of("timm/resnet10t", "eager", 1, {})
    assert expansion.missing_packages(cell, Without()) == (
        "needs timm, which is not installed beside torch"
    )


@pytest.mark.whole
def test_strategies_compute_what_eager_does_with_networks_from_elsewhere(tmp_path):
    (tmp_path / "mine.py").write_text(IN_BLOCKS)
    plan = plan_of(tmp_path, "mine: {file: mine.py}")
    model_files.keep()
    mine = next(iter(plan.cells.values())).model.name
    todo = []
    for model, strategy, devices, options in [
        ("torchvision/mobilenet_v3_small", "ddp", 2, {}),
        ("timm/resnet10t", "fsdp", 2, {}),
        (mine, "ddp", 2, {}),
        (mine, "gpipe", 2, {"balance": [1, 1]}),
    ]:
        cell = certificate.cell_of(model, strategy, devices, options)
        todo += trials.trials_of(cell, ("fp32",), False)
    rows = certify.certify(todo)
    (model_files.KEPT / f"{mine.removeprefix('file/')}.py").unlink()
    assert {row["verdict"] for row in rows} == {"equal"}, certify.shown(rows)
    assert {row["model"] for row in rows} == {trial.cell.model.name for trial in todo}


# ---------------------------------------------------------------- files


def test_the_documents_example_can_be_planned(tmp_path):
    text = (places.ROOT / "docs/extending.md").read_text()
    (model,) = [
        code for code in re.findall(r"```python\n(.*?)```", text, re.S) if "def build" in code
    ]
    (study,) = [code for code in re.findall(r"```yaml\n(.*?)```", text, re.S) if "mine.py" in code]
    (tmp_path / "mine.py").write_text(model)
    (tmp_path / "nets.yaml").write_text(study)
    plan = planned(tmp_path / "nets.yaml").studies["nets"]
    compared = {(pair.model, pair.variant, pair.baseline) for pair in plan.pairs}
    assert {baseline for _, _, baseline in compared} == {"eager", "ddp"}
    assert len(compared) == 6


def test_a_file_is_known_by_its_content_alone(tmp_path):
    entry = "mine: {file: mine.py, options: {width: 2}}"
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        (folder / "mine.py").write_text(IN_BLOCKS)
    cells = plan_of(first, entry, EAGER + GPIPE).cells
    assert set(plan_of(second, entry, EAGER + GPIPE).cells) == set(cells)
    assert {cell.model.options["width"] for cell in cells.values()} == {2}
    (first / "beside.py").write_text("changed = True\n")
    assert set(plan_of(first, entry, EAGER + GPIPE).cells) == set(cells)
    (first / "mine.py").write_text(IN_BLOCKS.replace("nn.ReLU()", "nn.GELU()"))
    assert not set(plan_of(first, entry, EAGER + GPIPE).cells) & set(cells)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "mine.py: no such file"),
        ("def build(:\n", "line 1: invalid Python: "),
        ("import nothing_like_it\n", "raises ModuleNotFoundError: No module named 'nothing_like_"),
        ("build = 3\n", "defines no function `build(num_classes, image_size, options)`"),
        ("raise SystemExit('no')\n", "raises SystemExit: no"),
        (MINE + "OPTIONS = 3\n", "OPTIONS is a int, not a dict"),
        (
            MINE + "OPTIONS = {'a': {'type': 'integer'}}\n",
            "a needs a `description` and a `default`",
        ),
        (
            MINE + "OPTIONS = {'a': {'type': 'int', 'description': 'x', 'default': 1}}\n",
            "OPTIONS: a schema has a `type` of integer, number, string, boolean, array or object",
        ),
        (MINE.replace("return Net", "return 1 / 0  #"), "`build` raises ZeroDivisionError: "),
        (MINE.replace("return Net", "pass  #"), "`build` returns a NoneType, not an nn.Module"),
        (
            MINE.replace("num_classes, image_size, 4", "7, image_size, 4"),
            "a tensor (2, 7), not logits",
        ),
        (
            MINE.replace("image_size, 4", "8, 4"),
            "it does not accept images of 32x32: RuntimeError: ",
        ),
        (MINE + "VOCABULARY = 'bpe'\n", "VOCABULARY: a model with a file takes images; remove it"),
    ],
)
def test_a_file_that_is_not_a_model_is_refused_in_one_sentence(tmp_path, content, sentence):
    if content is not None:
        (tmp_path / "mine.py").write_text(content)
    said = refusal(tmp_path, "mine: {file: mine.py}")
    assert said.startswith(f"{tmp_path}/own-study.yaml: models.mine.file: mine.py: ")
    assert sentence in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("entry", "variants", "sentence"),
    [
        ("mine: {file: mine.py}", EAGER + GPIPE, "mine.py is one block, and cannot be cut into 2"),
        ("mine: {file: mine.py, model: cnn}", EAGER, "the entry also has `model`; keep one"),
        (
            "resnet18: {file: mine.py}",
            EAGER,
            "resnet18 is one of parbench's models; rename the entry",
        ),
        ("'my model': {file: mine.py}", EAGER, "consists of letters, digits, '_', '.' and '-'"),
        ("mine: {file: .}", EAGER, "models.mine.file: .: a folder; name the model's file"),
    ],
)
def test_an_entry_that_fits_no_file_is_refused(tmp_path, entry, variants, sentence):
    (tmp_path / "mine.py").write_text(MINE)
    assert sentence in refusal(tmp_path, entry, variants)


def test_cuts_that_name_no_block_are_refused(tmp_path):
    (tmp_path / "mine.py").write_text(IN_BLOCKS.replace('["head"]', '["body"]'))
    said = refusal(tmp_path, "mine: {file: mine.py}", GPIPE)
    assert "`cuts` returns ['body'] for 2 stages, not a list of 1 of the blocks that" in said
    assert said.endswith("`build` names: stem, head")


def test_a_model_file_is_trained_from_its_copy_and_again_after_a_change(tmp_path):
    work, paper = Workspace(tmp_path / "work"), tmp_path / "paper"
    paper.mkdir()
    (paper / "mine.py").write_text(MINE)
    (paper / "own-study.yaml").write_text(small_study("Own", "mine: {file: mine.py}", EAGER))
    named = ("--config", f"studies=[{paper}/own-study.yaml]")
    listed = work.parbench("cells", "--study", f"{paper}/own-study.yaml").stdout
    name = listed.split()[0]
    path = work.folder / "results/cells" / name / "metrics.json"
    work.snakemake(f"results/cells/{name}/metrics.json", *named)
    metrics = json.loads(path.read_text())
    assert metrics["status"] == "ok"
    called = metrics["cell"]["model"]["name"].removeprefix("file/")
    kept = work.folder / "results/plan/models" / f"{called}.py"
    assert kept.read_text() == MINE
    assert "parbench.models.libraries.file" in metrics["environment"]["code"]
    (paper / "mine.py").write_text(MINE.replace("image_size, 4)", "image_size, 5)"))
    listed = work.parbench("cells", "--study", f"{paper}/own-study.yaml").stdout
    assert name not in listed
    assert listed.split()[1] == "missing"


@pytest.mark.whole
def test_networks_from_elsewhere_come_to_a_certified_report(tmp_path):
    work = Workspace(tmp_path / "work")
    (tmp_path / "mine.py").write_text(MINE)
    entries = "mine: {file: mine.py}\nsmall: {model: torchvision/squeezenet1_1}\n"
    study = small_study("Own", entries, EAGER + DDP)
    pairs = "{restarts: 1, compare: [{variant: ddp, baseline: eager, models: [mine]}]}"
    (tmp_path / "own-study.yaml").write_text(f"{study}pairs: {pairs}\n")
    work.snakemake("--config", f"studies=[{tmp_path}/own-study.yaml]")
    rows = list(csv.DictReader((work.folder / "results/tables/own-study.csv").open()))
    assert {row["model"] for row in rows} == {"mine", "small"}
    report = (work.folder / "reports/final.html").read_text()
    assert "not certified" not in report


@pytest.mark.whole
def test_classifiers_of_torchvision_take_images_of_some_size():
    for name in models.library("torchvision/any").names()[::3]:
        model = models.load(f"torchvision/{name}")
        assert any(model.problem(size, {}) is None for size in (224, 512)), name
