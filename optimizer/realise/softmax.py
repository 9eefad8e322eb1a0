"""Softmax whose rows a product reads: the core makes exponentials, stores divide by their sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fadiff.converter.ir.graph import Graph, HostLayer, Layer, Tensor, TensorCoreLayer, View
from fadiff.converter.ir.host import EXPONENTIAL, Exponentials, Softmax
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.realise.realised import Realised


def realised_softmax(graph: Graph, layer: Layer, target: Target) -> Realised | None:
    """The layers; None for a float array, rows that are not next to each other, other readers than a product
    whose depth is a whole row, and a bias, which would be divided, too."""
    if not isinstance(layer, HostLayer):
        return None
    operator, out = layer.operator, graph.tensors[layer.outputs[0]]
    readers = graph.consumers(out.name)
    if not isinstance(operator, Softmax) or out.dtype != "int8" or operator.rows.inner != 1 or out.zero:
        return None
    if len(readers) != 1 or out.name in graph.outputs:
        return None
    reader = readers[0]
    if not isinstance(reader, TensorCoreLayer) or not _reads_rows(reader, out.name, operator.rows.length):
        return None
    length = operator.rows.length
    powers = np.asarray(graph.tensors[layer.inputs[1]].data, np.float64) / 2**24
    entries = (np.rint(powers * 2**22) * 256 + np.rint(powers * EXPONENTIAL)).astype(np.int32)
    table = Tensor(f"{layer.name}.numerators", entries.shape, "int32", None, entries)
    e = Tensor(f"{layer.name}.exponentials", out.shape, "int8", 1.0)
    factors = Tensor(f"{layer.name}.reciprocals", (operator.rows.outer,), "float32")
    inputs = (layer.inputs[0], table.name, *layer.inputs[2:])
    exponentials = Exponentials(operator.rows, operator.mask_rows)
    core = HostLayer(layer.name, exponentials, inputs, (e.name, factors.name), layer.onnx_nodes)
    view = reader.input
    g, n, h, w = (stride // length for stride in view.strides[:4])
    product = replace(
        reader,
        input=replace(view, tensor=e.name),
        scale=float(np.float32(reader.scale / (out.scale or 1.0))),
        row_scale=View(factors.name, view.offset // length, (g, n, h, w, 0)),
    )
    replaced = (layer.name, reader.name)
    return Realised(
        "product with a scale per row", replaced, (core, product), (table, e, factors), exact=False
    )


def _reads_rows(reader: TensorCoreLayer, tensor: str, length: int) -> bool:
    """Whether every pixel of the reader is a row of the tensor."""
    view = reader.input
    is_product = reader.op in ("gemm", "bmm") and length == reader.dims.C and view.strides[4] == 1
    rows = all(stride % length == 0 for stride in (view.offset, *view.strides[:4]))
    plain = reader.bias is None and reader.row_scale is None and reader.weight.tensor != tensor
    return view.tensor == tensor and is_product and rows and plain
