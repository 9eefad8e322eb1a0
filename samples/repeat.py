"""Networks of many equal blocks that are too large to export at once: one block, repeated in the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

_CHUNK = 2**22
_LARGE = 2**16
_SCOPES = "pkg.torch.onnx.name_scopes"


def repeat_block(path: Path, blocks: int, seed: int) -> None:
    """Make the one-block model in `path` (external data beside it) a chain of `blocks`, in place.

    The block has one input and one output of equal shape.  Large weights of further blocks are seeded
    normal numbers as wide as those of the first; the data file grows by one chunk of them at a time.
    """
    model = onnx.load(path, load_external_data=False)
    first = onnx.GraphProto()
    first.CopyFrom(model.graph)
    (source,), (result,) = [v.name for v in first.input], [v.name for v in first.output]
    data = path.parent / next(
        ExternalDataInfo(tensor).location for tensor in first.initializer if uses_external_data(tensor)
    )
    graph = model.graph
    del graph.node[:], graph.value_info[:], graph.initializer[:]
    with data.open("ab") as file:
        for block in range(blocks):
            last = block == blocks - 1
            names = {
                source: source if block == 0 else f"block{block - 1}.{result}",
                result: result if last else f"block{block}.{result}",
            }
            for tensor in first.initializer:
                names[tensor.name] = f"block{block}.{tensor.name}"
                copy = graph.initializer.add()
                copy.CopyFrom(tensor)
                copy.name = names[tensor.name]
                if block and uses_external_data(tensor) and int(np.prod(tensor.dims)) >= _LARGE:
                    _append_weights(
                        file.fileno(), data, copy, np.random.default_rng([seed, block, len(names)])
                    )
            for node in first.node:
                _append_node(graph, node, block, names)
    onnx.save(model, path)


def _append_weights(
    descriptor: int, data: Path, tensor: onnx.TensorProto, generator: np.random.Generator
) -> None:
    """Write normal numbers of the tensor's own width at the end of the file, and point the tensor there."""
    info = ExternalDataInfo(tensor)
    count = int(np.prod(tensor.dims))
    sample = np.memmap(data, np.float32, "r", int(info.offset or 0), (count,))[:_LARGE]
    width = np.float32(sample.std())
    with open(descriptor, "ab", closefd=False) as file:
        offset = file.tell()
        for start in range(0, count, _CHUNK):
            numbers = generator.standard_normal(min(_CHUNK, count - start), np.float32)
            file.write((width * numbers).data)
    del tensor.external_data[:]
    for key, value in {"location": data.name, "offset": offset, "length": 4 * count}.items():
        tensor.external_data.add(key=key, value=str(value))


def _append_node(graph: onnx.GraphProto, node: onnx.NodeProto, block: int, names: dict[str, str]) -> None:
    copy = graph.node.add()
    copy.CopyFrom(node)
    copy.name = f"block{block}.{node.name}"
    for values in (copy.input, copy.output):
        for i, value in enumerate(values):
            if value:
                values[i] = names.setdefault(value, f"block{block}.{value}")
    for entry in copy.metadata_props:
        if entry.key == _SCOPES:  # modules of block 0 are called 0.attention, 0.norm1...
            entry.value = entry.value.replace("'0.", f"'{block}.").replace("'0'", f"'{block}'")
