"""From the model in the file to a float model of operators that can be planned, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import onnx

from fadiff.converter.decompose import WRITTEN, decompose
from fadiff.converter.decompose.contrib import expand_contrib, is_contrib
from fadiff.converter.decompose.last_joins import joins_last
from fadiff.converter.decompose.picks import drop_unused, functions_before_parts
from fadiff.converter.decompose.tables import tabulate
from fadiff.converter.dequantise.strip import QUANTISED, Imported, strip_quantisation
from fadiff.converter.errors import ModelError, Unsupported, UnsupportedError
from fadiff.converter.ir.kinds import Kind
from fadiff.converter.ir.operators import is_a
from fadiff.converter.ir.program import Program, program_of
from fadiff.converter.ir.scale import NOTHING, Prescribed
from fadiff.converter.ir.stored import StoredWeights
from fadiff.converter.lower import cannot_load, unknown_operators
from fadiff.converter.lower.table import expand_functions
from fadiff.converter.plan.inputs import moves_behind
from fadiff.converter.read.flatten import SEQUENCE_OPERATORS, flatten_control_flow, flatten_sequences
from fadiff.converter.read.fold import drop_empty
from fadiff.converter.read.inputs import Samples, Spans
from fadiff.converter.read.interface import InputType, take_whole_numbers
from fadiff.converter.read.normalise import normalise
from fadiff.converter.read.opsets import to_float32

SamplesOf = Callable[[Program], Samples]
"""Calibration inputs for a normalised model."""
Changed = tuple[onnx.ModelProto, tuple[str, ...]]
"""A model, and what was changed in it, for the notes."""


@dataclass(frozen=True)
class Pass:
    """A change of a normalised model: what it does, what there must be for it, and how it is made."""

    note: str
    matches: Callable[[Program], bool]
    change: Callable[[Program, Samples], Changed]
    of_floats: bool = False
    """Left out where the file prescribes scales: they are of values as they are in it."""
    repeats: bool = False
    """Until there is nothing to change."""
    folds: bool = True
    """What it gives is to be normalised."""


def _has(kinds: Kind) -> Callable[[Program], bool]:
    return lambda program: any(is_a(node, kinds) for node in program.nodes)


DROP_EMPTY = Pass(
    "outputs without elements are left out",
    lambda program: any(0 in shape for shape in program.shapes.values()),
    lambda program, _: drop_empty(program),
)
PASSES = (
    Pass(
        "tables of what depends on an integer input alone",
        lambda program: any(map(program.is_integer, program.inputs)),
        tabulate,
    ),
    Pass(
        "written as other operators",
        lambda program: any(node.op in WRITTEN or is_a(node, Kind.MAXIMUM) for node in program.nodes),
        decompose,
    ),
    Pass(
        "functions of columns stand before the parts that are taken",
        _has(Kind.PICK),
        lambda program, _: functions_before_parts(program),
        of_floats=True,
    ),
    Pass(
        "parts of outputs are moved before they are joined",
        _has(Kind.JOIN),
        lambda program, _: joins_last(program),
        of_floats=True,
    ),
    Pass(
        "",
        _has(Kind.RESHAPE | Kind.TRANSPOSE | Kind.JOIN),
        lambda program, _: (moves_behind(program).model, ()),
        of_floats=True,
        folds=False,
    ),
    Pass(
        "left out, because nothing reads it",
        lambda program: not program.weights and _has(Kind.PICK)(program),
        lambda program, _: drop_unused(program),
        of_floats=True,
        repeats=True,
    ),
)
"""Those of a normalised model, in their order."""


@dataclass(frozen=True)
class Simplified:
    """A normalised float model, what was read from it, and scales and zero points that the file came with."""

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
    operators = {node.op_type for node in model.graph.node}
    if operators & SEQUENCE_OPERATORS:
        model = flatten_sequences(model)
    model = flatten_control_flow(model)
    if "int32" in types.values():
        model = take_whole_numbers(model, types)
    refused: Mapping[str, Unsupported] = {}
    if any(is_contrib(node) for node in model.graph.node):
        model, contrib = expand_contrib(model)
        refused = contrib.refused
        if contrib.done:
            notes.append(f"operators of ONNX Runtime written as standard ones: {', '.join(contrib.done)}")
        if "MatMulNBits" in contrib.done:
            notes.append(
                "MatMulNBits: weights take eight bits here, with one scale for a layer, whatever they had"
            )
    imported = Imported(NOTHING, ())
    if any(node.op_type in QUANTISED for node in model.graph.node):
        model, imported = strip_quantisation(file, model)
    given = imported.given
    notes.extend(imported.notes)
    model, expanded = expand_functions(model)
    if expanded:
        notes.append(f"expanded by their ONNX definition: {', '.join(expanded)}")
        model = flatten_control_flow(model)
    unknown = unknown_operators(model, refused)
    if any(cannot_load(problem) for problem in unknown):
        raise UnsupportedError(file, unknown)
    if to_float32(model):
        notes.append("half or double precision was read as float32")
    try:
        program = program_of(normalise(file, model), weights)
    except ModelError as error:
        if unknown:
            raise UnsupportedError(file, unknown) from error
        raise

    def apply(made: Pass) -> None:
        """Change the model, which is normalised again where that did something."""
        nonlocal program
        again = made.matches(program)
        while again:
            changed, done = made.change(program, samples)
            again = made.repeats and bool(done)
            if done and made.note:
                notes.append(f"{made.note}: {', '.join(done)}")
            if changed is not program.model:
                program = program.changed(normalise(file, changed) if made.folds else changed)

    samples: Samples = ()
    apply(DROP_EMPTY)
    samples = samples_of(program)
    for made in PASSES:
        if not (made.of_floats and given.steps):
            apply(made)
    if apart := weights.requantised:
        notes.append(
            f"{len(apart)} stored weights had per-channel scales or zero points (first: {apart[0]}): "
            "requantised per tensor; not bit-exact with the file"
        )
    return Simplified(
        program,
        replace(given, steps={**given.steps, **weights.scales}),
        imported.spans,
        tuple(notes),
    )
