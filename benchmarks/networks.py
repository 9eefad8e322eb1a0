"""The networks of Table 1 by the names the command line uses."""

from __future__ import annotations

from fadiff.converter.ir.graph import Graph
from fadiff.errors import InputError
from fadiff.samples.graphs import graph_of

TABLE1: dict[str, tuple[str, dict[str, int]]] = {
    "gpt3-2048": ("gpt3-block", {"seq": 2048}),
    "gpt3-256": ("gpt3-block", {"seq": 256}),
    "vgg19": ("vgg19", {}),
    "vgg16": ("vgg16", {}),
    "mobilenetv1": ("mobilenetv1", {}),
    "resnet18": ("resnet18", {}),
}
"""Benchmark name -> name and options of fadiff.samples.graphs.graph_of."""


def network(name: str) -> Graph:
    """A network of the table, or any other that `samples` knows.

    Raises:
        InputError: `samples` knows no such network.
    """
    sample, options = TABLE1.get(name, (name, {}))
    try:
        return graph_of(sample, **options)
    except ValueError as error:
        raise InputError(str(error)) from None
