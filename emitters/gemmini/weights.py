"""The weight blob: every constant the firmware reads, aligned, in graph order."""

from __future__ import annotations

from collections.abc import Mapping as MappingABC
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np

from converter.graph import Graph, TensorCoreLayer
from costmodel.mapping import Mapping
from emitters.gemmini.arena import align


@dataclass
class WeightBlob:
    """Content and the place of each constant.

    Depthwise weights are stored as the rows of block-diagonal tiles, [G, R, S, block], under the
    name of their layer; everything else as the tensor is, under the tensor's name.
    """

    offsets: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    _parts: list[bytes] = field(default_factory=list)
    nbytes: int = 0

    def add(self, name: str, content: np.ndarray) -> None:
        """Append a constant, unless it is there already."""
        if name in self.offsets:
            return
        data = np.ascontiguousarray(content)
        raw = data.astype(data.dtype.newbyteorder("<"), copy=False).tobytes()
        self.offsets[name], self.sizes[name] = self.nbytes, len(raw)
        padding = align(len(raw)) - len(raw)
        self._parts += [raw, bytes(padding)]
        self.nbytes += len(raw) + padding

    @property
    def content(self) -> bytes:
        """The blob."""
        return b"".join(self._parts)


def block_diagonal(weights: np.ndarray, mapping: Mapping) -> np.ndarray:
    """Depthwise weights [G, R, S, 1, 1] as rows [G, R, S, block] of block-diagonal array tiles.

    The column of a channel is its place in its block, and blocks start anew with every tile.
    """
    groups, r, s = weights.shape[:3]
    block = mapping.cols.G
    channel = np.arange(groups)
    column = channel % mapping.tile_l2.G % mapping.tile_l1.G % block
    rows = np.zeros((groups, r, s, block), weights.dtype)
    rows[channel, :, :, column] = weights.reshape(groups, r, s)
    return rows


def build_blob(graph: Graph, mappings: MappingABC[str, Mapping], plain: AbstractSet[str]) -> WeightBlob:
    """Collect the constants of all layers; depthwise weights of `plain` layers stay [G, R, S]."""
    blob = WeightBlob()
    for layer in graph.layers:
        for name in layer.inputs:
            data = graph.tensors[name].data
            if data is None:
                continue
            if isinstance(layer, TensorCoreLayer) and layer.op == "depthwise" and name == layer.weight.tensor:
                expanded = data if layer.name in plain else block_diagonal(data, mappings[layer.name])
                blob.add(layer.name, expanded)
            else:
                blob.add(name, data)
    return blob
