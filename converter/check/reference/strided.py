"""Operands and results of strided host layers (docs/host-ops.md, Loops)."""

from __future__ import annotations

from fadiff.converter.check.reference.emit import Emit
from fadiff.converter.ir.graph import HostLayer
from fadiff.converter.ir.host import StridedOperator


def operand(emit: Emit, layer: HostLayer, index: int) -> str:
    """An input through its strided access, shaped like the loops."""
    loops = _operator(layer).loops
    access = loops.inputs[index]
    return emit.read(layer.inputs[index], access.offset, loops.shape, access.strides)


def store(emit: Emit, layer: HostLayer, value: str) -> None:
    """A value shaped like the loops, through the output's strided access."""
    loops = _operator(layer).loops
    emit.write(layer.outputs[0], value, loops.output.offset, loops.shape, loops.output.strides)


def _operator(layer: HostLayer) -> StridedOperator:
    assert isinstance(layer.operator, StridedOperator)
    return layer.operator
