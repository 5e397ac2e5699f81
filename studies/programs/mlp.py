"""The network of Ray Train's benchmark: three layers, each with a ReLU, the last one, too."""

from torch import nn


def network(pixels, classes):
    """Return it for images of so many numbers: [B, ...] -> [B, classes]."""
    layers = [nn.Linear(pixels, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(512, classes), nn.ReLU())


def build(num_classes, image_size, options):
    """Return it for a study's images, which have three channels."""
    return network(3 * image_size**2, num_classes)
