"""Activation functions as the store of an identity on the array: Gemmini's norm unit has I-GELU there.

Its polynomial (Kim et al., I-BERT, 2021) has two free integers, and the store a scale: those that come
nearest to a table serve GELU, SiLU and hard-swish.  Gemmini computes it in 32 bits, for which sums of
products are too fine, so integers of the tensor are taken, not the sums before.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fadiff.converter.ir.graph import Graph, HostLayer, Layer, Tensor, TensorCoreLayer, View
from fadiff.converter.ir.host import Lookup
from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.realise.realised import Realised

MOST_LSB = 2.0
"""Steps of the output that any of the 256 integers may be off a table."""
_EVERY = np.arange(-128, 128)


def realised_activation(graph: Graph, layer: Layer, target: Target) -> Realised | None:
    """One product; None where the hardware lacks I-GELU, of tables that it does not come near to, and of
    elements in another order than before."""
    table = dense_table(graph, layer)
    if table is None or not target.has_normalizations:
        return None
    x, out = graph.tensors[layer.inputs[0]], graph.tensors[layer.outputs[0]]
    found = nearest_igelu(table.tobytes())
    block = max(n for n in range(1, target.side + 1) if x.size % n == 0)
    if found is None or block < min(target.side, 4):
        return None
    polynomial, scale = found
    data = np.eye(block, dtype=np.int8).reshape(1, 1, 1, block, block)
    ones = Tensor(f"{layer.name}.ones", data.shape, "int8", 1.0, data)
    rows = View(x.name, 0, (0, 0, block, 0, 1))
    product = TensorCoreLayer(
        layer.name,
        "gemm",
        Dims(K=block, C=block, P=x.size // block),
        rows,
        View(ones.name, 0, (block * block, block * block, block * block, block, 1)),
        View(out.name, 0, rows.strides),
        (x.size // block, 1),
        scale=scale,
        onnx_nodes=layer.onnx_nodes,
        polynomial=polynomial,
    )
    return Realised("store through I-GELU", (layer.name,), (product,), (ones,), exact=False)


def dense_table(graph: Graph, layer: Layer) -> np.ndarray | None:
    """int8 [256] by which a layer replaces each element in its place; None where it does not."""
    if not isinstance(layer, HostLayer) or not isinstance(layer.operator, Lookup):
        return None
    x, table = (graph.tensors[name] for name in layer.inputs[:2])
    out, loops = graph.tensors[layer.outputs[0]], layer.operator.loops
    dense = loops.shape == (x.size,) == (out.size,) and loops.output == loops.inputs[0]
    if not dense or loops.output.offset or (x.dtype, out.dtype) != ("int8", "int8") or table.data is None:
        return None
    return np.asarray(table.data, np.int8)


@lru_cache(maxsize=1024)
def nearest_igelu(table: bytes) -> tuple[tuple[int, int], float] | None:
    """b, c and scale that come nearest to what 256 int8 become, by least squares over those that do not
    saturate; None where one of them is more than `MOST_LSB` off."""
    wanted = np.frombuffer(table, np.int8).astype(np.float64)
    free = np.abs(wanted + 0.5) < 127
    signs, best = np.where(_EVERY < 0, -1, 1), None
    for b in range(-512, -3):
        squares = (np.minimum(np.abs(_EVERY), -b) + b) ** 2
        # It is scale * x * (sign * squares) + scale * c * x * (sign + 1): linear in scale and in scale * c.
        terms = np.stack([_EVERY * signs * squares, _EVERY * (signs + 1)], 1)[free]
        (scale, product), _, rank, _ = np.linalg.lstsq(terms, wanted[free], rcond=None)
        c = round(product / scale) if rank == 2 and scale else 0
        if 128 * (2 * abs(c) + b * b) >= 2**31:
            continue  # (32 bits hold all that there is on the way)
        value = _EVERY * (signs * (squares + c) + c)
        scale = np.float32(value[free] @ wanted[free] / max(value[free] @ value[free], 1))
        errors = np.clip(np.rint(value.astype(np.float32) * scale), -128, 127) - wanted
        if np.abs(errors).max() <= MOST_LSB and (best is None or errors @ errors < best[0]):
            best = float(errors @ errors), (b, c), float(scale)
    return best and best[1:]
