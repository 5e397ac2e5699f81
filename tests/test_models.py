"""Models equal torchvision's, timm's or what their source states; stages do not change them."""

from __future__ import annotations

from functools import partial

import pytest
import timm
import torch
import torchvision
from torch import nn

from parbench import models
from parbench.errors import ParbenchError
from parbench.measure import flops
from parbench.strategies import _stages as stages


def cnn():
    layers = []
    for inputs, width in ((3, 64), (64, 128), (128, 256)):
        for channels in (inputs, width):
            convolution = nn.Conv2d(channels, width, 3, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(width), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
    layers += [nn.Flatten(), nn.Linear(256 * 4 * 4, 512), nn.ReLU()]
    return nn.Sequential(*layers, nn.Dropout(0.5), nn.Linear(512, 10))


def plain_cnn():
    return nn.Sequential(
        *(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10)),
    )


def resnet18_for_small_images():
    """Return torchvision's network with the usual change: a stem without stride and pooling."""
    network = torchvision.models.resnet18(num_classes=10)
    network.conv1, network.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return network


def with_cifars_stem(builder):
    """Return torchvision's network with that change, its weights drawn as the others'."""
    network = builder(num_classes=10)
    network.conv1, network.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
    return network


# The reference of each model with 10 classes and default options, or those of the second word.
OPTIONS = {"": {}, "distilled": {"distilled": True}, "cifar": {"stem": "cifar"}}
REFERENCES = {
    "cnn": cnn,
    "convnext": partial(torchvision.models.convnext_tiny, num_classes=10),
    "convnextv2": partial(timm.create_model, "convnextv2_tiny", num_classes=10),
    "deep_cnn": resnet18_for_small_images,
    "deit": partial(timm.create_model, "deit_tiny_patch16_224", img_size=32, num_classes=10),
    "deit distilled": partial(
        timm.create_model, "deit_tiny_distilled_patch16_224", img_size=32, num_classes=10
    ),
    "resnet18": partial(torchvision.models.resnet18, num_classes=10),
    "resnet18 cifar": partial(with_cifars_stem, torchvision.models.resnet18),
    "resnet50 cifar": partial(with_cifars_stem, torchvision.models.resnet50),
    "resnet50": partial(torchvision.models.resnet50, num_classes=10),
    "resnet101": partial(torchvision.models.resnet101, num_classes=10),
    "simple_cnn": plain_cnn,
    "swin": partial(torchvision.models.swin_t, num_classes=10),
    "vit": partial(torchvision.models.VisionTransformer, 32, 4, 6, 3, 192, 768, num_classes=10),
}
# torchvision draws their weights in another order.
DRAWN_OTHERWISE = {"deep_cnn"}


@pytest.mark.parametrize("name", [*REFERENCES])
def test_a_model_is_its_reference_whole_and_in_stages(name):
    """The same seed gives the same weights in the same order, and the same output."""
    reference = REFERENCES[name]
    name, _, word = name.partition(" ")
    model, options = models.load(name), models.options(name, OPTIONS[word])
    torch.manual_seed(7)
    blocks = model.build(10, 32, options)
    torch.manual_seed(7)
    theirs = reference()
    if name in DRAWN_OTHERWISE:
        values = zip(blocks.state_dict().values(), theirs.state_dict(), strict=True)
        theirs.load_state_dict({name: value for value, name in values})
    pairs = zip(blocks.parameters(), theirs.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs.eval()(images)
        assert torch.equal(blocks.eval()(images), expected)
        for number in set(getattr(model, "CUTS", (2, 4))) - {1}:
            staged = stages.group(blocks, model.cuts(number, options), "fp32", "cpu")
            assert len(staged) == number
            assert [id(p) for p in staged.parameters()] == [id(p) for p in blocks.parameters()]
            assert torch.equal(staged.eval()(images), expected)


def test_stochastic_depth_rises_to_the_last_block():
    blocks = models.load("vit").build(10, 32, models.options("vit", {"stochastic_depth": 0.5}))
    rates = [m.p for m in blocks.modules() if isinstance(m, torchvision.ops.StochasticDepth)]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5])


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


@pytest.mark.parametrize(
    ("name", "given", "stages", "size", "words"),
    [
        ("resnet18", {}, 3, 32, "defines cuts for 1, 2, 4 stages, not for 3"),
        ("vit", {"hidden_dim": 17}, 1, 32, "17 is not divisible by num_heads 3"),
        ("vit", {"patch_size": 5}, 1, 32, "image_size 32 is not a multiple of patch_size 5"),
        ("swin", {"depths": [2, 2], "num_heads": [3, 6]}, 5, 32, "4 transformer blocks"),
        ("swin", {"depths": [2, 2]}, 1, 32, "give one number of heads for each depth"),
        ("swin", {"num_heads": [3, 6, 12, 5]}, 1, 32, "is not divisible by num_heads"),
    ],
)
def test_what_a_model_cannot_be_is_refused(name, given, stages, size, words):
    model, options = models.load(name), models.options(name, given)

    def made():
        return model.cuts(stages, options), model.build(10, size, options)

    with pytest.raises(ParbenchError, match=words):
        made()


# ---------------------------------------------------------------- their arithmetic


@pytest.mark.parametrize(
    ("name", "size", "options", "operations"),
    [
        # 2 x (3x3x3x4 on 32x32, 3x3x4x8 on 16x16, 512x32, 32x10)
        ("simple_cnn", 32, {}, 2 * (110_592 + 73_728 + 16_384 + 320)),
        # Grouped convolutions: as published, 4.5 G multiplications for 1,000 classes.
        ("convnext", 224, {}, 8.91e9),
    ],
)
def test_operations_of_a_training_step_are_three_times_those_of_a_forward_pass(
    name, size, options, operations
):
    module = models.load(name)
    defaults = {key: option["default"] for key, option in module.OPTIONS.items()}
    counted = flops.per_sample(lambda: module.build(10, size, defaults | options), size)
    assert counted == pytest.approx(3 * operations, rel=1e-3)
