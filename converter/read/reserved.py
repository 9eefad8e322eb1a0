"""Names that quantised models give to what belongs to a value: no other value of the file may have them."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from fadiff.converter.errors import ModelError
from fadiff.converter.ir.names import graphs_in, values_in

SUFFIXES = ("scale", "zero", "q", "dq", "float")  # converter/quantise/qdq.py
"""Behind the name of a value and a point."""


def free_reserved_names(file: str, model: onnx.ModelProto) -> None:
    """Rename, in place, values such as `y.scale` beside a value `y`; inputs and outputs keep their names.

    Raises:
        ModelError: both are inputs or outputs.
    """
    graph = model.graph
    taken = {name for part in graphs_in(graph) for name in values_in(part)}
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
        for part in graphs_in(graph):
            _rename(part, names)


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for node in graph.node:
        for values in (node.input, node.output):
            for i, value in enumerate(values):
                values[i] = names.get(value, value)
    for named in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        named.name = names.get(named.name, named.name)
