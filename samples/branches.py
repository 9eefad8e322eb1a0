"""Networks with branches and concatenations: SqueezeNet, DenseNet, Inception, U-Net, a detection head."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class _Concat(nn.Module):
    """The outputs of several branches, concatenated over channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


def squeezenet(classes: int = 1000) -> nn.Module:
    """SqueezeNet 1.1 (Iandola et al. 2016)."""

    def fire(inputs: int, squeezed: int, expanded: int) -> nn.Module:
        return nn.Sequential(
            _conv(inputs, squeezed, 1), _Concat(_conv(squeezed, expanded, 1), _conv(squeezed, expanded, 3))
        )

    return nn.Sequential(
        _conv(3, 64, 3, 2),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        fire(64, 16, 64),
        fire(128, 16, 64),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        fire(128, 32, 128),
        fire(256, 32, 128),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        fire(256, 48, 192),
        fire(384, 48, 192),
        fire(384, 64, 256),
        fire(512, 64, 256),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, classes),
    )


class _DenseLayer(nn.Module):
    """x with 32 more channels: batch norm and ReLU come before each convolution."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


def densenet121(classes: int = 1000) -> nn.Module:
    """DenseNet-121 (Huang et al. 2017): growth 32, blocks 6-12-24-16."""
    layers: list[nn.Module] = [_conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for block, count in enumerate((6, 12, 24, 16)):
        for _ in range(count):
            layers.append(_DenseLayer(channels, 32))
            channels += 32
        if block < 3:
            transition = nn.Conv2d(channels, channels // 2, 1, bias=False)
            layers += [nn.BatchNorm2d(channels), nn.ReLU(), transition, nn.AvgPool2d(2)]
            channels //= 2
    layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(channels, classes))


def inception(classes: int = 1000) -> nn.Module:
    """Inception-like: 1x1, 3x3, double 3x3 and pooled branches side by side."""

    def block(inputs: int, width: int) -> nn.Module:
        return _Concat(
            _conv(inputs, width, 1),
            nn.Sequential(_conv(inputs, width // 2, 1), _conv(width // 2, width, 3)),
            nn.Sequential(_conv(inputs, width // 2, 1), _conv(width // 2, width, 3), _conv(width, width, 3)),
            nn.Sequential(nn.AvgPool2d(3, 1, 1), _conv(inputs, width, 1)),
        )

    layers: list[nn.Module] = [_conv(3, 32, 3, 2), _conv(32, 64, 3), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for width in (32, 64, 96):
        layers += [block(channels, width), nn.MaxPool2d(2)]
        channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


class _UNet(nn.Module):
    """Three levels down and up, skip connections, transposed convolutions."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        widths = (32, 64, 128)
        self.down = nn.ModuleList(_conv(a, b, 3) for a, b in zip((3, 32, 64), widths, strict=True))
        self.bottom = _conv(128, 256, 3)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths))
        self.merge = nn.ModuleList(_conv(2 * w, w, 3) for w in reversed(widths))
        self.head = nn.Conv2d(32, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for layer in self.down:
            x = layer(x)
            skips.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.bottom(x)
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([up(x), skips.pop()], 1))
        return self.head(x)


def unet(classes: int = 8) -> nn.Module:
    """A small U-Net: per-pixel logits of 8 classes."""
    return _UNet(classes)


class _DetectionHead(nn.Module):
    """YOLO-like: two scales joined by nearest upsampling, sigmoid on the predictions."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv(3, 32, 3, 2), _conv(32, 64, 3, 2), _conv(64, 128, 3, 2))
        self.deep = _conv(128, 256, 3, 2)
        self.reduce = _conv(256, 128, 1)
        self.near = nn.Conv2d(256, outputs, 1)
        self.far = nn.Conv2d(256, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        deep = self.deep(x)
        joined = torch.cat([nn.functional.interpolate(self.reduce(deep), scale_factor=2.0), x], 1)
        predictions = [self.near(joined).flatten(2), self.far(deep).flatten(2)]
        return torch.cat(predictions, 2).transpose(1, 2).sigmoid()


def detector(outputs: int = 85) -> nn.Module:
    """A YOLO-like detection network: [boxes, 85]."""
    return _DetectionHead(outputs)
