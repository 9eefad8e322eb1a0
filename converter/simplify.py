"""From the model in the file to a float model of operators that can be planned, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import onnx

from fadiff.converter.decompose import decompose
from fadiff.converter.decompose.contrib import expand_contrib
from fadiff.converter.decompose.last_joins import joins_last
from fadiff.converter.decompose.picks import drop_unused, functions_before_parts
from fadiff.converter.decompose.tables import tabulate
from fadiff.converter.dequantise.strip import strip_quantisation
from fadiff.converter.errors import ModelError, UnsupportedError
from fadiff.converter.ir.program import Program, program_of
from fadiff.converter.ir.scale import Prescribed
from fadiff.converter.ir.stored import StoredWeights
from fadiff.converter.lower import cannot_load, unknown_operators
from fadiff.converter.lower.table import expand_functions
from fadiff.converter.plan.inputs import moves_behind
from fadiff.converter.read.flatten import flatten_control_flow, flatten_sequences
from fadiff.converter.read.fold import drop_empty
from fadiff.converter.read.inputs import Samples, Spans
from fadiff.converter.read.interface import InputType, take_whole_numbers
from fadiff.converter.read.normalise import normalise
from fadiff.converter.read.opsets import to_float32

SamplesOf = Callable[[Program, onnx.ModelProto, StoredWeights], Samples]
"""Calibration inputs for a normalised model."""
Pass = Callable[..., tuple[onnx.ModelProto, tuple[str, ...]]]
"""Changes a normalised model, told its program; and what it changed, for the notes."""


@dataclass(frozen=True)
class Simplified:
    """A normalised float model, what was read from it, and scales and zero points that the file came with."""

    model: onnx.ModelProto
    program: Program
    given: Prescribed
    spans: Spans
    notes: tuple[str, ...]


def simplify(
    file: str,
    model: onnx.ModelProto,
    weights: StoredWeights,
    samples_of: SamplesOf,
    types: Mapping[str, InputType],
) -> Simplified:
    """Control flow and quantisation taken out, functions expanded, constants folded, the rest decomposed.

    `weights` are inputs of the graph that are constants, stored on disk; `samples_of` reads the user's
    calibration inputs, if there are any; `types` says which float inputs hold whole numbers.

    Raises:
        ModelError: ONNX Runtime rejects the model.
        UnsupportedError: operators that nothing lowers and ONNX Runtime does not know either.
    """
    notes: list[str] = []
    model = flatten_control_flow(flatten_sequences(model))
    model = take_whole_numbers(model, types)
    model, contrib = expand_contrib(model)
    if contrib.done:
        notes.append(f"operators of ONNX Runtime written as standard ones: {', '.join(contrib.done)}")
    if "MatMulNBits" in contrib.done:
        notes.append(
            "MatMulNBits: weights take eight bits here, with one scale for a layer, whatever they had"
        )
    model, imported = strip_quantisation(file, model)
    given = imported.given
    notes.extend(imported.notes)
    model, expanded = expand_functions(model)
    if expanded:
        notes.append(f"expanded by their ONNX definition: {', '.join(expanded)}")
        model = flatten_control_flow(model)
    unknown = unknown_operators(model, contrib.refused)
    if any(cannot_load(problem) for problem in unknown):
        raise UnsupportedError(file, unknown)
    if to_float32(model):
        notes.append("half or double precision was read as float32")
    try:
        model = normalise(file, model)
    except ModelError as error:
        if unknown:
            raise UnsupportedError(file, unknown) from error
        raise
    program = program_of(model, weights)

    def apply(note: str, change: Pass, *more: object) -> bool:
        """Change the model, which is normalised again where that did something; whether it did."""
        nonlocal model, program
        changed, done = change(model, program, *more)
        if done:
            notes.append(f"{note}: {', '.join(done)}")
        if changed is not model:
            model = normalise(file, changed)
            program = program_of(model, weights)
        return bool(done)

    apply("outputs without elements are left out", drop_empty)
    samples = samples_of(program, model, weights)
    apply("tables of what depends on an integer input alone", tabulate, samples)
    apply("written as other operators", decompose, samples)
    if not given.steps:
        apply("functions of columns stand before the parts that are taken", functions_before_parts)
        apply("parts of outputs are moved before they are joined", joins_last)
        model, program = moves_behind(model, program, weights)
        while not weights and apply("left out, because nothing reads it", drop_unused):
            pass
    if apart := weights.requantised:
        notes.append(
            f"{len(apart)} stored weights had per-channel scales or zero points (first: {apart[0]}): "
            "requantised per tensor; not bit-exact with the file"
        )
    return Simplified(
        model,
        program,
        replace(given, steps={**given.steps, **weights.scales}),
        imported.spans,
        tuple(notes),
    )
