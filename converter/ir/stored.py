"""Weights that stay in their file: models too large to hold in memory as floats.

A large weight that only products read becomes an input of the ONNX graph, so that no library copies it,
and a memory-mapped constant of the Program.  Every look-up maps the file anew: pages go with the array.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnx
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

LARGE_MODEL = 2**29
"""Smaller models are read as a whole: libraries may then fold what they like into their weights."""
LARGE_WEIGHT = 2**24
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
_READERS = {"MatMul": 1, "Gemm": 1, "Conv": 1}
"""Operators that may read a stored weight, by the position of the input."""


@dataclass(frozen=True)
class StoredWeight:
    """Where a constant is."""

    file: Path
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    owner: IO[bytes] | None = None
    """Keeps a temporary file open that has no name: it goes with the process, however that ends."""

    def read(self) -> np.ndarray:
        """The content in float32; mapped, not read, where the file has float32."""
        content = np.memmap(self.file, self.dtype, "r", self.offset, self.shape)
        return content if self.dtype == np.float32 else content.astype(np.float32)


@dataclass(frozen=True)
class StoredWeights(Mapping[str, np.ndarray]):
    """Constants by name, read when they are asked for."""

    places: Mapping[str, StoredWeight] = field(default_factory=dict)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.places[name].read()

    def __contains__(self, name: object) -> bool:
        return name in self.places

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


@dataclass(frozen=True)
class Constants(Mapping[str, np.ndarray]):
    """Constants in memory and stored ones as one mapping."""

    loaded: Mapping[str, np.ndarray]
    stored: StoredWeights

    def __getitem__(self, name: str) -> np.ndarray:
        return self.loaded[name] if name in self.loaded else self.stored[name]

    def __contains__(self, name: object) -> bool:
        return name in self.loaded or name in self.stored

    def __iter__(self) -> Iterator[str]:
        yield from self.loaded
        yield from self.stored

    def __len__(self) -> int:
        return len(self.loaded) + len(self.stored)


def store_weights(path: Path, model: onnx.ModelProto) -> StoredWeights:
    """Take the large weights of a large model out of it, in place: they become inputs of its graph.

    External data stays where it is; what the file itself holds goes to a temporary file.
    """
    graph = model.graph
    if sum(_nbytes(tensor) for tensor in graph.initializer) < LARGE_MODEL:
        return StoredWeights()
    taken = [tensor for tensor in graph.initializer if _nbytes(tensor) >= LARGE_WEIGHT]
    readers: dict[str, list[bool]] = {tensor.name: [] for tensor in taken}
    for node in graph.node:
        for i, name in enumerate(node.input):
            if name in readers:
                readers[name].append(_READERS.get(node.op_type) == i and not node.domain)
    inputs = {value.name for value in (*graph.input, *graph.output)}
    places: dict[str, StoredWeight] = {}
    for tensor in taken:
        fits = tensor.data_type in _FLOATS and all(readers[tensor.name]) and tensor.name not in inputs
        if fits and (uses_external_data(tensor) or tensor.raw_data):
            places[tensor.name] = _place(path, tensor)
            value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            graph.input.append(value)
    kept = [tensor for tensor in graph.initializer if tensor.name not in places]
    rest = onnx.GraphProto()
    rest.initializer.extend(kept)
    del graph.initializer[:]
    graph.initializer.extend(rest.initializer)
    return StoredWeights(places)


def _nbytes(tensor: onnx.TensorProto) -> int:
    itemsize = int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    return itemsize * int(math.prod(tensor.dims))


def _place(path: Path, tensor: onnx.TensorProto) -> StoredWeight:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if uses_external_data(tensor):
        info = ExternalDataInfo(tensor)
        return StoredWeight(path.parent / info.location, int(info.offset or 0), tuple(tensor.dims), dtype)
    file = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the weight is known)
    file.write(tensor.raw_data)
    file.flush()
    tensor.ClearField("raw_data")
    return StoredWeight(Path(f"/dev/fd/{file.fileno()}"), 0, tuple(tensor.dims), dtype, file)
