"""Networks by the names the command line uses: those of Table 1, layer graphs of `samples`, ONNX files."""

from __future__ import annotations

from pathlib import Path

from fadiff.converter import convert
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
    """A network of the table, any other that `samples` knows, or that of a file NAME.onnx.

    Raises:
        InputError: `samples` knows no such network.
    """
    if name.endswith(".onnx"):
        return convert(Path(name), calibrate=False).graph
    sample, options = TABLE1.get(name, (name, {}))
    try:
        return graph_of(sample, **options)
    except ValueError as error:
        raise InputError(str(error)) from None
