"""`fadiff inspect`: what a model becomes, before anything is decided."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fadiff.commands.options import console_options, model_argument
from fadiff.commands.reading import bound_dims, cut_options, dim_option, state_options, without_option
from fadiff.console import Columns, Console, numbers

if TYPE_CHECKING:
    from fadiff.converter import Cut, Graph


@click.command()
@model_argument
@dim_option
@cut_options
@state_options
@without_option
@click.option("--cuts", is_flag=True, help="List single tensors where the model can be cut, instead.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.option("--explain", is_flag=True, help="Also what the front end rewrote, and why.")
@console_options
def inspect(
    console: Console,
    model: Path,
    dims: tuple[tuple[str, int], ...],
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    states: tuple[tuple[str, str], ...],
    guess_states: bool,
    without: tuple[str, ...],
    cuts: bool,
    as_json: bool,
    explain: bool,
) -> None:
    """The layers of MODEL.onnx in N K C P Q R S form, their MACs and bytes.

    Unsupported operators are refused all at once, each with its reason (exit code 2).

    \b
    Examples:
      fadiff inspect resnet18.onnx
      fadiff inspect bert.onnx --dim batch=1 --dim sequence=128 --json
      fadiff inspect yolo.onnx --cuts
      fadiff inspect yolo.onnx --outputs boxes,scores
    """
    from fadiff.converter import Cut, State, convert

    cut = Cut(inputs, outputs)
    if cuts:
        _list_cuts(console, model, bound_dims(dims), cut, as_json=as_json)
        return
    with console.stage(f"inspecting {model.name}"):
        conversion = convert(
            model,
            calibrate=False,
            dims=bound_dims(dims),
            cut=cut,
            states=[State(*pair) for pair in states],
            guess_states=guess_states,
            without=without,
            progress=console.update,
        )
    summary = describe(conversion.graph)
    if as_json:
        done = {"notes": list(conversion.notes), "rewrites": list(conversion.rewrites)}
        console.result(json.dumps({**summary, **done}, indent=2))
        return
    _print(console, summary)
    if explain:
        for line in (*conversion.notes, *conversion.rewrites, *_pools(conversion.graph)):
            console.result(line)


def _list_cuts(console: Console, model: Path, dims: dict[str, int], cut: Cut, *, as_json: bool) -> None:
    from fadiff.converter.cut_points import cut_points

    with console.stage(f"looking for cuts in {model.name}"):
        points = cut_points(model, dims=dims, cut=cut, progress=console.update)
    if as_json:
        console.result(json.dumps([asdict(point) for point in points], indent=2))
        return
    if not points:
        console.result("no single tensor separates inputs and outputs: name several with --inputs, --outputs")
        return
    rows = (
        (p.tensor, "x".join(map(str, p.shape)), p.after, f"{p.macs_before:,}", f"{p.macs_behind:,}")
        for p in points
    )
    console.table(("tensor", "shape", "after", *numbers("MACs before", "behind")), rows)
    last = points[-1].tensor
    console.result(f"cut with --outputs or --inputs, for example --outputs {shlex.quote(last)}")


def _pools(graph: Graph) -> list[str]:
    """Which max pools Gemmini can do as it stores, and why not the others."""
    from fadiff.converter.ir.graph import HostLayer
    from fadiff.costmodel.group.pooling import convolution_of, obstacle_to_pooling

    lines = []
    for layer in graph.layers:
        if layer.op == "max_pool":
            assert isinstance(layer, HostLayer)
            convolution = convolution_of(graph, layer)
            where = (
                f"on the core, or as the results of {convolution.name} are stored"
                if convolution
                else f"on the core: {obstacle_to_pooling(graph, layer)}"
            )
            lines.append(f"max-pool: {layer.name} runs {where}")
    return lines


def describe(graph: Graph) -> dict[str, object]:
    """The layer table as plain data; bytes are of one element per int8, four per int32 and float32."""
    from fadiff.converter.ir.graph import TensorCoreLayer

    def nbytes(names: tuple[str, ...], *, constant: bool) -> int:
        tensors = (graph.tensors[name] for name in dict.fromkeys(names))
        return sum(t.nbytes for t in tensors if (t.data is not None) == constant)

    layers: list[dict[str, object]] = []
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
    return {
        "model": graph.name,
        "sha256": graph.sha256,
        "inputs": {name: list(graph.tensors[name].shape) for name in graph.inputs},
        "outputs": {name: list(graph.tensors[name].shape) for name in graph.outputs},
        "layers": layers,
        "totals": {
            "layers": len(layers),
            "array_layers": len(core_layers),
            "macs": sum(layer.macs for layer in core_layers),
            "weight_bytes": sum(t.nbytes for t in graph.tensors.values() if t.data is not None),
        },
    }


def _print(console: Console, summary: dict[str, object]) -> None:
    columns: Columns = (
        "layer",
        "op",
        "runs on",
        "dims",
        "stride",
        *numbers("MACs", "weights B", "in B", "out B"),
    )
    layers = summary["layers"]
    totals = summary["totals"]
    assert isinstance(layers, list) and isinstance(totals, dict)
    rows = (
        (
            layer["name"],
            layer["op"],
            layer["runs_on"],
            " ".join(f"{d}{n}" for d, n in (layer["dims"] or {}).items() if n > 1),
            "x".join(map(str, layer["stride"])) if layer["stride"] else "",
            f"{layer['macs']:,}" if layer["macs"] else "",
            *(f"{layer[key]:,}" for key in ("weight_bytes", "input_bytes", "output_bytes")),
        )
        for layer in layers
    )
    console.table(columns, rows)
    console.result(
        f"{totals['layers']} layers, {totals['array_layers']} on the array; "
        f"{totals['macs']:,} MACs; {totals['weight_bytes']:,} bytes of weights"
    )
