"""Models are torchvision's own, cut into stages without changing what they compute."""

from __future__ import annotations

import pytest
import torch
import torchvision

import cells
import models
import stages
from errors import ParbenchError

NAMES = cells._modules("models")
REFERENCES = {
    "resnet18": lambda: torchvision.models.resnet18(num_classes=10),
    "resnet50": lambda: torchvision.models.resnet50(num_classes=10),
    "swin": lambda: torchvision.models.swin_t(num_classes=10),
}


def defaults(name):
    return {key: part["default"] for key, part in models.load(name).OPTIONS.items()}


@pytest.fixture(scope="module", params=NAMES)
def pair(request):
    """(name, our blocks, torchvision's model): the same seed gives the same weights."""
    torch.manual_seed(7)
    blocks = models.load(request.param).build(10, 32, defaults(request.param))
    torch.manual_seed(7)
    return request.param, blocks, REFERENCES[request.param]()


def test_same_parameters_in_the_same_order(pair):
    _, blocks, reference = pair
    ours, theirs = list(blocks.parameters()), list(reference.parameters())
    assert len(ours) == len(theirs)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_same_output(pair):
    _, blocks, reference = pair
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(blocks.eval()(images), reference.eval()(images))


@pytest.mark.parametrize("number", [1, 2, 4])
def test_stages_compute_the_same(pair, number):
    name, blocks, _ = pair
    cuts = models.load(name).cuts(number, defaults(name))
    staged = stages.group(blocks, cuts, "fp32", "cpu")
    assert len(staged) == number
    assert [id(p) for p in staged.parameters()] == [id(p) for p in blocks.parameters()]
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(staged.eval()(images), blocks.eval()(images))


def test_mixed_precision_is_entered_in_every_stage_also_in_gpipes_threads():
    """Autocast is thread-local: entered around a GPipe model, its workers would run float32."""
    from torchgpipe import GPipe

    blocks = models.load("resnet18").build(10, 32, {})
    staged = stages.group(blocks, ["layer3_0"], "bf16", "cpu")
    seen = set()
    for module in blocks.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
    model = GPipe(staged, [1, 1], devices=["cpu", "cpu"], chunks=2, checkpoint="always")
    model(torch.randn(8, 3, 32, 32)).float().sum().backward()  # recomputation included
    assert seen == {torch.bfloat16}


def test_a_number_of_stages_without_cuts_is_refused():
    with pytest.raises(ParbenchError, match="states cuts for 1, 2, 4 stages, not for 3"):
        models.load("resnet18").cuts(3, {})
    with pytest.raises(ParbenchError, match="4 transformer blocks"):
        models.load("swin").cuts(5, {**defaults("swin"), "depths": [2, 2], "num_heads": [3, 6]})


def test_every_model_has_a_reference():
    assert set(REFERENCES) == set(NAMES)
