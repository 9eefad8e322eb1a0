"""Integer-valued counts whose gradient is that of the plain ratio (straight-through estimator)."""

from __future__ import annotations

import torch
from torch import Tensor

from fadiff.costmodel.mapping.tiling import Division

ROUNDING = 1e-4
"""By how much a ratio that should be an integer may miss it."""


def exact(value: Tensor, gradient_of: Tensor) -> Tensor:
    """`value` in the forward pass with the gradient of `gradient_of`."""
    return gradient_of + (value - gradient_of).detach()


def ceil(ratio: Tensor) -> Tensor:
    """Ceiling that forgives rounding errors of integral ratios; no gradient."""
    return torch.ceil(ratio - ROUNDING)


def floor(ratio: Tensor) -> Tensor:
    """Floor that forgives rounding errors of integral ratios; no gradient."""
    return torch.floor(ratio + ROUNDING)


DIVISION = Division(lambda a, b: floor(a / b), lambda a, b: ceil(a / b))
"""Of tensors; no gradient."""
