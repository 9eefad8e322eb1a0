"""A table look-up that one product of two tensors reads, as SwiGLU has: both at once."""

from __future__ import annotations

from dataclasses import replace

from fadiff.converter.ir.graph import Graph, HostLayer, Layer
from fadiff.converter.ir.host import Binary, Lookup, TableProduct
from fadiff.converter.ir.loops import Loops
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.realise.realised import Realised


def realised_table_of_product(graph: Graph, layer: Layer, target: Target) -> Realised | None:
    """One host operator; None where the table's values have other readers, or another order in memory."""
    if not isinstance(layer, HostLayer) or not isinstance(layer.operator, Binary):
        return None
    operator, (a, b) = layer.operator, layer.inputs[:2]
    tensors = [graph.tensors[name] for name in (a, b, layer.outputs[0])]
    if operator.function != "mul" or a == b or {t.dtype for t in tensors} != {target.element_type}:
        return None
    for at, name in enumerate((a, b)):
        writers, alone = graph.producers(name), len(graph.consumers(name)) == 1 and name not in graph.outputs
        if len(writers) != 1 or not alone:
            continue
        writer = writers[0]
        if not isinstance(writer, HostLayer) or not isinstance(writer.operator, Lookup):
            continue
        table = writer.operator.loops
        whole = table.shape == (tensors[at].size,) and table.inputs[0] == table.output
        if not whole or table.output.offset or table.output.strides != (1,):
            continue
        loops = operator.loops if at == 0 else _swapped(operator.loops)
        product = TableProduct(loops, operator.scale, operator.activation)
        inputs = (writer.inputs[0], b if at == 0 else a, writer.inputs[1])
        nodes = (*writer.onnx_nodes, *layer.onnx_nodes)
        together = replace(layer, operator=product, inputs=inputs, onnx_nodes=nodes)
        return Realised("product by way of a table", (writer.name, layer.name), (together,), ())
    return None


def _swapped(loops: Loops) -> Loops:
    return replace(loops, inputs=loops.inputs[::-1])
