"""Published weights: read with care, put into a model's own blocks, and trained by a cell."""

from __future__ import annotations

import hashlib
import json
import os
import pickle

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn

from parbench import models
from parbench.cell import Pretrained
from parbench.data import pretrained, weights
from parbench.errors import ParbenchError
from parbench.plan import config
from training import altered
from training import cell as small_cell
from workspace import Workspace, small_study

ENTRIES = config.load()["weights"]


def network_of_resnet():
    torch.manual_seed(3)
    network = torchvision.models.resnet18()
    for name, buffer in network.named_buffers():  # as after training
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)
        elif name.endswith("running_mean"):
            buffer.uniform_(-0.1, 0.1)
    return network


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """(file, its entry under `weights`, the network): a ResNet-18 as a publisher leaves it."""
    path = tmp_path_factory.mktemp("published") / "resnet18.pth"
    network = network_of_resnet()
    torch.save(network.state_dict(), path)
    return path, entry(path, "resnet18", "torchvision/resnet18"), network


def entry(path, model, network, **more):
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return {
        **{"model": model, "network": network, "image_size": 224, "urls": [path.as_uri()]},
        **{"size": path.stat().st_size, "sha256": sha256},
        **more,
    }


@pytest.fixture
def prepared(published, tmp_path):
    """(folder of a dataset, the entry, the network), with the weights made ready beside it."""
    _, spec, network = published
    place = tmp_path / "results/weights/mine"
    weights.prepare("mine", spec, place / pretrained.WEIGHTS, place / pretrained.DIGEST)
    return tmp_path / "results/data/digits", spec, network


def cell_of(spec, strategy="eager", devices=1, **changes):
    value = small_cell(strategy, devices, model="resnet18", **changes)
    known = {"sha256": spec["sha256"], "conversion": pretrained.CONVERSION}
    return altered(value, model={"pretrained": Pretrained("mine", **known)})


def resnet18(classes=10):
    return models.load("resnet18").build(classes, 32, {})


def test_a_model_computes_what_the_published_network_computes(prepared):
    data, spec, network = prepared
    blocks = resnet18(1000)
    pretrained.load(blocks, cell_of(spec), data)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(blocks.eval()(images), network.eval()(images))


def test_a_classifier_of_other_classes_is_the_seeds_own(prepared):
    data, spec, network = prepared
    torch.manual_seed(1)
    blocks = resnet18()
    drawn = blocks.head.fc.weight.clone()
    pretrained.load(blocks, cell_of(spec), data)
    assert torch.equal(blocks.head.fc.weight, drawn)
    assert torch.equal(blocks.stem.conv1.weight, network.conv1.weight)
    assert torch.equal(blocks.stem.bn1.running_var, network.bn1.running_var)


@pytest.mark.parametrize("name", ENTRIES)
def test_entries_of_the_configuration_are_of_their_models(name):
    """Shapes and order of the weights are the library's network's; nothing is drawn."""
    spec = ENTRIES[name]
    options = models.options(spec["model"], spec.get("options", {}))
    with torch.device("meta"):
        network = weights.network(spec)
        ours = models.load(spec["model"]).build(1000, spec["image_size"], options)
    assert weights.classes(network) == 1000
    # Without sides of one: a linear layer is a convolution of one pixel.
    shapes = [
        [[n for n in p.shape if n > 1] for p in each.parameters()] for each in (ours, network)
    ]
    assert shapes[0] == shapes[1]


def test_files_of_safetensors_and_those_that_a_publisher_has_wrapped(published, tmp_path):
    _, spec, network = published
    save_file(network.state_dict(), tmp_path / "plain")
    torch.save({"model": network.state_dict(), "epoch": 3}, tmp_path / "wrapped")
    for name in ("plain", "wrapped"):
        tensors = weights.renamed(spec, weights.read(spec, tmp_path / name))
        assert torch.equal(tensors["stem.conv1.weight"], network.conv1.weight)


