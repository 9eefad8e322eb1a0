"""`fadiff inspect`: what a model becomes, before anything is decided."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from fadiff.commands.options import console_options, model_argument, target_option
from fadiff.commands.reading import cut_options, dim_option, one_reading, state_options, without_option
from fadiff.console import Columns, Console, numbers

if TYPE_CHECKING:
    from fadiff.api.inspection import Inspection
    from fadiff.costmodel.target.target import Target
    from fadiff.pipeline import ModelOptions


@click.command()
@model_argument
@target_option()
@dim_option
@cut_options
@state_options
@without_option
@click.option("--cuts", is_flag=True, help="List single tensors where the model can be cut, instead.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@click.option(
    "--explain", is_flag=True, help="Also what the front end rewrote, and what host operators may become."
)
@console_options
@one_reading
def inspect(
    console: Console,
    model: Path,
    target: Target,
    reading: ModelOptions,
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
    from fadiff.api.inspection import inspect as inspected

    if cuts:
        _list_cuts(console, model, reading, as_json=as_json)
        return
    found = inspected(model, target=target if explain else None, console=console, **vars(reading))
    if as_json:
        shown = {name: value for name, value in asdict(found).items() if name not in ("pools", "realised")}
        console.result(json.dumps(shown, indent=2))
        return
    _print(console, found)
    if explain:
        for line in (*found.notes, *found.rewrites, *found.pools, *found.realised):
            console.result(line)


def _list_cuts(console: Console, model: Path, reading: ModelOptions, *, as_json: bool) -> None:
    from fadiff.converter import Cut
    from fadiff.converter.cuts import cut_points

    cut = Cut(tuple(reading.inputs), tuple(reading.outputs))
    with console.stage(f"looking for cuts in {model.name}"):
        points = cut_points(model, dims=reading.dims, cut=cut, progress=console.update)
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


def _print(console: Console, found: Inspection) -> None:
    columns: Columns = (
        "layer",
        "op",
        "runs on",
        "dims",
        "stride",
        *numbers("MACs", "weights B", "in B", "out B"),
    )
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
        for layer in found.layers
    )
    console.table(columns, rows)
    console.result(
        f"{found.totals['layers']} layers, {found.totals['array_layers']} on the array; "
        f"{found.totals['macs']:,} MACs; {found.totals['weight_bytes']:,} bytes of weights"
    )
