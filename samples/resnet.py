"""ResNets (He et al. 2016)."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

_RESIDUAL_GAIN = 0.3


def _conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)
    )


class _Residual(nn.Module):
    """A residual block: ReLU(body(x) + shortcut(x))."""

    def __init__(self, body: nn.Sequential, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = body
        # as in trained networks, a block changes its input a little rather than replaces it
        last = [m for m in body.modules() if isinstance(m, nn.BatchNorm2d)][-1]
        nn.init.constant_(last.weight, _RESIDUAL_GAIN)
        plain = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if plain else _conv_bn(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def _basic(inputs: int, width: int, stride: int) -> _Residual:
    body = nn.Sequential(_conv_bn(inputs, width, 3, stride), nn.ReLU(), _conv_bn(width, width, 3))
    return _Residual(body, inputs, width, stride)


def _bottleneck(inputs: int, width: int, stride: int) -> _Residual:
    body = nn.Sequential(
        _conv_bn(inputs, width, 1),
        nn.ReLU(),
        _conv_bn(width, width, 3, stride),
        nn.ReLU(),
        _conv_bn(width, 4 * width, 1),
    )
    return _Residual(body, inputs, 4 * width, stride)


def _resnet(blocks: tuple[int, int, int, int], bottleneck: bool, classes: int) -> nn.Module:
    layers: dict[str, nn.Module] = {"conv1": _conv_bn(3, 64, 7, 2), "relu": nn.ReLU()}
    layers["maxpool"] = nn.MaxPool2d(3, 2, 1)
    channels = 64
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for i in range(count):
            stride = 2 if stage and not i else 1
            block = _bottleneck if bottleneck else _basic
            layers[f"layer{stage + 1}_{i}"] = block(channels, width, stride)
            channels = width * (4 if bottleneck else 1)
    layers |= {"avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    layers["fc"] = nn.Linear(channels, classes)
    return nn.Sequential(OrderedDict(layers))


def resnet18(classes: int = 1000) -> nn.Module:
    """ResNet-18: basic blocks 2-2-2-2."""
    return _resnet((2, 2, 2, 2), False, classes)


def resnet50(classes: int = 1000) -> nn.Module:
    """ResNet-50: bottlenecks 3-4-6-3."""
    return _resnet((3, 4, 6, 3), True, classes)


def resnet152(classes: int = 1000) -> nn.Module:
    """ResNet-152: bottlenecks 3-8-36-3."""
    return _resnet((3, 8, 36, 3), True, classes)
