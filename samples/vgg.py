"""VGG (Simonyan and Zisserman 2015)."""

from __future__ import annotations

from torch import nn


def _vgg(convs: tuple[int, ...], image_size: int, classes: int) -> nn.Module:
    """At most 7 x 7 pixels reach the classifier; a smaller image leaves fewer, and a smaller classifier."""
    layers: list[nn.Module] = []
    channels = 3
    for width, count in zip((64, 128, 256, 512, 512), convs, strict=True):
        for _ in range(count):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    side = max(1, min(7, image_size // 32))
    layers += [nn.AdaptiveAvgPool2d(side), nn.Flatten(), nn.Linear(512 * side**2, 4096), nn.ReLU()]
    layers += [nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, classes)]
    return nn.Sequential(*layers)


def vgg16(image_size: int = 224, classes: int = 1000) -> nn.Module:
    """VGG-16 with batch norm, configuration D."""
    return _vgg((2, 2, 3, 3, 3), image_size, classes)


def vgg19(image_size: int = 224, classes: int = 1000) -> nn.Module:
    """VGG-19 with batch norm, configuration E."""
    return _vgg((2, 2, 4, 4, 4), image_size, classes)
