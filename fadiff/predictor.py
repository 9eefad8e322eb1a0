"""A compiled model as a Python function: floats in, floats out, the integers of the device between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fadiff.errors import InputError
from fadiff.folder import OutputFolder, entry_names
from fadiff.vectors import onnx_name, onnx_states, run_vectors, stored_inputs

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

    from fadiff.converter.ir.graph import Graph
    from fadiff.generation import Chooser, Generation

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Predictor:
    """Runs the integer reference, which equals the device bit for bit (float32 targets: the float model).

    `inputs` and `outputs` are shapes by ONNX name; of a model with states, samples are consecutive steps that
    begin with states of zero.
    """

    graph: Graph
    inputs: Shapes
    outputs: Shapes
    session: InferenceSession = field(repr=False)
    states: Shapes = field(default_factory=dict)
    """Inputs that the outputs of the step before become."""
    before: tuple[Predictor, ...] = field(default=(), repr=False)
    """Of a firmware with several entries, of which this is the last: those that a run calls before it."""

    def generate(
        self, tokens: Sequence[int] | np.ndarray, count: int, choose: Chooser | None = None
    ) -> np.ndarray:
        """The `count` tokens that follow `tokens`, by a language model.

        Args:
            tokens: The prompt.
            count: How many.
            choose: The next token by the scores of all [vocabulary]; by default the likeliest.

        Raises:
            InputError: the model is none of tokens and positions, or the sequence becomes too long.
        """
        from fadiff.generation import likeliest

        return self.generation().generate(tokens, count, choose or likeliest)

    def generation(self) -> Generation:
        """A new sequence, token by token: `prompt`, `step`, `scores`.

        Raises:
            InputError: the model is none of tokens and positions.
        """
        from fadiff.generation import Generation

        return Generation([(entry.graph, entry.session) for entry in (*self.before, self)])

    def predict(self, inputs: Mapping[str, np.ndarray] | np.ndarray) -> dict[str, np.ndarray]:
        """Outputs by ONNX name for inputs by ONNX name (or the only one).

        Inputs have the model's shapes, or a further first axis of samples, which outputs then have, too.

        Raises:
            InputError: an input is missing, or its shape does not fit.
        """
        if isinstance(inputs, np.ndarray):
            if len(self.inputs) != 1:
                raise InputError(f"the model has the inputs {', '.join(self.inputs)}: give them by name")
            inputs = {next(iter(self.inputs)): inputs}
        samples = {}
        for name, shape in self.inputs.items():
            if name not in inputs:
                raise InputError(f"no input {name!r}: the model reads {', '.join(self.inputs)}")
            array = np.asarray(inputs[name])
            if array.shape[array.ndim - len(shape) :] != shape or array.ndim - len(shape) not in (0, 1):
                raise InputError(f"{name} has shape {array.shape}, expected {shape} or (samples, *{shape})")
            samples[name] = array
        single = all(samples[name].shape == shape for name, shape in self.inputs.items())
        if single:
            samples = {name: array[None] for name, array in samples.items()}
        counts = {len(array) for array in samples.values()}
        if len(counts) != 1:
            raise InputError("the inputs have different numbers of samples")
        samples |= {name: np.zeros((*counts, *shape), np.float32) for name, shape in self.states.items()}
        found = self._run(samples)
        return {name: array[0] for name, array in found.items()} if single else found

    def _run(self, samples: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        from fadiff.output_accuracy import restored

        graph = self.graph
        if graph.element_type == "float32":
            floats = {name: array.astype(np.float32) for name, array in samples.items()}
            return run_vectors(self.session, floats, list(self.outputs), onnx_states(graph))
        found = run_vectors(self.session, stored_inputs(graph, samples), graph.results, graph.states)
        names = {name: onnx_name(graph, name) for name in graph.results}
        return {
            onnx_name: restored(graph, name, found, (0, *self.outputs[onnx_name]))
            for name, onnx_name in names.items()
        }


def load(folder: str | Path) -> Predictor:
    """The compiled model in a folder that `compile` wrote; of several entries the last, with those before it.

    Raises:
        InputError: the folder is none of ours, or holds no program.
    """
    *before, last = entry_names(Path(folder)) or [""]
    entries = tuple(_loaded(OutputFolder(Path(folder) / name)) for name in before)
    return replace(_loaded(OutputFolder(Path(folder) / last)), before=entries)


def _loaded(output: OutputFolder) -> Predictor:
    import onnx

    from fadiff.converter.check.reference import reference_session
    from fadiff.costmodel.schedule.serialize import graph_from_document

    document = output.document
    data = output.verification_data
    if not (data / "reference.onnx").is_file():
        raise InputError(f"{data / 'reference.onnx'}: no such file: compile with --profile hw")
    described = onnx.load(data / "quantized.onnx", load_external_data=False).graph
    graph = graph_from_document(document)
    model = "quantized.onnx" if graph.element_type == "float32" else "reference.onnx"
    apart = data if (data / "weights.bin").is_file() else None
    session = reference_session(onnx.load(data / model, load_external_data=False), apart)
    inputs, outputs = _shapes(described.input), _shapes(described.output)
    kept = {state.input: inputs.pop(state.input) for state in onnx_states(graph)}
    for state in onnx_states(graph):
        del outputs[state.output]
    return Predictor(graph, inputs, outputs, session, kept)


def _shapes(values: object) -> dict[str, tuple[int, ...]]:
    return {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in values}  # type: ignore[attr-defined]
