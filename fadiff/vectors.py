"""Test vectors: what verification runs, as floats for ONNX Runtime and as integers for the device.

Written to DIR/verify (docs/firmware-interface.md, section 4), so that `fadiff verify DIR` needs
nothing but the folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx

from fadiff.converter.ir.recurrence import State, chained
from fadiff.errors import InputError

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

    from fadiff.converter import Conversion
    from fadiff.converter.ir.graph import Graph, Tensor

Arrays = Mapping[str, np.ndarray]

DEFAULT_COUNT = 16
_DEVICE_STEPS = 4
"""Of a model with states, in main.c."""
_UNLIKE = 8.0
"""Times as large as the largest value of calibration, or as small: other data, or prepared otherwise."""


@dataclass(frozen=True)
class TestVectors:
    """Inputs with a leading axis of vectors: by ONNX name as floats, by tensor name as stored."""

    conversion: Conversion = field(repr=False)
    onnx_inputs: Arrays
    stored_inputs: Arrays
    given: bool = False
    """By the user, not drawn at random."""
    length: int = 0
    """With states: vectors of a sequence, the first of which brings the states itself; 0: all are one."""
    warnings: tuple[str, ...] = ()
    """Of the user's file: arrays that are not used, numbers that calibration has seen nothing like."""

    @property
    def count(self) -> int:
        """Number of vectors."""
        return len(next(iter(self.onnx_inputs.values())))

    @cached_property
    def float_outputs(self) -> Arrays:
        """What the float model makes of them, by ONNX name."""
        outputs = [value.name for value in self.conversion.float_model.graph.output]
        return run_floats(self.conversion, self.onnx_inputs, outputs)


def make_vectors(conversion: Conversion, file: Path | None, seed: int) -> TestVectors:
    """Vectors of an .npz file, or seeded random ones; of a model with states consecutive steps from zero.

    Raises:
        InputError: the model has no inputs.
        ModelError: unreadable file, or arrays that do not fit the model's inputs.
    """
    from fadiff.converter.quantise.doubts import unexpected
    from fadiff.converter.read.inputs import read_inputs

    warnings: tuple[str, ...] = ()
    if not conversion.graph.inputs:
        raise InputError(f"{conversion.graph.name}: no output depends on an input: there is nothing to run")
    if file is None:
        inputs = _random(conversion, seed)
    else:
        inputs = read_inputs(file, "test inputs", argument_shapes(conversion))
        warnings = (*_unused(file, conversion), *_unlike_calibration(file, conversion, inputs))
        if not conversion.samples:
            warnings += tuple(unexpected(f"{file}: data", inputs, conversion.spans))
    if conversion.graph.states:
        inputs = _in_sequence(conversion, inputs)
    stored = stored_inputs(conversion.graph, inputs)
    return TestVectors(conversion, inputs, stored, given=file is not None, warnings=warnings)


def _unused(file: Path, conversion: Conversion) -> Sequence[str]:
    """A warning where test inputs bring values of states."""
    from fadiff.converter.read.inputs import read_arrays

    kept = {state.input for state in onnx_states(conversion.graph)}
    unused = sorted(kept.intersection(read_arrays(file, "test inputs", ())[1]))
    if not unused:
        return ()
    return [
        f"{file}: {', '.join(unused)} not used: a state is zero in the first step, then what the step before "
        "left (--no-state: an input as any other)"
    ]


def _unlike_calibration(file: Path, conversion: Conversion, inputs: Arrays) -> Sequence[str]:
    """A warning of every float input whose numbers are of another size than those of calibration.

    Pixels from 0 to 255 in one file and from 0 to 1 in the other, mostly: int8 then says nothing.
    """
    if conversion.random_calibration or not conversion.samples:
        return ()
    found = []
    for name, array in inputs.items():
        seen = [np.abs(sample[name]).max(initial=0) for sample in conversion.samples if name in sample]
        ours, theirs = float(np.abs(array).max(initial=0)), float(max(seen, default=0))
        if array.dtype.kind == "f" and ours and theirs and not 1 / _UNLIKE <= ours / theirs <= _UNLIKE:
            found.append(
                f"{file}: {name} reaches {ours:.4g}, in the calibration data {theirs:.4g}: "
                "prepare both alike, as in training"
            )
    return found


def stored_inputs(graph: Graph, inputs: Arrays) -> dict[str, np.ndarray]:
    """Inputs by ONNX name as the device stores them, by tensor name."""
    return {name: store(graph.tensors[name], inputs[onnx_name(graph, name)]) for name in graph.inputs}


def store(tensor: Tensor, vectors: np.ndarray) -> np.ndarray:
    """ONNX values [vectors, ...] as the device stores them: transposed and quantised."""
    from fadiff.converter.check.storage import to_storage

    return np.stack([to_storage(tensor, vector) for vector in vectors])


