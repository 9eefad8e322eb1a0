"""Seeded images in a few classes, and a last layer fitted to them.

Networks with random weights have logits that hardly differ, so top-1 agreement would measure luck.
Here every image is one of 16 smooth prototypes plus noise, and the classifier's last linear layer
is fitted to tell them apart (ridge regression on the features of the random network): the answer
has a margin, as in a trained network.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

CLASSES = 16
_PROTOTYPE_SEED = 20
_FIT_IMAGES = 64
_RIDGE = 0.1
_LOGIT_GAIN = 8.0


def images(options: Mapping[str, int], batch: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """`batch` images [3, size, size] of random classes, about unit variance."""
    return (labelled_images(options["image_size"], batch, generator)[0],)


def labelled_images(size: int, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images and their classes 0..15."""
    prototypes = _smooth_noise(CLASSES, size, torch.Generator().manual_seed(_PROTOTYPE_SEED))
    labels = torch.randint(CLASSES, (batch,), generator=generator)
    return prototypes[labels] + 0.3 * _smooth_noise(batch, size, generator), labels


def _smooth_noise(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Noise at several scales, as natural images have."""
    image = torch.zeros(count, 3, size, size)
    for cells in (4, 16, size):
        noise = torch.randn(count, 3, min(cells, size), min(cells, size), generator=generator)
        image += nn.functional.interpolate(noise, size=(size, size), mode="bilinear")
    return image / image.std()


@torch.no_grad()
def fit_classifier(module: nn.Module, size: int, generator: torch.Generator) -> None:
    """Set the last linear layer so that logits of the right class stand out; others stay random."""
    last = [m for m in module.modules() if isinstance(m, nn.Linear)][-1]
    features: list[Tensor] = []
    hook = last.register_forward_hook(lambda _, inputs, __: features.append(inputs[0]))
    batch, labels = labelled_images(size, _FIT_IMAGES, generator)
    for chunk in torch.split(batch, 8):
        module(chunk)
    hook.remove()
    x = torch.cat(features)
    mean = x.mean(0)
    x = x - mean
    kernel = x @ x.T
    target = nn.functional.one_hot(labels, CLASSES).float() - 1.0 / CLASSES
    ridge = _RIDGE * kernel.diagonal().mean() * torch.eye(len(x))
    weight = _LOGIT_GAIN * target.T @ torch.linalg.solve(kernel + ridge, x)
    rows = torch.arange(CLASSES) * (last.out_features // CLASSES)
    spread = weight.std() / last.weight.std()
    last.weight.mul_(spread)
    last.weight[rows] = weight
    last.bias.copy_(-last.weight @ mean)
