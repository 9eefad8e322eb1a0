"""Transformer blocks as people export them: BERT, GPT-2, ViT, LLaMA."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class _Attention(nn.Module):
    """Multi-head self-attention with separate projections; causal adds the usual mask."""

    def __init__(self, width: int, heads: int, *, causal: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=bias) for _ in range(4))

    def _split(self, x: Tensor) -> Tensor:
        batch, seq, width = x.shape
        return x.reshape(batch, seq, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self._split(layer(x)) for layer in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if self.causal:
            seq = x.shape[1]
            scores = scores + torch.full((seq, seq), -1e9).triu(1)
        context = scores.softmax(-1) @ v
        return self.out(context.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    """Attention and feed-forward, normalised before (GPT, ViT) or after (BERT)."""

    def __init__(self, width: int, heads: int, hidden: int, *, pre_norm: bool, causal: bool) -> None:
        super().__init__()
        self.attention = _Attention(width, heads, causal=causal)
        self.feed_forward = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.pre_norm = pre_norm

    def forward(self, x: Tensor) -> Tensor:
        """Tokens [batch, seq, width] to tokens."""
        if self.pre_norm:
            x = x + self.attention(self.norm1(x))
            return x + self.feed_forward(self.norm2(x))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.feed_forward(x))


def bert(layers: int) -> nn.Module:
    """BERT-base encoder blocks: 768 wide, 12 heads, post-norm."""
    return nn.Sequential(*(Block(768, 12, 3072, pre_norm=False, causal=False) for _ in range(layers)))


def gpt2(layers: int) -> nn.Module:
    """GPT-2 small decoder blocks: 768 wide, 12 heads, pre-norm, causal."""
    return nn.Sequential(*(Block(768, 12, 3072, pre_norm=True, causal=True) for _ in range(layers)))


def gpt3(layers: int, width: int = 4096) -> nn.Module:
    """GPT-3 6.7B decoder blocks: 4096 wide, 32 heads of 128; 0.8 GB of weights per block.

    A smaller width, a multiple of 128, is a stand-in with the same shape of block.

    Raises:
        ValueError: the width does not split into heads.
    """
    if width % 128:
        raise ValueError(f"width {width}: GPT-3 needs a multiple of 128, the size of a head")
    block = [Block(width, width // 128, 4 * width, pre_norm=True, causal=True) for _ in range(layers)]
    return nn.Sequential(*block)


class _VisionTransformer(nn.Module):
    """ViT-tiny: 16 x 16 patches, class token, 192 wide, 3 heads."""

    def __init__(self, image_size: int, layers: int, classes: int) -> None:
        super().__init__()
        width = 192
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.position = nn.Parameter(torch.randn(1, (image_size // 16) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(
            *(Block(width, 3, 4 * width, pre_norm=True, causal=False) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        return self.head(self.norm(self.blocks(x))[:, 0])


def vit(image_size: int, layers: int, classes: int = 1000) -> nn.Module:
    """ViT-tiny with a classifier on the class token."""
    return _VisionTransformer(image_size, layers, classes)


class _LlamaBlock(nn.Module):
    """RMS norm, rotary positions, grouped-query attention, SwiGLU."""

    def __init__(self, width: int, heads: int, groups: int, hidden: int) -> None:
        super().__init__()
        head = width // heads
        self.heads, self.groups = heads, groups
        self.q, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, groups * head, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)
        self.norm1, self.norm2 = (nn.Parameter(torch.ones(width)) for _ in range(2))

    @staticmethod
    def _rms(x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight

    @staticmethod
    def _rotate(x: Tensor) -> Tensor:
        seq, head = x.shape[-2:]
        angle = torch.arange(seq)[:, None] * 10000 ** (-torch.arange(0, head, 2) / head)
        cos, sin = (f(torch.cat([angle, angle], -1)) for f in (torch.cos, torch.sin))
        half = torch.cat([-x[..., head // 2 :], x[..., : head // 2]], -1)
        return x * cos + half * sin

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, width = x.shape
        head = width // self.heads
        y = self._rms(x, self.norm1)
        q = self._rotate(self.q(y).reshape(batch, seq, self.heads, head).transpose(1, 2))
        k = self._rotate(self.k(y).reshape(batch, seq, self.groups, head).transpose(1, 2))
        v = self.v(y).reshape(batch, seq, self.groups, head).transpose(1, 2)
        repeat = self.heads // self.groups
        k, v = (
            t[:, :, None].expand(-1, -1, repeat, -1, -1).reshape(batch, self.heads, seq, head) for t in (k, v)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(head) + torch.full((seq, seq), -1e9).triu(1)
        context = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, seq, width)
        x = x + self.out(context)
        y = self._rms(x, self.norm2)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))


def llama(layers: int) -> nn.Module:
    """LLaMA-style blocks: 512 wide, 8 heads in 2 key-value groups, hidden 1376."""
    return nn.Sequential(*(_LlamaBlock(512, 8, 2, 1376) for _ in range(layers)))
