"""Networks of depthwise-separable convolutions: MobileNet v1, v2, v3, EfficientNet-B0."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def _conv_bn(
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    activation: type[nn.Module] | None = nn.ReLU,
) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    layers: list[nn.Module] = [conv, nn.BatchNorm2d(outputs)]
    if activation is not None:
        layers.append(activation())
    return nn.Sequential(*layers)


def _classifier(features: list[nn.Module], channels: int, classes: int) -> nn.Module:
    return nn.Sequential(*features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def mobilenetv1(classes: int = 1000) -> nn.Module:
    """MobileNet v1, width 1.0 (Howard et al. 2017)."""
    layers: list[nn.Module] = [_conv_bn(3, 32, 3, 2)]
    channels = 32
    plan = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
    for width, stride in plan:
        layers += [_conv_bn(channels, channels, 3, stride, channels), _conv_bn(channels, width, 1)]
        channels = width
    return _classifier(layers, channels, classes)


class _SqueezeExcite(nn.Module):
    """x times a gate per channel computed from the channel means."""

    def __init__(self, channels: int, reduced: int, gate: type[nn.Module], inner: type[nn.Module]) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, reduced, 1),
            inner(),
            nn.Conv2d(reduced, channels, 1),
            gate(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x)


class _Inverted(nn.Module):
    """Inverted residual: expand, depthwise, optional squeeze-excite, project."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int,
        expanded: int,
        activation: type[nn.Module],
        excite: nn.Module | None = None,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        if expanded != inputs:
            layers.append(_conv_bn(inputs, expanded, 1, activation=activation))
        layers.append(_conv_bn(expanded, expanded, kernel, stride, expanded, activation))
        if excite is not None:
            layers.append(excite)
        layers.append(_conv_bn(expanded, outputs, 1, activation=None))
        self.body = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


def mobilenetv2(classes: int = 1000) -> nn.Module:
    """MobileNet v2 (Sandler et al. 2018): expansion, channels, repeats, stride."""
    plan = [
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ]
    layers: list[nn.Module] = [_conv_bn(3, 32, 3, 2, activation=nn.ReLU6)]
    channels = 32
    for factor, width, count, stride in plan:
        for i in range(count):
            step = stride if i == 0 else 1
            layers.append(_Inverted(channels, width, 3, step, channels * factor, nn.ReLU6))
            channels = width
    layers.append(_conv_bn(channels, 1280, 1, activation=nn.ReLU6))
    return _classifier(layers, 1280, classes)


def mobilenetv3(classes: int = 1000) -> nn.Module:
    """MobileNet v3 small (Howard et al. 2019): kernel, expanded, channels, excite, hard-swish, stride."""
    plan = [
        (3, 16, 16, True, False, 2),
        (3, 72, 24, False, False, 2),
        (3, 88, 24, False, False, 1),
        (5, 96, 40, True, True, 2),
        (5, 240, 40, True, True, 1),
        (5, 240, 40, True, True, 1),
        (5, 120, 48, True, True, 1),
        (5, 144, 48, True, True, 1),
        (5, 288, 96, True, True, 2),
        (5, 576, 96, True, True, 1),
        (5, 576, 96, True, True, 1),
    ]
    layers: list[nn.Module] = [_conv_bn(3, 16, 3, 2, activation=nn.Hardswish)]
    channels = 16
    for kernel, expanded, width, excites, swish, stride in plan:
        excite = _SqueezeExcite(expanded, max(8, expanded // 4), nn.Hardsigmoid, nn.ReLU) if excites else None
        activation = nn.Hardswish if swish else nn.ReLU
        layers.append(_Inverted(channels, width, kernel, stride, expanded, activation, excite))
        channels = width
    layers.append(_conv_bn(channels, 576, 1, activation=nn.Hardswish))
    head = [
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(576, 1024),
        nn.Hardswish(),
        nn.Linear(1024, classes),
    ]
    return nn.Sequential(*layers, *head)


def efficientnet_b0(classes: int = 1000) -> nn.Module:
    """EfficientNet-B0 (Tan and Le 2019): expansion, channels, repeats, stride, kernel."""
    plan = [
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 40, 2, 2, 5),
        (6, 80, 3, 2, 3),
        (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    ]
    layers: list[nn.Module] = [_conv_bn(3, 32, 3, 2, activation=nn.SiLU)]
    channels = 32
    for factor, width, count, stride, kernel in plan:
        for i in range(count):
            expanded = channels * factor
            excite = _SqueezeExcite(expanded, max(1, channels // 4), nn.Sigmoid, nn.SiLU)
            step = stride if i == 0 else 1
            layers.append(_Inverted(channels, width, kernel, step, expanded, nn.SiLU, excite))
            channels = width
    layers.append(_conv_bn(channels, 1280, 1, activation=nn.SiLU))
    return _classifier(layers, 1280, classes)


class _Shuffle(nn.Module):
    """Channel shuffle of ShuffleNet: groups and channels change places."""

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        return x.reshape(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class _ShuffleUnit(nn.Module):
    """ShuffleNet v2 unit: half of the channels pass, half go through a separable convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.body = nn.Sequential(
            _conv_bn(half, half, 1), _conv_bn(half, half, 3, 1, half, None), _conv_bn(half, half, 1)
        )
        self.shuffle = _Shuffle()

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        return self.shuffle(torch.cat([a, self.body(b)], 1))


def shufflenet(classes: int = 1000) -> nn.Module:
    """A ShuffleNet-v2-like network: splits, concatenations and channel shuffles."""
    layers: list[nn.Module] = [_conv_bn(3, 32, 3, 2)]
    channels = 32
    for width in (64, 128, 256):
        layers += [_conv_bn(channels, width, 3, 2), _ShuffleUnit(width), _ShuffleUnit(width)]
        channels = width
    return _classifier(layers, channels, classes)
