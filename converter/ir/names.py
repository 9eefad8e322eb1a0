"""Names of nodes and values: those that a model has, and new ones beside them."""

from __future__ import annotations

import onnx

from fadiff.converter.printable import free_name


class FreshNames:
    """Names for what is made beside a graph: none is that of something else in it, its loops and branches.

    Nodes and values do not see each other's names.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._values = names_in(graph)
        self._nodes = set(self._values)

    def new(self, wanted: str) -> str:
        """For a value: the name, or with a number.

        >>> fresh = FreshNames(onnx.parser.parse_graph("g (float[1] a) => (float[1] y) { y = Relu (a) }"))
        >>> fresh.new("a"), fresh.new("b"), fresh.new("b"), fresh.node("b")
        ('a_2', 'b', 'b_2', 'b')
        """
        return _taken(wanted, self._values)

    def node(self, wanted: str) -> str:
        """For a node."""
        return _taken(wanted, self._nodes)


def _taken(wanted: str, names: set[str]) -> str:
    name = free_name(wanted, names)
    names.add(name)
    return name


def names_in(graph: onnx.GraphProto) -> set[str]:
    """All names of nodes and values, those of loops and branches, too."""
    found = {named.name for named in (*graph.input, *graph.output, *graph.initializer)}
    for node in graph.node:
        found.update((node.name, *node.input, *node.output))
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
                found |= names_in(inner)
    return found
