"""Runs through the entries of one firmware: the first begins with states of zero, the others go on with them.

A run calls every entry in turn: a prompt by the first, then steps of the next, as many for every prompt.
States go on by the name of their input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fadiff.errors import InputError
from fadiff.vectors import (
    Arrays,
    TestVectors,
    argument_shapes,
    input_shapes,
    nth,
    onnx_states,
    run_vectors,
    stored_inputs,
)

if TYPE_CHECKING:
    from fadiff.converter import Conversion

DRAWN_RUNS = 4
DRAWN_STEPS = 4
"""Of every entry but the first, in one run."""


@dataclass(frozen=True)
class Runs:
    """Inputs by ONNX name of every call of every entry, states included as the float model reaches them.

    Arrays have a leading axis of calls, run by run.
    """

    inputs: Mapping[str, Arrays]
    """By entry."""
    count: int
    """Runs."""
    given: bool
    """By the user, not drawn at random."""

    def length(self, entry: str) -> int:
        """Calls of an entry in one run."""
        return len(next(iter(self.inputs[entry].values()))) // self.count

    def samples(self, entry: str) -> list[dict[str, np.ndarray]]:
        """The calls one by one."""
        return [nth(self.inputs[entry], i) for i in range(self.length(entry) * self.count)]


def float_runs(
    entries: Mapping[str, Conversion],
    files: Mapping[str, Path],
    data: str | Path | Arrays | None,
    ending: str,
    seed: Sequence[int],
) -> Runs:
    """The data's runs, or drawn ones, through the float models.

    Args:
        entries: conversions, in the order of a run; only their float models and states count.
        files: the .onnx file of each.
        data: an .npz file, or arrays; named ENTRY:INPUT, or INPUT where the file is the entry's own; None:
            what lies beside the models.
        ending: of the file beside a model, and what it holds ("calibration").
        seed: of drawn inputs.

    Raises:
        InputError, ModelError: data that does not fit the entries.
    """
    given = {
        name: _given(name, argument_shapes(entry), data, files[name].with_suffix(f".{ending}.npz"), ending)
        for name, entry in entries.items()
    }
    without = [name for name, arrays in given.items() if arrays is None]
    if without and len(without) < len(entries):
        has = next(name for name in given if name not in without)
        raise InputError(f"{ending} data: there is some for {has} and none for {without[0]}: give both")
    arguments = {name: arrays for name, arrays in given.items() if arrays is not None}
    if without:
        arguments = {
            name: _drawn(entry, DRAWN_RUNS * (DRAWN_STEPS if i or len(entries) == 1 else 1), (*seed, i))
            for i, (name, entry) in enumerate(entries.items())
        }
    calls = {name: len(next(iter(arrays.values()))) for name, arrays in arguments.items()}
    first, count = next(iter(calls.items()))
    count = count if len(calls) > 1 else 1  # (one entry goes on with what it keeps)
    for name, found in calls.items():
        if found % count:
            raise InputError(
                f"{ending} data: {found} calls of {name} for {count} of {first}: give as many for every run"
            )
    return Runs(_through(entries, arguments, count), count, not without)


def _given(
    entry: str,
    wanted: Mapping[str, tuple[tuple[int, ...], np.dtype]],
    data: str | Path | Arrays | None,
    beside: Path,
    what: str,
) -> Arrays | None:
    from fadiff.converter.read.inputs import read_arrays, read_inputs

    if data is None and not beside.is_file():
        return None
    prefixed = {f"{entry}:{name}": shape for name, shape in wanted.items()}
    if isinstance(data, Mapping):
        if missing := [name for name in prefixed if name not in data]:
            raise InputError(f"{what} data: no array {missing[0]}; it has {', '.join(data)}")
        return {n: np.asarray(data[f"{entry}:{n}"]).astype(dtype) for n, (_, dtype) in wanted.items()}
    file = beside if data is None else Path(data)
    _, there = read_arrays(file, f"{what} data", ())
    if not set(prefixed) & set(there):
        return read_inputs(file, f"{what} data", wanted)
    found = read_inputs(file, f"{what} data", prefixed)
    return {name: found[f"{entry}:{name}"] for name in wanted}


def _drawn(entry: Conversion, count: int, seed: tuple[int, ...]) -> Arrays:
    from fadiff.converter.read.inputs import random_input

    generator = np.random.default_rng(seed)
    return {
        name: random_input(generator, (count, *shape), dtype, entry.spans.get(name))
        for name, (shape, dtype) in argument_shapes(entry).items()
    }


def _through(
    entries: Mapping[str, Conversion], arguments: Mapping[str, Arrays], count: int
) -> dict[str, Arrays]:
    """The arguments with the states that the float models reach."""
    from fadiff.converter.read.states import runner

    states = {name: onnx_states(entry.graph) for name, entry in entries.items()}
    run = {
        name: runner(entry.float_model, entry.float_weights, [state.output for state in states[name]])
        for name, entry in entries.items()
    }
    zeros = {
        state.input: np.zeros(*input_shapes(entry)[state.input])
        for name, entry in entries.items()
        for state in states[name]
    }
    found: dict[str, list[dict[str, np.ndarray]]] = {name: [] for name in entries}
    for i in range(count):
        kept = dict(zeros)
        for name, arrays in arguments.items():
            length = len(next(iter(arrays.values()))) // count
            for k in range(i * length, (i + 1) * length):
                given = nth(arrays, k) | {state.input: kept[state.input] for state in states[name]}
                found[name].append(given)
                if states[name]:
                    outputs = run[name](given)
                    kept |= {state.input: outputs[state.output] for state in states[name]}
    return {
        name: {key: np.stack([c[key] for c in calls]) for key in calls[0]} for name, calls in found.items()
    }


@dataclass(frozen=True)
class IntegerRuns:
    """The same runs through the integer references, entry after entry."""

    runs: Runs
    kept: Mapping[str, np.ndarray]
    """What the entries before leave at the end of each run, by the state's input [runs, ...]."""

    def vectors(self, entry: str, conversion: Conversion) -> TestVectors:
        """The calls of an entry: each run's first begins with what the entries before have left."""
        inputs, length = self.runs.inputs[entry], self.runs.length(entry)
        stored = stored_inputs(conversion.graph, inputs)
        for tensor, name in _state_inputs(conversion).items():
            if name in self.kept:
                stored[tensor][::length] = self.kept[name].reshape(stored[tensor][::length].shape)
        return TestVectors(conversion, inputs, stored, given=self.runs.given, length=length)

    def after(self, vectors: TestVectors) -> IntegerRuns:
        """With what an entry leaves."""
        from fadiff.converter.check.reference import integer_reference, reference_session
        from fadiff.converter.folders import scratch_folder
        from fadiff.converter.ir.stored import WeightFile, is_large

        graph = vectors.conversion.graph
        if not graph.states:
            return self
        ends = [state.output for state in graph.states]
        with scratch_folder() as scratch:
            folder = scratch if is_large(graph) else None
            with WeightFile(folder / "weights.bin") if folder else nullcontext() as file:
                session = reference_session(integer_reference(graph, file=file), folder)
            found = run_vectors(session, vectors.stored_inputs, ends, graph.states, length=vectors.length)
        names = _state_inputs(vectors.conversion)
        last = slice(vectors.length - 1, None, vectors.length)
        left = {names[state.input]: found[state.output][last] for state in graph.states}
        return replace(self, kept={**self.kept, **left})


def _state_inputs(conversion: Conversion) -> dict[str, str]:
    """Tensors that states come in by, with their names in the model."""
    onnx = onnx_states(conversion.graph)
    return {state.input: named.input for state, named in zip(conversion.graph.states, onnx, strict=True)}
