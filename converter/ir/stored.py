"""Weights on disk: left in their file, in temporary ones, and beside ONNX models that are written.

A large weight that only products read becomes an input of the ONNX graph, so that no library copies it,
and a memory-mapped constant of the Program.  Every look-up maps the file anew: pages go with the array.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from fadiff.converter.ir.graph import Graph
from fadiff.converter.ir.kinds import Kind, named


def spooled(shape: tuple[int, ...]) -> np.ndarray:
    """An int8 array of zeros in a file without a name: it goes with the array."""
    with tempfile.TemporaryFile() as file:
        file.truncate(int(np.prod(shape)))
        return np.memmap(file, np.int8, "r+", shape=shape)


def release(array: np.ndarray) -> None:
    """Give back the memory, not the content, of an array that is mapped from a file; others stay."""
    owner: Any = array
    while owner is not None and not isinstance(owner, mmap.mmap):
        owner = getattr(owner, "base", None)
    if owner is not None and hasattr(mmap, "MADV_DONTNEED"):
        owner.madvise(mmap.MADV_DONTNEED)


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


LARGE_MODEL = 2**29
"""Smaller models are read as a whole: libraries may then fold what they like into their weights."""
LARGE_WEIGHT = 2**24
_LARGE_INTEGERS = 2**20
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
_INTEGERS = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
_READERS = {**dict.fromkeys(named(Kind.PRODUCT), 1), "Gather": 0}
"""Operators that may read a stored weight, by the position of the input."""


@dataclass(frozen=True)
class Dequantisation:
    """Scale and zero of integers: value = scale * (integer - zero), both of one element or along an axis."""

    scale: np.ndarray
    zero: np.ndarray
    axis: int

    def values(self, integers: np.ndarray) -> np.ndarray:
        """The float32 values."""
        scale, zero = (self._along(array, integers.ndim) for array in (self.scale, self.zero))
        values = integers.astype(np.float32)
        if zero.any():
            values -= zero.astype(np.float32)
        values *= scale
        return values

    def _along(self, array: np.ndarray, rank: int) -> np.ndarray:
        shape = [1] * rank
        shape[self.axis % rank] = array.size
        return array.reshape(shape)

    @property
    def symmetric_scale(self) -> float | None:
        """The scale with which int8 holds the values exactly; None where there is none."""
        middle = 128 if self.zero.dtype == np.uint8 else 0
        plain = self.scale.size == 1 and bool(np.all(self.zero == middle))
        return float(self.scale.reshape(-1)[0]) if plain else None


class _Descriptor:
    """An open file without a name; closed with the last weight in it."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


@dataclass(frozen=True)
class StoredWeight:
    """Where a constant is."""

    file: Path
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    dequantisation: Dequantisation | None = None
    """Of integers."""
    owner: _Descriptor | None = None
    """Keeps a temporary file open that has no name: it goes with the process, however that ends."""

    def read(self) -> np.ndarray:
        """The content in float32; mapped, not read, where the file has float32."""
        content = np.memmap(self.file, self.dtype, "r", self.offset, self.shape)
        if self.dequantisation is not None:
            return self.dequantisation.values(content)
        return content if self.dtype == np.float32 else content.astype(np.float32)


@dataclass(frozen=True)
class StoredWeights(Mapping[str, np.ndarray]):
    """Constants by name, read when they are asked for."""

    places: Mapping[str, StoredWeight] = field(default_factory=dict)

    @property
    def scales(self) -> dict[str, float]:
        """The scales that the file gives to its int8 weights, where one tensor has one."""
        integers = {name: known for name, place in self.places.items() if (known := place.dequantisation)}
        found = {name: known.symmetric_scale for name, known in integers.items()}
        return {name: scale for name, scale in found.items() if scale is not None}

    @property
    def requantised(self) -> tuple[str, ...]:
        """Integers with scales per channel or zero points: they get one scale without."""
        return tuple(n for n, p in self.places.items() if p.dequantisation and n not in self.scales)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.places[name].read()

    def __contains__(self, name: object) -> bool:
        return name in self.places

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


