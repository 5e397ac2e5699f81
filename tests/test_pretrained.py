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
from torch import nn

import config
import models
import pretrained
import weights
from errors import ParbenchError
from training import cell as small_cell
from workspace import Workspace, small_study


def network_of_resnet():
    torch.manual_seed(3)
    network = torchvision.models.resnet18()
    for buffer in network.buffers():  # as after training
        if buffer.dtype.is_floating_point:
            buffer.uniform_(0.5, 1.5)
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
    """(results folder of data, the entry, the network), with the weights made ready."""
    _, spec, network = published
    folder = tmp_path / "results/weights/mine"
    weights.prepare("mine", spec, folder / "weights.safetensors", folder / "digest.json")
    return tmp_path / "results/data/digits", spec, network


def cell_of(spec, **changes):
    value = small_cell(model="resnet18", **changes)
    value["model"]["pretrained"] = {"weights": "mine", "sha256": spec["sha256"]}
    config.check(value, "cell", "test cell")
    return value


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


@pytest.mark.parametrize(
    ("name", "options", "kind"),
    [
        ("deit_tiny_distilled_patch16_224", {"distilled": True}, "wrapped"),
        ("convnextv2_nano", {"depths": [2, 2, 8, 2], "dims": [80, 160, 320, 640]}, "safetensors"),
    ],
)
def test_weights_of_timm(tmp_path, name, options, kind):
    """Also as some publishers wrap them, and as safetensors."""
    from safetensors.torch import save_file

    network, path = timm.create_model(name), tmp_path / "file"
    if kind == "wrapped":
        torch.save({"model": network.state_dict(), "epoch": 3}, path)
    else:
        save_file(network.state_dict(), path)
    model = "deit" if name.startswith("deit") else "convnextv2"
    spec = entry(path, model, f"timm/{name}", options=options)
    tensors, classes = weights.renamed(spec, path)
    assert classes == 1000
    usual = {key: part["default"] for key, part in models.load(model).OPTIONS.items()}
    blocks = models.load(model).build(1000, 224, usual | options)
    blocks.load_state_dict(tensors)
    images = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(blocks.eval()(images), network.eval()(images))


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
        (
            lambda path: torch.save(torchvision.models.resnet34().state_dict(), path),
            "not the weights of torchvision/resnet18: Unexpected key",
        ),
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


def test_a_wrong_digest_is_refused_before_the_file_is_opened(published, tmp_path):
    _, spec, _ = published
    out = tmp_path / "weights.safetensors"
    with pytest.raises(ParbenchError, match="no mirror gave the file with SHA-256 0000"):
        weights.prepare("mine", {**spec, "sha256": "0" * 64}, out, tmp_path / "digest.json")
    assert not out.exists()


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ("torchvision/resnet34", "is not the model resnet18"),
        ("torchvision/resnet3", "network torchvision/resnet3: "),
        ("timm/resnet3", "network timm/resnet3: "),
    ],
)
def test_another_network_is_refused(tmp_path, network, words):
    path = tmp_path / "file"
    torch.save(torchvision.models.resnet34().state_dict(), path)
    with pytest.raises(ParbenchError, match=words):
        weights.renamed(entry(path, "resnet18", network), path)


def test_damaged_and_other_weights_are_refused_by_the_cell(prepared):
    data, spec, _ = prepared
    value = cell_of(spec)
    value["model"]["pretrained"]["sha256"] = "1" * 64
    with pytest.raises(ParbenchError, match="the cell wants 1111"):
        pretrained.load(resnet18(), value, data)
    path = data.parent.parent / "weights/mine/weights.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(ParbenchError, match="is damaged; delete it and run snakemake again"):
        pretrained.load(resnet18(), cell_of(spec), data)


def test_images_of_another_size_are_told(prepared):
    data, spec, _ = prepared
    blocks = resnet18()
    blocks.stem.conv1 = nn.Conv2d(3, 64, 3)
    words = (
        r"published weights of resnet18 have stem.conv1.weight as \[64, 3, 7, 7\], the model has"
    )
    with pytest.raises(ParbenchError, match=words):
        pretrained.load(blocks, cell_of(spec), data)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({}, "no weights of vit with the options {'depth': 2}; it has none of this model"),
        ({"a": {"model": "vit"}}, r"it has a \(options {}\)"),
        (
            {
                "a": {"model": "vit", "options": {"depth": 2}},
                "b": {"model": "vit", "options": {"depth": 2}},
            },
            "several entries under weights in config.yaml are of this model",
        ),
    ],
)
def test_weights_are_chosen_by_model_and_options(entries, words):
    options = models.load("vit").OPTIONS
    usual = {key: part["default"] for key, part in options.items()}
    model = {"name": "vit", "options": usual | {"depth": 2}}
    with pytest.raises(ParbenchError, match=words) as caught:
        pretrained.chosen(model, options, entries, "studies/mine.yaml")
    assert str(caught.value).startswith("studies/mine.yaml: models.vit.pretrained: ")
    fits = {"c": {"model": "vit", "options": {"depth": 2}, "sha256": "12"}}
    found = pretrained.chosen(model, options, {**entries, **fits} if len(entries) < 2 else fits, "")
    assert found == {"weights": "c", "sha256": "12"}


def test_a_study_trains_from_published_weights(published, tmp_path):
    """Downloaded, renamed and loaded by the workflow; a cell without them is another cell."""
    _, spec, _ = published
    work = Workspace(tmp_path / "work")
    study = small_study(
        "Two", "resnet18: {pretrained: true}", "eager: {strategy: eager, hardware: cpu1}"
    )
    (work.folder / "studies/two.yaml").write_text(study)
    (work.folder / "mine.yaml").write_text(
        json.dumps({"studies": ["two"], "weights": {"resnet18": spec}})
    )
    chosen = ["--configfile", "mine.yaml"]
    assert work.jobs(*chosen)["weights"] == 1
    cell = planned(work, chosen)
    work.snakemake(f"results/cells/{cell}/metrics.json", *chosen)
    metrics = json.loads((work.folder / f"results/cells/{cell}/metrics.json").read_text())
    assert metrics["status"] == "ok"
    assert metrics["cell"]["model"]["pretrained"]["sha256"] == spec["sha256"]
    (work.folder / "studies/two.yaml").write_text(study.replace("true", "false"))
    assert "weights" not in work.jobs(*chosen)
    assert planned(work, chosen) != cell


def planned(work, chosen):
    """The one cell of the study."""
    lines = work.run("scripts/cells.py", *chosen, "list").stdout.splitlines()
    return next(word for line in lines for word in line.split() if word.startswith("resnet18."))
