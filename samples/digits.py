"""Two small networks trained on handwritten digits: scikit-learn's 1797 images of 8 x 8 pixels.

Networks with random weights hide what int8 does to a trained one; these show it in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fadiff.samples.transformers import Block

SIDE = 8
CLASSES = 10
_TRAINING = 1200
_CALIBRATION = 48
_BATCH = 64
_EPOCHS = 12
_WIDTH = 32


@dataclass(frozen=True)
class HeldOut:
    """What training did not see: images [count, 1, 1, 8, 8] in 0..1, and the digits of `images`."""

    calibration: Tensor
    images: Tensor
    labels: Tensor


class _Convolutions(nn.Sequential):
    """Three convolutions with batch norms, a max pool and a linear classifier: 34,000 weights."""

    def __init__(self) -> None:
        super().__init__(
            *_convolution(1, 16),
            *_convolution(16, 32),
            nn.MaxPool2d(2),
            *_convolution(32, 64),
            nn.Flatten(),
            nn.Linear(64 * (SIDE // 2) ** 2, CLASSES),
        )


def _convolution(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()


class _Transformer(nn.Module):
    """Eight rows of pixels as eight tokens, two pre-norm blocks, a classifier on their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(SIDE, _WIDTH)
        self.position = nn.Parameter(torch.randn(1, SIDE, _WIDTH) * 0.1)
        self.blocks = nn.Sequential(
            *(Block(_WIDTH, 4, 2 * _WIDTH, pre_norm=True, causal=False) for _ in range(2))
        )
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, CLASSES)

    def forward(self, image: Tensor) -> Tensor:
        tokens = self.embed(image.reshape(-1, SIDE, SIDE)) + self.position
        return self.head(self.norm(self.blocks(tokens)).mean(1))


def convolutions() -> nn.Module:
    """The convolutional network, not trained yet."""
    return _Convolutions()


def transformer() -> nn.Module:
    """The transformer, not trained yet."""
    return _Transformer()


def noise(_: Mapping[str, int], batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Random images [batch, 1, 8, 8] in 0..1."""
    return (torch.rand((batch, 1, SIDE, SIDE), generator=generator),)


def train(module: nn.Module, generator: torch.Generator) -> HeldOut:
    """Train `module` in place on 1200 images; equal generators give equal weights.

    Raises:
        ImportError: scikit-learn, which the images come with, is not installed.
    """
    images, labels = _digits()
    order = torch.randperm(len(images), generator=generator)
    training, calibration = order[:_TRAINING], order[_TRAINING:][:_CALIBRATION]
    rest = order[_TRAINING + _CALIBRATION :]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the order of sums, and so the weights, would depend on it
    try:
        _fit(module, images[training], labels[training], generator)
    finally:
        torch.set_num_threads(threads)
    return HeldOut(images[calibration, None], images[rest, None], labels[rest])


def _digits() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    data = load_digits()
    return torch.tensor(data.images[:, None] / 16, dtype=torch.float32), torch.tensor(data.target)


def _fit(module: nn.Module, images: Tensor, labels: Tensor, generator: torch.Generator) -> None:
    steps = _EPOCHS * -(-len(images) // _BATCH)
    optimiser = torch.optim.Adam(module.parameters(), 0.004, weight_decay=1e-5)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.01, total_steps=steps)
    module.train()
    for _ in range(_EPOCHS):
        order = torch.randperm(len(images), generator=generator)
        for first in range(0, len(order), _BATCH):
            batch = order[first : first + _BATCH]
            optimiser.zero_grad()
            nn.functional.cross_entropy(module(images[batch]), labels[batch]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
