"""Swin transformer (Liu et al. 2021): attention in windows, shifted every second block."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

WINDOW = 7
_PATCH = 4
_MASKED = -100.0


def _partition(x: Tensor) -> Tensor:
    """[batch, height, width, channels] -> [batch * windows, 49, channels]."""
    batch, height, width, channels = x.shape
    x = x.reshape(batch, height // WINDOW, WINDOW, width // WINDOW, WINDOW, channels)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, WINDOW * WINDOW, channels)


def _join(windows: Tensor, height: int, width: int) -> Tensor:
    """The inverse of `_partition`."""
    channels = windows.shape[-1]
    x = windows.reshape(-1, height // WINDOW, width // WINDOW, WINDOW, WINDOW, channels)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, height, width, channels)


def _relative_index() -> Tensor:
    """[49, 49] rows of the bias table: one per distance of two pixels of a window."""
    pixels = torch.stack(torch.meshgrid(torch.arange(WINDOW), torch.arange(WINDOW), indexing="ij"), -1)
    distance = pixels.reshape(-1, 1, 2) - pixels.reshape(1, -1, 2) + WINDOW - 1
    return distance[..., 0] * (2 * WINDOW - 1) + distance[..., 1]


def _shift_mask(side: int, shift: int) -> Tensor:
    """[windows, 1, 49, 49]: pixels that the cyclic shift made neighbours do not see each other."""
    region = torch.zeros(side)
    region[-WINDOW:-shift], region[-shift:] = 1, 2
    windows = _partition((3 * region[:, None] + region[None, :])[None, :, :, None])[..., 0]
    apart = windows[:, None, :] != windows[:, :, None]
    return (apart * _MASKED)[:, None]


class _WindowAttention(nn.Module):
    """Attention among the 49 pixels of a window, with a learned bias per distance."""

    index: Tensor
    mask: Tensor | None

    def __init__(self, width: int, heads: int, mask: Tensor | None) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.table = nn.Parameter(0.02 * torch.randn((2 * WINDOW - 1) ** 2, heads))
        self.register_buffer("index", _relative_index(), persistent=False)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, windows: Tensor) -> Tensor:
        count, pixels, width = windows.shape
        qkv = self.qkv(windows).reshape(count, pixels, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = q / math.sqrt(width // self.heads) @ k.transpose(-1, -2)
        scores = scores + self.table[self.index].permute(2, 0, 1)
        if self.mask is not None:
            scores = scores + self.mask.repeat(count // len(self.mask), 1, 1, 1)
        context = (scores.softmax(-1) @ v).transpose(1, 2).reshape(windows.shape)
        return self.out(context)


class _Block(nn.Module):
    """Pre-norm block on [batch, side, side, width]; `shift` rolls the windows by half of their size."""

    def __init__(self, width: int, heads: int, side: int, shift: int) -> None:
        super().__init__()
        self.shift = shift
        self.attention = _WindowAttention(width, heads, _shift_mask(side, shift) if shift else None)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
        y = _join(self.attention(_partition(y)), x.shape[1], x.shape[2])
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        x = x + y
        return x + self.feed_forward(self.norm2(x))


class _PatchMerging(nn.Module):
    """Half the resolution, twice the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.reduce = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        corners = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        return self.reduce(self.norm(torch.cat(corners, -1)))


class _Swin(nn.Module):
    """Patches, one plain and one shifted block, patch merging, classifier."""

    def __init__(self, image_size: int, layers: int, classes: int) -> None:
        super().__init__()
        side, width, heads = image_size // _PATCH, 96, 3
        if side % (2 * WINDOW):
            raise ValueError(f"image size {image_size}: Swin needs a multiple of {2 * WINDOW * _PATCH}")
        self.patches, self.norm = nn.Conv2d(3, width, _PATCH, _PATCH), nn.LayerNorm(width)
        self.blocks = nn.Sequential(
            *(_Block(width, heads, side, (i % 2) * (WINDOW // 2)) for i in range(layers))
        )
        self.merge, self.last = _PatchMerging(width), nn.LayerNorm(2 * width)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.norm(self.patches(image).permute(0, 2, 3, 1))
        x = self.last(self.merge(self.blocks(x)))
        return self.head(x.mean((1, 2)))


def swin(image_size: int, layers: int, classes: int = 1000) -> nn.Module:
    """The first stage of Swin-T with patch merging and a classifier.

    Raises:
        ValueError: the image does not split into windows.
    """
    return _Swin(image_size, layers, classes)