NOTHING_STORED = StoredWeights()


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

    External data stays where it is; what the file itself holds goes to a temporary file.  int8 weights go
    with the DequantizeLinear that alone reads them: its result becomes the input.
    """
    graph = model.graph
    if sum(_as_floats(tensor) for tensor in graph.initializer) < LARGE_MODEL:
        return NOTHING_STORED
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    ends = {value.name for value in (*graph.input, *graph.output)}
    small = {t.name: t for t in graph.initializer if not uses_external_data(t)}
    places: dict[str, StoredWeight] = {}
    gone: set[str] = set()
    """Initializers that are places now."""
    for tensor in graph.initializer:
        if tensor.name in ends or not (uses_external_data(tensor) or tensor.raw_data):
            continue
        if tensor.data_type in _FLOATS and _nbytes(tensor) >= LARGE_WEIGHT:
            if _feeds_products(tensor.name, readers):
                places[tensor.name] = _place(path, tensor)
                _add_input(graph, tensor.name, tensor)
                gone.add(tensor.name)
        elif tensor.data_type in _INTEGERS and _nbytes(tensor) >= _LARGE_INTEGERS:
            alone = readers.get(tensor.name, [])
            dequantised = len(alone) == 1 and alone[0].input[0] == tensor.name
            known = _dequantisation(alone[0], small) if dequantised else None
            name = alone[0].output[0] if known is not None else ""
            if _feeds_products(name, readers) and name not in ends:
                places[name] = replace(_place(path, tensor), dequantisation=known)
                _add_input(graph, name, tensor, onnx.TensorProto.FLOAT)
                gone.add(tensor.name)
    kept = [node for node in graph.node if not any(value in places for value in node.output)]
    if len(kept) < len(graph.node):
        rest = onnx.GraphProto(node=kept)
        del graph.node[:]
        graph.node.extend(rest.node)
    for i in reversed(range(len(graph.initializer))):
        if graph.initializer[i].name in gone:
            del graph.initializer[i]
    return StoredWeights(places)


def _feeds_products(name: str, readers: Mapping[str, Sequence[onnx.NodeProto]]) -> bool:
    """Whether only products and look-ups read a value, each as its weights."""

    def reads(node: onnx.NodeProto) -> bool:
        at = [i for i, value in enumerate(node.input) if value == name]
        return not node.domain and at == [_READERS.get(node.op_type)]

    return bool(name and readers.get(name)) and all(map(reads, readers[name]))


def _dequantisation(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> Dequantisation | None:
    """Scale and zero point of a DequantizeLinear whose are constant, None of another node."""
    plain = node.op_type == "DequantizeLinear" and node.domain in ("", "ai.onnx")
    attributes = {attribute.name: attribute.i for attribute in node.attribute}
    if not plain or attributes.get("block_size") or not all(v in constants for v in node.input[1:] if v):
        return None
    scale = onnx.numpy_helper.to_array(constants[node.input[1]])
    given = len(node.input) > 2 and node.input[2]
    zero = onnx.numpy_helper.to_array(constants[node.input[2]]) if given else np.zeros_like(scale, np.int8)
    if scale.dtype != np.float32 or scale.ndim > 1:
        return None
    return Dequantisation(scale, zero, attributes.get("axis", 1))


def _add_input(
    graph: onnx.GraphProto, name: str, tensor: onnx.TensorProto, data_type: int | None = None
) -> None:
    graph.input.append(onnx.helper.make_tensor_value_info(name, data_type or tensor.data_type, tensor.dims))


def _as_floats(tensor: onnx.TensorProto) -> int:
    """Bytes, of int8 weights those of the floats that they stand for."""
    return _nbytes(tensor) * (4 if tensor.data_type in _INTEGERS else 1)


def _nbytes(tensor: onnx.TensorProto) -> int:
    itemsize = int(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)
    return itemsize * int(math.prod(tensor.dims))


def _place(path: Path, tensor: onnx.TensorProto) -> StoredWeight:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if uses_external_data(tensor):
        info = ExternalDataInfo(tensor)
        return StoredWeight(path.parent / info.location, int(info.offset or 0), tuple(tensor.dims), dtype)
    with tempfile.TemporaryFile() as file:
        file.write(tensor.raw_data)
        file.flush()
        kept = _Descriptor(os.dup(file.fileno()))
    tensor.ClearField("raw_data")
    return StoredWeight(Path(f"/dev/fd/{kept.number}"), 0, tuple(tensor.dims), dtype, owner=kept)