def write_vectors(
    folder: Path, vectors: TestVectors, *, whole_sequence: bool = False
) -> tuple[Arrays, list[dict[str, np.ndarray]]]:
    """Write reference.onnx, quantized.onnx, inputs.npz and float_outputs.npz.

    A float32 graph is checked layer by layer, on the inputs that the layer had.

    Returns:
        The first vector as the device sees it: stored inputs and expected values of layers' outputs by tensor
        name (of a float32 graph with large weights: of the graph's outputs only).  Then, of a model with
        states, a few steps that follow (`whole_sequence`: all that others go on behind), with the outputs
        that a run hands out.
    """
    from fadiff.converter.check.reference import integer_reference, reference_session

    folder.mkdir()
    graph = vectors.conversion.graph
    is_float = graph.element_type == "float32"
    reference, apart = write_models(folder, vectors.conversion)
    floats = {f"float:{name}": array for name, array in vectors.onnx_inputs.items()}
    arguments = {name: vectors.stored_inputs[name] for name in graph.arguments}
    np.savez(folder / "inputs.npz", allow_pickle=False, **arguments, **floats)
    outputs = vectors.float_outputs
    np.savez(folder / "float_outputs.npz", allow_pickle=False, **outputs)
    states = graph.states
    count = vectors.length or vectors.count
    count = count if whole_sequence else min(_DEVICE_STEPS, count) if states else 1
    first = {name: array[:count] for name, array in vectors.stored_inputs.items()}
    if is_float:
        named = {name: outputs[onnx_name(graph, name)][:count] for name in graph.results}
        expected = {name: store(graph.tensors[name], array) for name, array in named.items()}
    else:
        expected = run_vectors(reference_session(reference, folder if apart else None), first, states=states)
    if is_float and not apart:
        layers = run_vectors(reference_session(integer_reference(graph)), first, states=states)
        expected = layers | expected
    whole = [{name: array[i] for name, array in (first | expected).items()} for i in range(count)]
    handed = (*graph.arguments, *graph.results)
    return whole[0], [{name: step[name] for name in handed} for step in whole[1:]]


def write_models(folder: Path, conversion: Conversion) -> tuple[onnx.ModelProto, bool]:
    """Write reference.onnx and quantized.onnx, with weights.bin beside them where there are many weights.

    Returns:
        The reference, and whether weights.bin is part of it.
    """
    from fadiff.converter.check.reference import integer_reference
    from fadiff.converter.ir.stored import WeightFile, is_large

    by_layer = conversion.graph.element_type == "float32"
    apart = is_large(conversion.graph)
    with WeightFile(folder / "weights.bin") if apart else nullcontext() as file:
        reference = integer_reference(conversion.graph, by_layer=by_layer, file=file)
        onnx.save(reference, folder / "reference.onnx")
        quantized = conversion.quantized_beside(file).model if apart else conversion.quantized_model
        onnx.save(quantized, folder / "quantized.onnx")
    return reference, apart


def nth(arrays: Arrays, i: int) -> dict[str, np.ndarray]:
    """Element `i` of the leading axis of each array; that of a vector of scalars stays an array."""
    return {name: array[i, ...] for name, array in arrays.items()}


def run_floats(conversion: Conversion, inputs: Arrays, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The float model in ONNX Runtime once per vector: `names` stacked along a new first axis."""
    from fadiff.converter.read.runtime import run_model

    count = len(next(iter(inputs.values())))
    samples = [nth(inputs, i) for i in range(count)]
    found = run_model(conversion.program, samples, frozenset(names))
    return {name: np.stack(arrays) for name, arrays in found}


def run_vectors(
    runtime: InferenceSession,
    inputs: Arrays,
    outputs: Sequence[str] = (),
    states: Sequence[State] = (),
    progress: Callable[[str], None] = lambda _: None,
    length: int = 0,
) -> dict[str, np.ndarray]:
    """Run a model in ONNX Runtime once per vector; outputs (all by default) by name, stacked along a new
    first axis.  With states, inputs of which only the first vector of `length` (0: all) counts, one step
    after the other."""
    names = list(outputs) or [output.name for output in runtime.get_outputs()]
    fetched = list(dict.fromkeys([*names, *(state.output for state in states)]))

    def run(given: Arrays) -> Arrays:
        return dict(zip(fetched, runtime.run(fetched, dict(given)), strict=True))

    count = len(next(iter(inputs.values())))
    runs = []
    for _, found in chained(run, (nth(inputs, i) for i in range(count)), states, length):
        runs.append(found)
        progress(f"sample {len(runs)} of {count}")
    return {name: np.stack([found[name] for found in runs]) for name in names}


def onnx_name(graph: Graph, tensor: str) -> str:
    """What the model calls a tensor."""
    return graph.tensors[tensor].onnx_name or tensor


def onnx_states(graph: Graph) -> tuple[State, ...]:
    """The states of a graph by the names of the model."""
    return tuple(
        State(onnx_name(graph, state.output), onnx_name(graph, state.input)) for state in graph.states
    )


def argument_shapes(conversion: Conversion) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Those of the inputs that a run is given: all but states."""
    kept = {state.input for state in onnx_states(conversion.graph)}
    return {name: entry for name, entry in conversion.program.interface.items() if name not in kept}


def _in_sequence(conversion: Conversion, inputs: Arrays) -> dict[str, np.ndarray]:
    """The inputs with the states that the float model reaches."""
    from fadiff.converter.read.states import in_sequence

    count = len(next(iter(inputs.values())))
    steps = [nth(inputs, i) for i in range(count)]
    found = in_sequence(conversion.program, steps, onnx_states(conversion.graph))
    return {name: np.stack([step[name] for step in found]) for name in conversion.program.interface}


def _random(conversion: Conversion, seed: int) -> dict[str, np.ndarray]:
    from fadiff.converter.read.inputs import random_input

    generator = np.random.default_rng([seed, 1])  # not the stream that random calibration draws from
    return {
        name: random_input(generator, (DEFAULT_COUNT, *shape), dtype, conversion.spans.get(name))
        for name, (shape, dtype) in argument_shapes(conversion).items()
    }
