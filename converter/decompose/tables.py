"""Functions of an integer input alone: rows of a table, one for each number that the input can be.

Positions go through frequencies, Sin and Cos (rotary embeddings), time steps through a small network of their
own.  In int8 an angle of 500 has steps of 4 rad, so that Sin and Cos are noise; of every integer they can be
known beforehand, and are picked as a Gather picks an embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from fadiff.converter.decompose.nodes import Nodes
from fadiff.converter.errors import ModelError
from fadiff.converter.ir.edit import Editor
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.read.inputs import Samples
from fadiff.converter.read.runtime import run_part

_FEWEST, _MOST_ROWS = 3, 2**13
"""Fewest rows (0 and 1 alone make masks), and most."""
_MOST_BYTES = 2**21
_TRIALS = 8
_SENTINEL = 1e4


@dataclass(frozen=True)
class _Source:
    """An integer input and what depends on it alone."""

    name: str
    rows: int
    """It is 0 to `rows` - 1."""
    nodes: tuple[Node, ...]


def tabulate(program: Program, samples: Samples) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """The model rewritten, and lines that say which input got tables, of how many rows.

    The table has as many rows as the next power of two above the largest number in the samples, one of bytes
    256.
    """
    edit, done = Editor(program.model), []
    for source in _sources(program, samples):
        ends = _ends(program, source)
        tables = {end: table for end in ends if (table := _table(program, source, end)) is not None}
        if not ends or len(tables) < len(ends):
            continue
        if sum(table.size for table, _ in tables.values()) > _MOST_BYTES:
            continue
        for end, (rows, axis) in tables.items():
            _replace(edit, program, source, end, rows, axis)
        done.append(f"{source.name} (0 to {source.rows - 1})")
    return edit.model(), tuple(done)


def _sources(program: Program, samples: Samples) -> list[_Source]:
    found = []
    for name in program.inputs:
        seen = [np.asarray(sample[name]) for sample in samples if name in sample]
        if not program.is_integer(name) or not seen or not all(array.size for array in seen):
            continue
        low, high = min(int(array.min()) for array in seen), max(int(array.max()) for array in seen)
        if program.types[name] == onnx.TensorProto.UINT8:
            high = 255  # (all that there is)
        rows = 1 << high.bit_length() if high > 0 else 1
        nodes = alone(program, name)
        casts = any(program.is_integer(n.inputs[0]) and program.is_float(n.outputs[0]) for n in nodes)
        if low >= 0 and _FEWEST <= rows <= _MOST_ROWS and casts:
            found.append(_Source(name, rows, nodes))
    return found


def alone(program: Program, name: str) -> tuple[Node, ...]:
    """The nodes that read the input, constants and each other only."""
    known, nodes = {name}, list[Node]()
    for node in program.nodes:
        computed = set(program.activations(node))
        if computed and computed <= known and "body" not in node.attributes:
            known.update(node.outputs)
            nodes.append(node)
    return tuple(nodes)


def _ends(program: Program, source: _Source) -> list[str]:
    """Values of it that others read, where numbers were made of integers before."""
    inside = {node.name for node in source.nodes}
    numbers = set[str]()
    for node in source.nodes:
        casts = node.op == "Cast" and program.is_integer(node.inputs[0])
        if casts or numbers & set(node.inputs):
            numbers.update(v for v in node.outputs if program.is_float(v))
    return [
        value
        for value in (v for node in source.nodes for v in node.outputs)
        if value in numbers
        and (value in program.outputs or any(n.name not in inside for n in program.consumers(value)))
    ]


def _table(program: Program, source: _Source, end: str) -> tuple[np.ndarray, int] | None:
    """The value for every integer, and the axis that they stand along; None where it is no row for each.

    For an input of one number a table [rows, all elements]; of several, which must stand along one axis of
    the value, the value with that axis as long as the table.
    """
    shape, sizes = program.shapes[source.name], program.shapes[end]
    count, kind = int(np.prod(shape)), program.numpy_type(source.name)

    def run(integers: Sequence[np.ndarray]) -> list[np.ndarray]:
        feeds = [{source.name: array.reshape(shape).astype(kind)} for array in integers]
        return run_part(program, source.nodes, feeds, end)

    axes = [axis for axis, size in enumerate(sizes) if size == count and count > 1]
    if source.rows * int(np.prod(sizes)) // max(count, 1) > _MOST_BYTES or (count > 1 and not axes):
        return None
    try:
        filled = np.stack(run([np.full(count, i) for i in range(source.rows)]))
        generator = np.random.default_rng(0)
        drawn = [generator.integers(0, source.rows, count) for _ in range(_TRIALS if axes else 0)]
        expected = run(drawn) if drawn else []
    except ModelError:
        return None
    if not np.all(np.isfinite(filled)) or np.abs(filled).max(initial=0) > _SENTINEL:
        return None
    if not axes:
        return filled.reshape(source.rows, -1), 0
    for axis in axes:
        table = np.moveaxis(np.take(filled, 0, axis + 1), 0, axis)
        if all(np.array_equal(np.take(table, d, axis), e) for d, e in zip(drawn, expected, strict=True)):
            return np.asarray(table), axis
    return None


def _replace(edit: Editor, program: Program, source: _Source, end: str, table: np.ndarray, axis: int) -> None:
    writer = program.producer[end]
    nodes = Nodes(edit, edit.node(writer), writer.version)
    count, sizes = int(np.prod(program.shapes[source.name])), program.shapes[end]
    flat = nodes.op("Cast", nodes.reshape(source.name, [count]), to=onnx.TensorProto.INT64)
    rows = nodes.op(
        "Gather", nodes.constant(table.astype(np.float32), "table"), flat, axis=axis, label="table"
    )
    nodes.give(nodes.reshape(rows, sizes) if count == 1 else rows, end)
