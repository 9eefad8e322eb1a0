"""Which arguments of a graph are tokens, positions and masks, where it is a language model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fadiff.converter.ir.graph import Graph, HostLayer
from fadiff.converter.ir.host import Gather, Scatter

_POSITION = "pos"
"""In names of positions: position, position_ids, cache_position, pos."""
_MASK = "mask"
"""In names of masks of a cache: 1 for every row that is there after the run, 0 behind them."""


@dataclass(frozen=True)
class TokenProgram:
    """Tensors of a graph that takes tokens, their positions and masks, and gives scores of the next."""

    tokens: str
    positions: tuple[str, ...]
    masks: tuple[str, ...]
    """One number for every row of a cache."""
    count: int
    """Tokens of one run."""
    scores: str
    rows: int
    """Of the scores: one for every token, or one for the last."""
    vocabulary: int
    """Scores of a row."""
    context: int
    """Positions that there are, by the tables and caches that they index, and masks; 0: any."""

    @property
    def sees(self) -> float:
        """Rows that its context has; infinity: any."""
        return self.context or math.inf

    @property
    def fills_up(self) -> bool:
        """Whether a shorter prompt may fill up behind its end: positions or masks tell what is looked at."""
        return self.rows > 1 and bool(self.positions or self.masks)


def step_programs(programs: Sequence[TokenProgram]) -> list[int]:
    """Which of the entries of a language model take single tokens, the last among them, by the rows that they
    see: a step goes to the first that sees its own."""
    single = (i for i, program in enumerate(programs) if program.count == 1)
    return sorted(single, key=lambda i: programs[i].sees)


def prompt_programs(programs: Sequence[TokenProgram]) -> list[int]:
    """Which of the entries of a language model take prompts, by their size: all that shorter prompts fill up,
    else the first; none where all take single tokens.

    A prompt goes to the smallest that it fits, else to the largest, and the rest token by token.
    """
    longer = [i for i, program in enumerate(programs) if program.count > 1]
    sized = sorted(longer, key=lambda i: programs[i].count)
    return [i for i in sized if programs[i].fills_up] or longer[:1]


def rows_after(arguments: Mapping[str, np.ndarray]) -> int:
    """Rows of a cache that are there after a call, by the names and numbers of positions and masks; 0 where
    nothing tells."""
    rows = 0
    whole = {name.lower(): array for name, array in arguments.items() if array.dtype.kind in "iub"}
    for name, array in whole.items():
        if _MASK in name:
            rows = max(rows, int(np.count_nonzero(array, axis=-1).max()))
        elif _POSITION in name:
            rows = max(rows, int(array.max(initial=-1)) + 1)
    return rows


def token_program(graph: Graph) -> TokenProgram | None:
    """A graph as a language model, None where it is none.

    Its arguments are integers: positions and masks by their names, one that is neither, all but masks of one
    size; the only result has scores.
    """
    masks = tuple(name for name in graph.arguments if _MASK in _named(graph, name))
    positions = tuple(n for n in graph.arguments if n not in masks and _POSITION in _named(graph, n))
    tokens = [name for name in graph.arguments if name not in (*positions, *masks)]
    if len(tokens) != 1 or len(graph.results) != 1:
        return None
    count, scores = graph.tensors[tokens[0]].size, graph.tensors[graph.results[0]]
    if any(graph.tensors[name].dtype != "int32" for name in graph.arguments):
        return None
    if any(graph.tensors[name].size != count for name in positions):
        return None
    vocabulary = scores.shape[-1] if scores.shape else 1
    rows = scores.size // vocabulary
    if rows not in (1, count) or scores.onnx_axes is not None or scores.along is not None or scores.zero:
        return None
    indexed = [
        layer.operator.rows.length
        for layer in graph.layers
        if isinstance(layer, HostLayer)
        and isinstance(layer.operator, Gather | Scatter)
        and layer.inputs[1] in positions
    ]
    indexed += [graph.tensors[name].size for name in masks]
    context = min(indexed, default=0)
    return TokenProgram(tokens[0], positions, masks, count, scores.name, rows, vocabulary, context)


def _named(graph: Graph, name: str) -> str:
    return (graph.tensors[name].onnx_name or name).lower()
