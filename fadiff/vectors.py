"""Test vectors: what verification runs, as floats for ONNX Runtime and as integers for the device.

Written to DIR/verify (docs/firmware-interface.md, section 4), so that `fadiff verify DIR` needs
nothing but the folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from fadiff.errors import InputError

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

    from converter import Conversion
    from converter.ir.graph import Graph, Tensor

Arrays = Mapping[str, np.ndarray]

DEFAULT_COUNT = 16


@dataclass(frozen=True)
class TestVectors:
    """Inputs with a leading axis of vectors: by ONNX name as floats, by tensor name as stored."""

    onnx_inputs: Arrays
    stored_inputs: Arrays
    given: bool = False
    """By the user, not drawn at random."""

    @property
    def count(self) -> int:
        """Number of vectors."""
        return len(next(iter(self.onnx_inputs.values())))


def make_vectors(conversion: Conversion, file: Path | None, seed: int) -> TestVectors:
    """Vectors of an .npz file, or seeded random ones.

    Raises:
        InputError: the model has no inputs.
        ModelError: unreadable file, or arrays that do not fit the model's inputs.
    """
    from converter.read.inputs import read_inputs

    if not conversion.graph.inputs:
        raise InputError(f"{conversion.graph.name}: no output depends on an input: there is nothing to run")
    if file is None:
        inputs = _random(conversion, seed)
    else:
        inputs = read_inputs(file, "test inputs", _input_shapes(conversion))
    return TestVectors(inputs, stored_inputs(conversion.graph, inputs), given=file is not None)


def stored_inputs(graph: Graph, inputs: Arrays) -> dict[str, np.ndarray]:
    """Inputs by ONNX name as the device stores them, by tensor name."""
    return {name: store(graph.tensors[name], inputs[_onnx_name(graph, name)]) for name in graph.inputs}


def store(tensor: Tensor, vectors: np.ndarray) -> np.ndarray:
    """ONNX values [vectors, ...] as the device stores them: transposed and quantised."""
    from converter.check.storage import to_storage

    return np.stack([to_storage(tensor, vector) for vector in vectors])


def write_vectors(folder: Path, conversion: Conversion, vectors: TestVectors) -> Arrays:
    """Write reference.onnx, quantized.onnx, inputs.npz and float_outputs.npz.

    A float32 graph is checked layer by layer, on the inputs that the layer had.

    Returns:
        The first vector as the device sees it: stored inputs and expected values of layers' outputs by tensor
        name (of a float32 graph with large weights: of the graph's outputs only).
    """
    from converter.check.reference import integer_reference, reference_session

    folder.mkdir()
    graph = conversion.graph
    is_float = graph.element_type == "float32"
    reference, apart = write_models(folder, conversion)
    floats = {f"float:{name}": array for name, array in vectors.onnx_inputs.items()}
    np.savez(folder / "inputs.npz", allow_pickle=False, **vectors.stored_inputs, **floats)
    outputs = run_floats(
        conversion, vectors.onnx_inputs, [v.name for v in conversion.float_model.graph.output]
    )
    np.savez(folder / "float_outputs.npz", allow_pickle=False, **outputs)
    first = {name: array[:1] for name, array in vectors.stored_inputs.items()}
    if is_float:
        expected = {
            name: store(graph.tensors[name], outputs[_onnx_name(graph, name)][:1]) for name in graph.outputs
        }
    else:
        expected = run_vectors(reference_session(reference, folder if apart else None), first)
    if is_float and not apart:
        layers = run_vectors(reference_session(integer_reference(graph)), first)
        expected = layers | expected
    return {name: array[0] for name, array in (first | expected).items()}


def write_models(folder: Path, conversion: Conversion) -> tuple[onnx.ModelProto, bool]:
    """Write reference.onnx and quantized.onnx, with weights.bin beside them where there are many weights.

    Returns:
        The reference, and whether weights.bin is part of it.
    """
    from converter.check.reference import integer_reference
    from converter.ir.weight_file import WeightFile, is_large

    by_layer = conversion.graph.element_type == "float32"
    apart = is_large(conversion.graph)
    with WeightFile(folder / "weights.bin") if apart else nullcontext() as file:
        reference = integer_reference(conversion.graph, by_layer=by_layer, file=file)
        onnx.save(reference, folder / "reference.onnx")
        quantized = conversion.quantized(file) if apart else conversion.quantized_model
        onnx.save(quantized, folder / "quantized.onnx")
    return reference, apart


def nth(arrays: Arrays, i: int) -> dict[str, np.ndarray]:
    """Element `i` of the leading axis of each array; that of a vector of scalars stays an array."""
    return {name: array[i, ...] for name, array in arrays.items()}


def run_floats(conversion: Conversion, inputs: Arrays, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The float model in ONNX Runtime once per vector: `names` stacked along a new first axis."""
    from converter.read.piecewise import run_model

    count = len(next(iter(inputs.values())))
    samples = [nth(inputs, i) for i in range(count)]
    found = run_model(conversion.float_model, conversion.float_weights, samples, frozenset(names))
    return {name: np.stack(arrays) for name, arrays in found}


def run_vectors(
    runtime: InferenceSession, inputs: Arrays, outputs: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Run a model in ONNX Runtime once per vector; outputs (all by default) by name, stacked along a new
    first axis."""
    names = list(outputs) or [output.name for output in runtime.get_outputs()]
    count = len(next(iter(inputs.values())))
    runs = [runtime.run(names, nth(inputs, i)) for i in range(count)]
    return {name: np.stack([run[k] for run in runs]) for k, name in enumerate(names)}


def _onnx_name(graph: Graph, tensor: str) -> str:
    return graph.tensors[tensor].onnx_name or tensor


def _input_shapes(conversion: Conversion) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    model = conversion.float_model
    constants = {tensor.name for tensor in model.graph.initializer} | set(conversion.float_weights)
    return {
        value.name: (
            tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim),
            onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type),
        )
        for value in model.graph.input
        if value.name not in constants
    }


def _random(conversion: Conversion, seed: int) -> dict[str, np.ndarray]:
    from converter.read.inputs import random_input

    generator = np.random.default_rng([seed, 1])  # not the stream that random calibration draws from
    return {
        name: random_input(generator, (DEFAULT_COUNT, *shape), dtype, conversion.spans.get(name))
        for name, (shape, dtype) in _input_shapes(conversion).items()
    }
