"""Published weights: read safely, loaded into a model's own blocks, and trained by a cell."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from dataclasses import replace

import pytest
import torch
import torchvision
from safetensors.torch import save_file

from parbench import models
from parbench.cell import Pretrained
from parbench.data import pretrained, weights
from parbench.data.tokens import Vocabulary
from parbench.errors import ParbenchError
from parbench.plan import config_files
from require import require_package
from training import altered
from training import cell as small_cell
from workspace import Workspace, small_study

ENTRIES = {name: entry.stated() for name, entry in config_files.read().weights.items()}


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
    """Return a ResNet-18 as a publisher saves it: (file, its entry under `weights`, network)."""
    path = tmp_path_factory.mktemp("published") / "resnet18.pth"
    network = network_of_resnet()
    torch.save(network.state_dict(), path)
    return path, entry(path, "resnet18", "torchvision/resnet18"), network


def entry(path, model, network, **more):
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return {
        **{"model": model, "urls": [path.as_uri()]},
        **({"network": network, "image_size": 224} if network else {}),
        **{"size": path.stat().st_size, "sha256": sha256},
        **more,
    }


@pytest.fixture
def prepared(published, tmp_path):
    """Prepare the weights; return (folder of a dataset beside them, their entry, network)."""
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


@pytest.mark.parametrize("name", [each for each in ENTRIES if "network" in ENTRIES[each]])
def test_entries_of_the_configuration_are_of_their_models(name):
    """Weights have the shapes and order of the library's network; nothing is initialized."""
    spec = ENTRIES[name]
    options = models.options(spec["model"], spec.get("options", {}))
    with torch.device("meta"):
        network = weights.network(spec)
        ours = models.load(spec["model"]).build(1000, spec["image_size"], options)
    assert weights.classes(network) == 1000
    # Without dimensions of 1: a linear layer is a convolution of one pixel.
    shapes = [
        [[n for n in p.shape if n > 1] for p in each.parameters()] for each in (ours, network)
    ]
    assert shapes[0] == shapes[1]


TEXTS = {"bert": (30522, 0), "roberta": (50265, 1), "distilbert": (30522, 0)}  # tokens, padding


@pytest.mark.parametrize("name", [each for each in ENTRIES if "network" not in ENTRIES[each]])
def test_entries_of_texts_are_of_their_models(name):
    """Their files have as many bytes as the model's weights, except for heads."""
    require_package("text", "transformers")
    spec = ENTRIES[name]
    tokens, pad = TEXTS[spec["model"]]
    options = models.options(spec["model"], spec.get("options", {}))
    with torch.device("meta"):
        ours = models.load(spec["model"]).build(2, Vocabulary(tokens, pad, 0, 0), options)
    assert spec["size"] == pytest.approx(sum(4 * p.numel() for p in ours.parameters()), rel=0.01)


SMALL = {"hidden_dim": 12, "depth": 2, "num_heads": 2, "mlp_dim": 24, "max_positions": 32}


@pytest.mark.parametrize("model", TEXTS)
def test_a_language_model_becomes_a_classifier(model, tmp_path):
    """Its body computes what the published one does; the head is drawn by the seed."""
    require_package("text", "transformers")
    from transformers import AutoModelForMaskedLM

    vocabulary = Vocabulary(50, TEXTS[model][1], 0, 0)
    config = models.load(model).network(2, vocabulary, models.options(model, SMALL)).config
    theirs = AutoModelForMaskedLM.from_config(config).eval()
    # The names in the oldest files.
    old = {
        key.replace("LayerNorm.weight", "LayerNorm.gamma"): value
        for key, value in theirs.state_dict().items()
    }
    torch.save(old, tmp_path / "file")
    spec = entry(tmp_path / "file", model, None, options=SMALL)
    place = tmp_path / "results/weights/mine"
    weights.prepare("mine", spec, place / pretrained.WEIGHTS, place / pretrained.DIGEST)
    value = altered(cell_of(spec), model={"name": model})
    ours = models.load(model).build(5, vocabulary, models.options(model, SMALL)).eval()
    drawn = {name: tensor.clone() for name, tensor in ours.head.state_dict().items()}
    pretrained.load(ours, value, tmp_path / "results/data/sst2")
    tokens = torch.randint(2, 50, (3, 9))
    with torch.no_grad():
        body = theirs.base_model(tokens).last_hidden_state
        assert torch.allclose(ours[:-1](tokens)[..., :-1], body, atol=1e-5)
    assert all(map(torch.equal, ours.head.state_dict().values(), drawn.values()))
    other = models.load(model).build(5, replace(vocabulary, size=60), models.options(model, SMALL))
    with pytest.raises(ParbenchError, match="choose a dataset with the vocabulary that they were"):
        pretrained.load(other, value, tmp_path / "results/data/sst2")


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


@pytest.mark.whole
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
    """Return the IDs of the study's cells."""
    lines = work.parbench("cells", *chosen).stdout.splitlines()
    return [word for line in lines for word in line.split() if word.startswith("resnet18.")]
