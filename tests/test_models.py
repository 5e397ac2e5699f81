"""Models are torchvision's own or what their source states; stages change nothing of them."""

from __future__ import annotations

from functools import partial

import pytest
import timm
import torch
import torchvision
from torch import nn

from parbench import models
from parbench.errors import ParbenchError
from parbench.strategies import _stages as stages

NAMES = models.names()


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
    """The usual change of torchvision's: a stem without stride and pooling."""
    network = torchvision.models.resnet18(num_classes=10)
    network.conv1, network.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return network


def vision_transformer():
    return torchvision.models.VisionTransformer(32, 4, 6, 3, 192, 768, num_classes=10)


# What each is by its defaults, and its parameters for 10 classes, as they are counted elsewhere.
REFERENCES = {
    "cnn": (cnn, 3_249_098),
    "convnext": (lambda: torchvision.models.convnext_tiny(num_classes=10), 27_827_818),
    "convnextv2": (lambda: timm.create_model("convnextv2_tiny", num_classes=10), 27_874_186),
    "deep_cnn": (resnet18_for_small_images, 11_173_962),
    "deit": (
        lambda: timm.create_model("deit_tiny_patch16_224", img_size=32, num_classes=10),
        5_489_482,
    ),
    "resnet18": (lambda: torchvision.models.resnet18(num_classes=10), 11_181_642),
    "resnet50": (lambda: torchvision.models.resnet50(num_classes=10), 23_528_522),
    "resnet101": (lambda: torchvision.models.resnet101(num_classes=10), 42_520_650),
    "simple_cnn": (plain_cnn, 17_154),
    "swin": (lambda: torchvision.models.swin_t(num_classes=10), 27_527_044),
    "vit": (vision_transformer, 2_693_578),
}
# torchvision draws their weights in another order.
DRAWN_OTHERWISE = {"deep_cnn"}


def defaults(name):
    return {key: part["default"] for key, part in models.load(name).OPTIONS.items()}


@pytest.fixture(scope="module", params=NAMES)
def pair(request):
    """(name, our blocks, the reference): the same seed gives the same weights."""
    torch.manual_seed(7)
    blocks = models.load(request.param).build(10, 32, defaults(request.param))
    torch.manual_seed(7)
    reference = REFERENCES[request.param][0]()
    if request.param in DRAWN_OTHERWISE:
        values = zip(blocks.state_dict().values(), reference.state_dict(), strict=True)
        reference.load_state_dict({name: value for value, name in values})
    return request.param, blocks, reference


def test_same_parameters_in_the_same_order(pair):
    name, blocks, reference = pair
    ours, theirs = list(blocks.parameters()), list(reference.parameters())
    assert len(ours) == len(theirs)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert sum(parameter.numel() for parameter in ours) == REFERENCES[name][1]


def test_same_output(pair):
    _, blocks, reference = pair
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(blocks.eval()(images), reference.eval()(images))


@pytest.mark.parametrize(
    ("name", "size", "options", "reference"),
    [
        ("convnext", 32, {"depths": [3, 3, 27, 3]}, torchvision.models.convnext_small),
        # ViT-B/16, as studies write it.
        (
            "vit",
            224,
            {
                **{"patch_size": 16, "hidden_dim": 768, "depth": 12, "num_heads": 12},
                **{"mlp_dim": 3072, "dropout": 0, "stochastic_depth": 0},
            },
            torchvision.models.vit_b_16,
        ),
        # The Swin for 32x32 images of the studies that are scaled down.
        (
            "swin",
            32,
            {
                **{"patch_size": 4, "embed_dim": 48, "depths": [2, 2], "num_heads": [3, 6]},
                **{"window_size": 4, "stochastic_depth": 0},
            },
            partial(
                torchvision.models.SwinTransformer,
                *([4, 4], 48, [2, 2], [3, 6], [4, 4]),
            ),
        ),
    ],
)
def test_other_sizes_are_torchvisions(name, size, options, reference):
    """Shapes and order of the weights; nothing is drawn."""
    with torch.device("meta"):
        ours = models.load(name).build(10, size, {**defaults(name), **options})
        theirs = reference(num_classes=10)
    shapes = [[tuple(p.shape) for p in each.parameters()] for each in (ours, theirs)]
    assert shapes[0] == shapes[1]


# The other sizes that studies use, by their options.
SIZES = {
    "convnextv2_nano": ("convnextv2", {"depths": [2, 2, 8, 2], "dims": [80, 160, 320, 640]}),
    "convnextv2_tiny": ("convnextv2", {}),
} | {
    f"deit_{size}{kind}_patch16_224": (
        "deit",
        {"embed_dim": 64 * heads, "num_heads": heads, "distilled": kind == "_distilled"},
    )
    for size, heads in {"tiny": 3, "small": 6, "base": 12}.items()
    for kind in ("", "_distilled")
}


@pytest.mark.parametrize("size", SIZES)
def test_sizes_have_as_many_parameters_as_timm_says(size):
    name, options = SIZES[size]
    with torch.device("meta"):  # shapes alone
        reference = timm.create_model(size, num_classes=10)
        blocks = models.load(name).build(10, 224, {**defaults(name), **options})
    count = sum(parameter.numel() for parameter in blocks.parameters())
    assert count == sum(parameter.numel() for parameter in reference.parameters())


def test_distilled_deit_computes_what_timms_does():
    torch.manual_seed(7)
    reference = timm.create_model("deit_tiny_distilled_patch16_224", img_size=32, num_classes=10)
    torch.manual_seed(7)
    blocks = models.load("deit").build(10, 32, {**defaults("deit"), "distilled": True})
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(blocks.eval()(images), reference.eval()(images))


def test_stochastic_depth_rises_to_the_last_block():
    blocks = models.load("vit").build(10, 32, {**defaults("vit"), "stochastic_depth": 0.5})
    rates = [m.p for m in blocks.modules() if isinstance(m, torchvision.ops.StochasticDepth)]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5])


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
    with pytest.raises(ParbenchError, match="17 is not divisible by num_heads 3"):
        models.load("vit").cuts(1, {**defaults("vit"), "hidden_dim": 17})
    with pytest.raises(ParbenchError, match="image_size 32 is no multiple of patch_size 5"):
        models.load("vit").build(10, 32, {**defaults("vit"), "patch_size": 5})
    with pytest.raises(ParbenchError, match="image_size 32 is no multiple of patch_size 5"):
        models.load("deit").build(10, 32, {**defaults("deit"), "patch_size": 5})
    with pytest.raises(ParbenchError, match="17 is not divisible by num_heads 3"):
        models.load("deit").cuts(1, {**defaults("deit"), "embed_dim": 17})
    with pytest.raises(ParbenchError, match="image_size 16 with patch_size 4 leaves no pixel"):
        models.load("convnextv2").build(10, 16, defaults("convnextv2"))
    with pytest.raises(ParbenchError, match="image_size 28 leaves no pixel"):
        models.load("convnext").build(10, 28, defaults("convnext"))
    with pytest.raises(ParbenchError, match="4 transformer blocks"):
        models.load("swin").cuts(5, {**defaults("swin"), "depths": [2, 2], "num_heads": [3, 6]})


def test_every_model_has_a_reference():
    assert set(REFERENCES) == set(NAMES)
