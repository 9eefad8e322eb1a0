"""Large constants of written ONNX models: external data in one file beside them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from fadiff.converter.ir.graph import Graph
from fadiff.converter.ir.spool import release

_LARGE_GRAPH = 2**26
_LARGE = 2**20
_ALIGNMENT = 4096  # a page: ONNX Runtime maps what is aligned to one


class WeightFile:
    """A file that grows by one array at a time; to be used in a `with` block."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("wb")

    def __enter__(self) -> WeightFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def tensor(self, name: str, array: np.ndarray) -> TensorProto:
        """An initializer; a large one has its content in the file."""
        if array.nbytes < _LARGE:
            return numpy_helper.from_array(array, name)
        self._file.write(bytes(-self._file.tell() % _ALIGNMENT))
        place = {"location": self.path.name, "offset": self._file.tell(), "length": array.nbytes}
        self._file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        self._file.flush()
        release(array)
        tensor = TensorProto(
            name=name,
            dims=array.shape,
            data_type=onnx.helper.np_dtype_to_tensor_dtype(array.dtype),
            data_location=TensorProto.EXTERNAL,
        )
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        return tensor


def initializer(name: str, array: np.ndarray, file: WeightFile | None) -> TensorProto:
    """A constant as an initializer, in the file if there is one."""
    return numpy_helper.from_array(array, name) if file is None else file.tensor(name, array)


def with_weights(
    model: onnx.ModelProto, weights: Mapping[str, np.ndarray], file: WeightFile | None
) -> onnx.ModelProto:
    """The model with these inputs of its graph as initializers."""
    if not weights:
        return model
    out = onnx.ModelProto()
    out.CopyFrom(model)
    inputs = [value for value in out.graph.input if value.name not in weights]
    del out.graph.input[:]
    out.graph.input.extend(inputs)
    out.graph.initializer.extend(initializer(name, weights[name], file) for name in weights)
    return out


def is_large(graph: Graph) -> bool:
    """Whether models with the constants of a graph should keep them in a file of their own."""
    return sum(t.nbytes for t in graph.tensors.values() if t.data is not None) > _LARGE_GRAPH
