"""Runs through the entries of one firmware: the first begins with states of zero, the others go on with them.

A run calls every entry in turn: a prompt by the first, then steps of the next, as many for every prompt.
States go on by the name of their input; an entry that sees the first rows of one only writes there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fadiff.converter.ir.recurrence import first_rows, with_rows
from fadiff.emitters.gemmini.tokens import rows_after
from fadiff.errors import InputError
from fadiff.vectors import (
    Arrays,
    TestVectors,
    argument_shapes,
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

    def samples(self, entry: str, narrower: Sequence[str] = ()) -> list[dict[str, np.ndarray]]:
        """The calls one by one, run by run; those of `narrower` entries first, with rows of zero behind
        theirs."""
        found = []
        for run in range(self.count):
            for name in (*narrower, entry):
                for i in range(run * self.length(name), (run + 1) * self.length(name)):
                    call = nth(self.inputs[name], i)
                    found.append({n: first_rows(a, self.inputs[entry][n].shape[1:]) for n, a in call.items()})
        return found


def float_runs(
    entries: Mapping[str, Conversion],
    files: Mapping[str, Path],
    data: str | Path | Arrays | None,
    ending: str,
    seed: Sequence[int],
    narrow: Mapping[str, str],
) -> Runs:
    """The data's runs, or drawn ones, through the float models.

    Args:
        entries: conversions, in the order of a run; only their float models and states count.
        files: the .onnx file of each.
        data: an .npz file, or arrays; named ENTRY:INPUT, or INPUT where the file is the entry's own; None:
            what lies beside the models.
        ending: of the file beside a model, and what it holds ("calibration").
        seed: of drawn inputs.
        narrow: entries that take of the data of another, with more rows of caches, what fits them.

    Raises:
        InputError, ModelError: data that does not fit the entries.
    """
    given = {
        name: _given(name, argument_shapes(entry), data, files[name].with_suffix(f".{ending}.npz"), ending)
        for name, entry in entries.items()
        if name not in narrow
    }
    without = [name for name, arrays in given.items() if arrays is None]
    if without and len(without) < len(given):
        has = next(name for name in given if name not in without)
        raise InputError(f"{ending} data: there is some for {has} and none for {without[0]}: give both")
    arguments = {name: arrays for name, arrays in given.items() if arrays is not None}
    if not without:
        arguments = _shared_out(arguments, entries, narrow, ending)
    else:
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


def _shared_out(
    arguments: Mapping[str, Arrays], entries: Mapping[str, Conversion], narrow: Mapping[str, str], ending: str
) -> dict[str, Arrays]:
    """Every call for the first entry that has its rows, in the order of a run."""
    found: dict[str, Arrays] = {}
    left = dict(arguments)
    for name, entry in entries.items():
        wide = narrow.get(name, name)
        arrays = left[wide]
        rows = np.array([rows_after(nth(arrays, i)) for i in range(len(next(iter(arrays.values()))))])
        if name in narrow and not rows.all():
            raise InputError(
                f"{wide}: no input with `pos` or `mask` in its name says how many rows a call needs"
            )
        fits = rows <= _rows(entry, entries[wide]) if name in narrow else rows >= 0
        if not fits.any():
            raise InputError(
                f"{ending} data: no call for {name}: leave it out, or give runs that reach its rows"
            )
        shapes = argument_shapes(entry)
        own = {n: a[fits][(slice(None), *map(slice, shapes[n][0]))] for n, a in arrays.items()}
        found[name], left[wide] = own, {n: a[~fits] for n, a in arrays.items()}
    return found


def _rows(entry: Conversion, wide: Conversion) -> int:
    """Rows of a cache of which an entry has fewer than another."""
    shapes, wider = entry.program.interface, wide.program.interface
    sizes = (zip(shapes[s.input][0], wider[s.input][0], strict=True) for s in onnx_states(entry.graph))
    return min((mine for pairs in sizes for mine, theirs in pairs if mine < theirs), default=0)


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
        name: runner(entry.program, [state.output for state in states[name]])
        for name, entry in entries.items()
    }
    shapes = {name: entry.program.interface for name, entry in entries.items()}
    zeros = {s.input: np.zeros(*shapes[name][s.input]) for name in entries for s in states[name]}
    found: dict[str, list[dict[str, np.ndarray]]] = {name: [] for name in entries}
    for i in range(count):
        kept = dict(zeros)
        for name, arrays in arguments.items():
            length = len(next(iter(arrays.values()))) // count
            for k in range(i * length, (i + 1) * length):
                before = {s.input: first_rows(kept[s.input], shapes[name][s.input][0]) for s in states[name]}
                given = nth(arrays, k) | before
                found[name].append(given)
                if states[name]:
                    outputs = run[name](given)
                    for state in states[name]:
                        kept[state.input] = with_rows(kept[state.input], outputs[state.output])
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
                stored[tensor][::length] = first_rows(self.kept[name], stored[tensor][::length].shape)
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
        names, kept = _state_inputs(vectors.conversion), dict(self.kept)
        last = slice(vectors.length - 1, None, vectors.length)
        for state in graph.states:
            rows = found[state.output][last].reshape(-1, *graph.tensors[state.input].shape)
            kept[names[state.input]] = with_rows(kept.get(names[state.input]), rows)
        return replace(self, kept=kept)


def _state_inputs(conversion: Conversion) -> dict[str, str]:
    """Tensors that states come in by, with their names in the model."""
    onnx = onnx_states(conversion.graph)
    return {state.input: named.input for state, named in zip(conversion.graph.states, onnx, strict=True)}
