"""A small language model of characters, trained on sentences of FADiff's own documentation.

One file for prompts and for steps: tokens [1, seq] at positions [seq], keys and values in caches of fixed
size.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import Tensor, nn

ALPHABET = "\n abcdefghijklmnopqrstuvwxyz0123456789,.;:'()-/="
CONTEXT = 64
PROMPT = 32
"""Characters of a prompt in the data."""
_TEXT = Path(__file__).with_name("characters.txt")
_HELD_OUT = 0.1
"""Of the text, from its end."""
_WIDTH, _HEADS, _BLOCKS = 64, 4, 2
_BATCH, _STEPS, _RATE = 16, 500, 5e-3
_RUNS = {"calibration": (32, 12), "inputs": (4, 16)}
"""Prompts of a data file, and steps behind each."""


class _Block(nn.Module):
    """Pre-norm attention over a cache, and a feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(_WIDTH, _WIDTH) for _ in range(4))
        self.feed_forward = nn.Sequential(
            nn.Linear(_WIDTH, 4 * _WIDTH), nn.ReLU(), nn.Linear(4 * _WIDTH, _WIDTH)
        )

    def forward(
        self, x: Tensor, position: Tensor, seen: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens [batch, seq, width]; caches [batch, heads, CONTEXT, width / heads]."""
        batch, seq, _ = x.shape
        y = self.norm1(x)
        query, key, value = (
            layer(y).reshape(batch, seq, _HEADS, _WIDTH // _HEADS).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        keys, values = keys.index_copy(2, position, key), values.index_copy(2, position, value)
        scores = query @ keys.transpose(-1, -2) / math.sqrt(_WIDTH // _HEADS)
        weights = torch.where(seen, scores, torch.tensor(-1e9)).softmax(-1)
        x = x + self.out((weights @ values).transpose(1, 2).reshape(batch, seq, _WIDTH))
        return x + self.feed_forward(self.norm2(x)), keys, values


class CharacterModel(nn.Module):
    """Embedding, blocks, scores of the next character."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(len(ALPHABET), _WIDTH), nn.Embedding(CONTEXT, _WIDTH)
        for table in (self.embedding, self.places):
            nn.init.normal_(table.weight, std=0.2)
        self.blocks = nn.ModuleList(_Block() for _ in range(_BLOCKS))
        self.norm, self.head = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, len(ALPHABET))

    def forward(self, tokens: Tensor, position: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        """Scores [batch, seq, characters], and the caches with the new rows."""
        x = self.embedding(tokens) + self.places(position)
        seen = torch.arange(CONTEXT)[None] <= position[:, None]
        kept: list[Tensor] = []
        for block, keys, values in zip(self.blocks, caches[::2], caches[1::2], strict=True):
            x, *new = block(x, position, seen, keys, values)
            kept += new
        return self.head(self.norm(x)), *kept


def empty_caches(batch: int) -> list[Tensor]:
    """Zeros: keys and values of every block."""
    shape = (batch, _HEADS, CONTEXT, _WIDTH // _HEADS)
    return [torch.zeros(shape) for _ in range(2 * _BLOCKS)]


def write(path: Path, seed: int) -> tuple[Path, Path, Path]:
    """Train, and write FILE.onnx, FILE.calibration.npz, FILE.inputs.npz (runs of the entries `prefill`, seq =
    PROMPT, and `decode`, seq = 1) and FILE.text.npz: `alphabet`, code points by token, and `tokens`, text
    that training did not see.  Returns the three data files."""
    text = torch.tensor([ALPHABET.index(c) for c in _TEXT.read_text(encoding="ascii")])
    end = int((1 - _HELD_OUT) * len(text))
    model = _trained(text[:end], seed)
    _export(model, path)
    files = []
    generator = np.random.default_rng(seed)
    for ending, (runs, steps) in _RUNS.items():
        source = text[:end] if ending == "calibration" else text[end:]
        starts = generator.integers(0, len(source) - PROMPT - steps, runs)
        pieces = np.stack([source[at : at + PROMPT + steps].numpy() for at in starts])
        files.append(path.with_suffix(f".{ending}.npz"))
        arrays = {
            "prefill:tokens": pieces[:, None, :PROMPT],
            "prefill:position": np.tile(np.arange(PROMPT), (runs, 1)),
            "decode:tokens": pieces[:, PROMPT:].reshape(-1, 1, 1),
            "decode:position": np.tile(np.arange(PROMPT, PROMPT + steps), runs)[:, None],
        }
        np.savez(files[-1], allow_pickle=False, **arrays)
    files.append(path.with_suffix(".text.npz"))
    alphabet = np.array([ord(c) for c in ALPHABET])
    np.savez(files[-1], allow_pickle=False, alphabet=alphabet, tokens=text[end:].numpy())
    calibration, inputs, held_out = files
    return calibration, inputs, held_out


def _trained(text: Tensor, seed: int) -> CharacterModel:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model, position, caches = CharacterModel(), torch.arange(CONTEXT), empty_caches(_BATCH)
    optimiser = torch.optim.AdamW(model.parameters(), _RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, _RATE, total_steps=_STEPS)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the order of sums, and so the weights, would depend on it
    try:
        for _ in range(_STEPS):
            starts = torch.randint(len(text) - CONTEXT, (_BATCH,), generator=generator)
            pieces = torch.stack([text[at : at + CONTEXT + 1] for at in starts])
            scores, *_ = model(pieces[:, :-1], position, *caches)
            optimiser.zero_grad()
            nn.functional.cross_entropy(scores.flatten(0, 1), pieces[:, 1:].flatten()).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
    finally:
        torch.set_num_threads(threads)
    return model.eval()


def _export(model: CharacterModel, path: Path) -> None:
    """With a dimension `seq`."""
    caches = tuple(empty_caches(1))
    parts = [f"{what}.{block}" for block in range(_BLOCKS) for what in ("key", "value")]
    dynamic = torch.export.Dim.DYNAMIC
    torch.onnx.export(
        model,
        (torch.zeros(1, PROMPT, dtype=torch.long), torch.arange(PROMPT), *caches),
        path,
        dynamo=True,
        input_names=["tokens", "position", *(f"past.{part}" for part in parts)],
        output_names=["scores", *(f"present.{part}" for part in parts)],
        dynamic_shapes=({1: dynamic}, {0: dynamic}, (None,) * len(caches)),
        external_data=False,
        verbose=False,
    )
    exported = onnx.load(path)
    graph = exported.graph
    (name,) = (dim.dim_param for dim in graph.input[1].type.tensor_type.shape.dim)
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == name:
                dim.dim_param = "seq"
    onnx.save(exported, path)
