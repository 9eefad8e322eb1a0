"""The networks of Table 1 by the names the command line uses."""

from __future__ import annotations

from converter.graph import Graph
from samples.graphs import graph_of

TABLE1: dict[str, dict[str, object]] = {
    "gpt3-2048": {"name": "gpt3-block", "seq": 2048},
    "gpt3-256": {"name": "gpt3-block", "seq": 256},
    "vgg19": {"name": "vgg19"},
    "vgg16": {"name": "vgg16"},
    "mobilenetv1": {"name": "mobilenetv1"},
    "resnet18": {"name": "resnet18"},
}
"""Benchmark name -> arguments of samples.graphs.graph_of."""


def network(name: str) -> Graph:
    """A network of the table, or any other that `samples` knows.

    Raises:
        ValueError: `samples` knows no such network.
    """
    arguments = dict(TABLE1.get(name, {"name": name}))
    return graph_of(str(arguments.pop("name")), **arguments)
