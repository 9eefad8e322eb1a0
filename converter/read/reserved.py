"""Names that quantised models give to what belongs to a value: no other value of the file may have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx

from fadiff.converter.errors import ModelError

SUFFIXES = (
    *("scale", "zero", "q", "dq", "float"),  # converter/quantise/qdq.py
    *("integers", "clipped", "low", "high"),  # converter/quantise/qonnx.py
    *("step", "origin", "below", "one", "twice", "fall"),
)
"""Behind the name of a value and a point."""


def free_reserved_names(file: str, model: onnx.ModelProto) -> None:
    """Rename, in place, values such as `y.scale` beside a value `y`; inputs and outputs keep their names.

    Raises:
        ModelError: both are inputs or outputs.
    """
    graph = model.graph
    taken = {name for part in _graphs(graph) for name in _values(part)}
    fixed = {value.name for value in (*graph.input, *graph.output)}
    names: dict[str, str] = {}
    for name in sorted(taken):
        base, point, suffix = name.rpartition(".")
        if not point or suffix not in SUFFIXES or base not in taken or base in names:
            continue
        free = name if name not in fixed else base
        if free in fixed:
            raise ModelError(
                f"{file}: inputs or outputs {base} and {name}: the second is what FADiff calls "
                f"the {suffix} of the first; rename it"
            )
        new = f"{free}_"
        while new in taken:
            new += "_"
        taken.add(new)
        names[free] = new
    if names:
        for part in _graphs(graph):
            _rename(part, names)


def names_in(graph: onnx.GraphProto) -> set[str]:
    """All names of nodes and values, those of loops and branches, too."""
    return {name for part in _graphs(graph) for name in (*_values(part), *(node.name for node in part.node))}


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and those of its loops and branches."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                yield from _graphs(inner)


def _values(graph: onnx.GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield from (*node.input, *node.output)
    for named in (*graph.input, *graph.output, *graph.initializer):
        yield named.name


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for node in graph.node:
        for values in (node.input, node.output):
            for i, value in enumerate(values):
                values[i] = names.get(value, value)
    for named in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        named.name = names.get(named.name, named.name)
