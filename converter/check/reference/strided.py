"""Operands and results of strided host layers (docs/host-ops.md, Loops)."""

from __future__ import annotations

from typing import Any

from converter.check.reference.emit import Emit
from converter.ir.graph import HostLayer

_PREFIXES = ("", "b_", "c_")


def operand(emit: Emit, layer: HostLayer, index: int) -> str:
    """An input through its strided access, shaped like the loops."""
    attributes: Any = layer.attributes
    prefix = _PREFIXES[index]
    return emit.read(
        layer.inputs[index],
        attributes.get(f"{prefix}offset", 0),
        attributes["shape"],
        attributes[f"{prefix}strides"],
    )


def store(emit: Emit, layer: HostLayer, value: str) -> None:
    """A value shaped like the loops, through the output's strided access."""
    attributes: Any = layer.attributes
    offset, strides = attributes.get("out_offset", 0), attributes["out_strides"]
    emit.write(layer.outputs[0], value, offset, attributes["shape"], strides)
