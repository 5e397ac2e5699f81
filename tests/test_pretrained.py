"""Published weights: read with care, put into a model's own blocks, and trained by a cell."""

from __future__ import annotations

import hashlib
import json
import os
import pickle

import pytest
import timm
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
    """The library's network, as it draws itself: names, order and what is computed."""
    spec = ENTRIES[name]
    tensors, classes = weights.renamed(spec, weights.network(spec))
    assert classes == 1000
    assert {key: value.dtype for key, value in tensors.items()}


def test_weights_as_safetensors_and_of_convolutions_that_are_linear_layers(tmp_path):
    """timm's nano has convolutions of one pixel where its tiny has linear layers."""
    options = {"depths": [2, 2, 8, 2], "dims": [80, 160, 320, 640]}
    network, path = timm.create_model("convnextv2_nano"), tmp_path / "file"
    save_file(network.state_dict(), path)
    spec = entry(path, "convnextv2", "timm/convnextv2_nano", options=options)
    tensors, _ = weights.renamed(spec, weights.read(spec, path))
    assert tensors["stage1_0.mlp.fc1.weight"].dim() == 2


def test_weights_that_a_publisher_has_wrapped(tmp_path):
    path = tmp_path / "file"
    torch.save({"model": network_of_resnet().state_dict(), "epoch": 3}, path)
    assert "conv1.weight" in weights.tensors_of(path)


class Runs:
    def __reduce__(self):
        return os.system, ("touch escaped",)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda path: path.write_bytes(b"no weights at all"), "neither safetensors nor weights"),
        (lambda path: path.write_bytes(pickle.dumps(Runs())), "neither safetensors nor weights"),
        (lambda path: torch.save({"a": Runs()}, path), "neither safetensors nor weights"),
        (lambda path: torch.save([1, 2], path), "holds no tensors by name"),
        (lambda path: torch.save({"a": torch.ones(1)}, path), "not the weights of torchvision/res"),
    ],
)
def test_what_is_no_weights_is_refused(tmp_path, monkeypatch, content, words):
    monkeypatch.chdir(tmp_path)
    path, out = tmp_path / "file", tmp_path / "weights.safetensors"
    content(path)
    with pytest.raises(ParbenchError, match=words):
        weights.prepare("mine", entry(path, "resnet18", "torchvision/resnet18"), out, out)
    assert not out.exists()
    assert not (tmp_path / "escaped").exists()


def test_an_old_pytorch_opens_no_file_of_its_own(published, monkeypatch):
    """There weights_only is not enough."""
    monkeypatch.setattr(torch, "__version__", "2.1.2+cpu")
    with pytest.raises(ParbenchError, match="PyTorch 2.1.2.* does not read its own files safely"):
        weights.tensors_of(published[0])


def test_a_wrong_digest_is_refused_before_the_file_is_opened(published, tmp_path):
    _, spec, _ = published
    out = tmp_path / "weights.safetensors"
    with pytest.raises(ParbenchError, match="no mirror gave the file with SHA-256 0000"):
        weights.prepare("mine", {**spec, "sha256": "0" * 64}, out, tmp_path / "digest.json")
    assert not out.exists()


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (
            "torchvision/resnet34",
            "is not the model resnet18 with options {}: 122 tensors here, 218",
        ),
        ("torchvision/resnet3", "network torchvision/resnet3: torchvision has no classifier"),
        ("torchvision/fcn_resnet50", "torchvision has no classifier of that name"),
        ("timm/resnet3", "network timm/resnet3: Unknown model"),
    ],
)
def test_another_network_is_refused(published, network, words):
    spec = {**published[1], "network": network}
    with pytest.raises(ParbenchError, match=words):
        weights.renamed(spec, weights.network(spec))


def test_a_network_that_computes_something_else_is_refused(published):
    network = network_of_resnet()
    network.relu = nn.Tanh()
    with pytest.raises(ParbenchError, match="with the same weights it computes something else"):
        weights.renamed(published[1], network)


AGAIN = "delete that folder and run snakemake again"


@pytest.mark.parametrize("damage", ["other", "bytes", "gone", "description", "fewer", "more"])
def test_weights_that_do_not_belong_to_the_cell_are_refused(prepared, damage):
    data, spec, _ = prepared
    value, place = cell_of(spec), data.parent.parent / "weights/mine"
    path = place / pretrained.WEIGHTS
    if damage == "other":
        value = cell_of({**spec, "sha256": "1" * 64})
    elif damage == "bytes":
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    elif damage == "gone":
        path.unlink()
    elif damage == "description":
        (place / pretrained.DIGEST).write_text("[]")
    else:
        tensors = resnet18(1000).state_dict() | ({"a": torch.ones(1)} if damage == "more" else {})
        if damage == "fewer":
            tensors.pop("stem.bn1.bias")
        save_file(tensors, path)
        described = json.loads((place / pretrained.DIGEST).read_text())
        described["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        (place / pretrained.DIGEST).write_text(json.dumps(described))
    with pytest.raises(ParbenchError, match=AGAIN):
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
