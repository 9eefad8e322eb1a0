"""`inspect`: what a model becomes, before anything is decided."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Unpack

from fadiff.console import Console
from fadiff.keywords import ModelKeywords
from fadiff.model_file import model_file
from fadiff.pipeline import ModelOptions, as_target, convert_with, with_keywords

if TYPE_CHECKING:
    from pathlib import Path

    from fadiff.converter import Conversion, Graph
    from fadiff.costmodel.target.target import Target
    from fadiff.model_file import Model


@dataclass(frozen=True)
class Inspection:
    """The layers as records, and what the front end did; bytes are those of the elements as stored."""

    model: str
    sha256: str
    inputs: dict[str, list[int]]
    outputs: dict[str, list[int]]
    layers: list[dict[str, Any]] = field(repr=False)
    totals: dict[str, int]
    notes: tuple[str, ...] = field(repr=False)
    rewrites: tuple[str, ...] = field(repr=False)
    """What became of the model's nodes, line by line."""
    pools: tuple[str, ...] = field(repr=False)
    """Which max pools Gemmini can do as it stores, and why not the others."""
    realised: tuple[str, ...] = field(repr=False)
    """What else can do the work of host operators on a target, with cycles by the clock."""


def inspect(
    model: Model,
    *,
    target: str | Path | Target | None = None,
    example_inputs: Any = None,
    console: Console | None = None,
    **plain: Unpack[ModelKeywords],
) -> Inspection:
    """The layers of a model in N K C P Q R S form, with MACs and bytes; nothing is calibrated.

    With a target also what else can do the work of host operators there.

    Raises:
        ModelError, UnsupportedError: the model cannot be read, or compiled; every reason at once.
    """
    console = console or Console(verbosity=-1)
    reading = with_keywords(ModelOptions(), plain)
    with model_file(model, example_inputs) as file, console.stage(f"inspecting {file.name}"):
        conversion = convert_with(file, reading, console, calibrate=False)
        for warning in conversion.warnings:
            console.warn(warning)
        return described(conversion, None if target is None else as_target(target))


def described(conversion: Conversion, target: Target | None) -> Inspection:
    """The record of a conversion."""
    from fadiff.converter.ir.graph import TensorCoreLayer

    graph = conversion.graph

    def nbytes(names: tuple[str, ...], *, constant: bool) -> int:
        tensors = (graph.tensors[name] for name in dict.fromkeys(names))
        return sum(t.nbytes for t in tensors if (t.data is not None) == constant)

    layers: list[dict[str, Any]] = []
    for layer in graph.layers:
        core = isinstance(layer, TensorCoreLayer)
        layers.append(
            {
                "name": layer.name,
                "op": layer.op,
                "runs_on": "array" if core else "dma" if layer.op == "add" else "core",
                "dims": layer.dims.as_dict() if isinstance(layer, TensorCoreLayer) else None,
                "stride": layer.stride if isinstance(layer, TensorCoreLayer) else None,
                "macs": layer.macs if isinstance(layer, TensorCoreLayer) else 0,
                "weight_bytes": nbytes(layer.inputs, constant=True),
                "input_bytes": nbytes(layer.inputs, constant=False),
                "output_bytes": nbytes(layer.outputs, constant=False),
                "onnx_nodes": list(layer.onnx_nodes),
            }
        )
    core_layers = graph.tensor_core_layers
    return Inspection(
        model=graph.name,
        sha256=graph.sha256,
        inputs={name: list(graph.tensors[name].shape) for name in graph.inputs},
        outputs={name: list(graph.tensors[name].shape) for name in graph.outputs},
        layers=layers,
        totals={
            "layers": len(layers),
            "array_layers": len(core_layers),
            "macs": sum(layer.macs for layer in core_layers),
            "weight_bytes": sum(t.nbytes for t in graph.tensors.values() if t.data is not None),
        },
        notes=conversion.notes,
        rewrites=conversion.rewrites,
        pools=_pools(graph),
        realised=() if target is None else _realised(graph, target),
    )


def _realised(graph: Graph, target: Target) -> tuple[str, ...]:
    from fadiff.optimizer.realise.choice import CLOSE, EXACT, Cheaper, realised_graph

    cheaper = Cheaper(graph, target)
    realised_graph(graph, target, (*CLOSE, *EXACT), cheaper)
    return tuple(
        f"{one.op}: {one.layer} takes {one.before:,.0f} cycles on the core, {one.after:,.0f} as {one.form}"
        f"{'' if one.exact else ' (not the same bits: compile judges)'}"
        for one in cheaper.tried
    )


def _pools(graph: Graph) -> tuple[str, ...]:
    from fadiff.converter.ir.graph import HostLayer
    from fadiff.costmodel.group.pooling import convolution_of, obstacle_to_pooling

    lines = []
    for layer in graph.layers:
        if layer.op == "max_pool":
            assert isinstance(layer, HostLayer)
            convolution = convolution_of(graph, layer)
            where = (
                f"runs on the core, or as the results of {convolution.name} are stored"
                if convolution
                else f"is not pooled as a convolution stores: {obstacle_to_pooling(graph, layer)}"
            )
            lines.append(f"max-pool: {layer.name} {where}")
    return tuple(lines)