class Runs:
    def __reduce__(self):
        return os.system, ("touch escaped",)


@pytest.mark.parametrize(
    "content",
    [
        lambda path: path.write_bytes(b"no weights at all"),
        lambda path: path.write_bytes(pickle.dumps(Runs())),
        lambda path: torch.save({"a": Runs()}, path),
        lambda path: torch.save([1, 2], path),
        lambda path: torch.save({"a": torch.ones(1)}, path),
    ],
)
def test_what_is_no_weights_is_refused(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    path, out = tmp_path / "file", tmp_path / "weights.safetensors"
    content(path)
    with pytest.raises(ParbenchError, match="file: not the weights of torchvision/resnet18 "):
        weights.prepare("mine", entry(path, "resnet18", "torchvision/resnet18"), out, out)
    assert not out.exists()
    assert not (tmp_path / "escaped").exists()


def test_another_network_is_refused(published, tmp_path):
    path, spec, network = published
    with pytest.raises(ParbenchError, match="not the weights of timm/resnet3 .Unknown model"):
        weights.read({**spec, "network": "timm/resnet3"}, path)
    other = {**spec, "network": "torchvision/resnet34"}
    with pytest.raises(ParbenchError, match="is not the model resnet18 with options {}: its tens"):
        weights.renamed(other, weights.network(other))
    network = network_of_resnet()
    network.relu = nn.Tanh()
    with pytest.raises(ParbenchError, match="with the same weights it computes something else"):
        weights.renamed(spec, network)


@pytest.mark.parametrize("damage", ["other", "bytes", "gone"])
def test_weights_that_do_not_belong_to_the_cell_are_refused(prepared, damage):
    data, spec, _ = prepared
    value, path = cell_of(spec), data.parent.parent / "weights/mine" / pretrained.WEIGHTS
    if damage == "other":
        value = cell_of({**spec, "sha256": "1" * 64})
    elif damage == "bytes":
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    else:
        path.unlink()
    with pytest.raises(ParbenchError, match="delete .*weights/mine and run snakemake again"):
        pretrained.load(resnet18(), value, data)


def test_a_study_trains_from_published_weights(published, tmp_path):
    """Downloaded, renamed and loaded by the workflow; a cell without them is another cell."""
    _, spec, _ = published
    work = Workspace(tmp_path / "work")
    study = small_study(
        "Two",
        "resnet18: {pretrained: mine}",
        """
eager: {strategy: eager, hardware: cpu1}
pipeline: {strategy: pipeline, options: {chunks: 1}, hardware: cpu2}
""",
    )
    (work.folder / "studies/two.yaml").write_text(study)
    (work.folder / "mine.yaml").write_text(
        json.dumps({"studies": ["two"], "weights": {"mine": spec}})
    )
    chosen = ["--configfile", "mine.yaml"]
    assert work.jobs(*chosen)["weights"] == 1
    ids = planned(work, chosen)
    work.snakemake(*(f"results/cells/{each}/metrics.json" for each in ids), *chosen)
    found = [
        json.loads((work.folder / f"results/cells/{each}/metrics.json").read_text()) for each in ids
    ]
    assert {each["status"] for each in found} == {"ok"}
    assert {each["cell"]["model"]["pretrained"]["sha256"] for each in found} == {spec["sha256"]}
    # A rank with half of the model starts from the same weights.
    first, second = (each["history"][0]["train_loss"] for each in found)
    assert first == pytest.approx(second, rel=1e-4)
    (work.folder / "studies/two.yaml").write_text(study.replace("pretrained: mine", ""))
    assert "weights" not in work.jobs(*chosen)
    assert not set(planned(work, chosen)) & set(ids)


def planned(work, chosen):
    """The cells of the study."""
    lines = work.run("scripts/cells.py", *chosen, "list").stdout.splitlines()
    return [word for line in lines for word in line.split() if word.startswith("resnet18.")]
