"""Calls of the host operator library: one function per operator, attributes become arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from converter.graph import Graph, HostLayer
from emitters.gemmini.errors import EmitError
from emitters.gemmini.expression import Expr


@dataclass(frozen=True)
class HostCall:
    """`function(arguments)`; `needs` are the library functions it uses."""

    function: str
    arguments: tuple[Expr, ...]
    needs: frozenset[str]


def float_literal(value: float) -> str:
    """A C hexadecimal float constant: exact, the same on every compiler."""
    return f"{float(value).hex()}f"


def ints(values: object) -> str:
    """An anonymous array constant of int32_t."""
    assert isinstance(values, tuple | list)
    return f"(const int32_t[]){{{', '.join(str(int(v)) for v in values)}}}"


Pointers = Mapping[str, str]
"""C expression of each tensor's address, by tensor name."""


def _max_pool(graph: Graph, layer: HostLayer, at: Pointers) -> HostCall:
    a = layer.attributes
    source, target = graph.tensors[layer.inputs[0]], graph.tensors[layer.outputs[0]]
    pads = a["pads"]
    assert isinstance(pads, tuple)
    return HostCall(
        "max_pool",
        (
            at[source.name],
            at[target.name],
            ints(source.shape),
            ints(target.shape[1:3]),
            ints(a["kernel"]),
            ints(a["stride"]),
            ints(a["dilation"]),
            ints(pads[:2]),
        ),
        frozenset(("max_pool",)),
    )


def _global_average_pool(graph: Graph, layer: HostLayer, at: Pointers) -> HostCall:
    source = graph.tensors[layer.inputs[0]]
    n, h, w, c = source.shape
    scale = layer.attributes["scale"]
    assert isinstance(scale, float)
    return HostCall(
        "global_average_pool",
        (at[source.name], at[layer.outputs[0]], n, h * w, c, float_literal(scale)),
        frozenset(("global_average_pool", "round_to_int8")),
    )


def _strided(graph: Graph, layer: HostLayer, at: Pointers) -> HostCall:
    a = layer.attributes
    source, target = layer.inputs[0], layer.outputs[0]
    shape, strides, out_strides = a["shape"], a["strides"], a["out_strides"]
    assert isinstance(shape, tuple) and isinstance(strides, tuple) and isinstance(out_strides, tuple)
    if len(shape) > 8:
        raise EmitError(f"layer {layer.name}: {len(shape)} axes; the firmware copies at most 8")
    if not shape:
        shape, strides, out_strides = (1,), (0,), (0,)
    table = f"{at[layer.inputs[1]]}" if layer.op == "lookup" else "NULL"
    return HostCall(
        "strided_copy",
        (
            _shifted(at[source], a.get("offset", 0)),
            _shifted(at[target], a.get("out_offset", 0)),
            len(shape),
            ints(shape),
            ints(strides),
            ints(out_strides),
            table,
        ),
        frozenset(("strided_copy",)),
    )


def _shifted(pointer: str, offset: object) -> str:
    return pointer if offset == 0 else f"{pointer} + {offset}"


_CALLS: dict[str, Callable[[Graph, HostLayer, Pointers], HostCall]] = {
    "max_pool": _max_pool,
    "global_average_pool": _global_average_pool,
    "copy": _strided,
    "lookup": _strided,
}


def host_call(graph: Graph, layer: HostLayer, at: Pointers) -> HostCall:
    """The call that runs one host layer.

    Raises:
        EmitError: an operator the firmware library does not have.
    """
    if layer.op not in _CALLS:
        raise EmitError(f"layer {layer.name}: the firmware library has no operator {layer.op!r}")
    return _CALLS[layer.op](graph, layer, at)
