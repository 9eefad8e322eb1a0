"""Calls of the host operator library (docs/host-ops.md): attributes become arguments.

Loop bounds and strides are tables in constant memory: as literals in `run` they would take stack.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace

from converter.ir.graph import Graph, HostLayer
from emitters.gemmini.errors import EmitError
from emitters.gemmini.expression import Expr
from emitters.gemmini.formula import float_literal, formula_name
from emitters.gemmini.printer import CPrinter

ELEMENT_BYTES = {"int8": 1, "int32": 4, "float32": 4}
MOST_AXES = 8
SHORT_RUN = 16
"""Elements below which what happens between two runs of the innermost loop costs more than the run."""


@dataclass(frozen=True)
class Table:
    """`declaration = {lines};`, at file scope."""

    declaration: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class HostCall:
    """`function(arguments)` of emitters/gemmini/runtime; `tables` are the constants that it uses."""

    function: str
    arguments: tuple[Expr, ...]
    tables: tuple[Table, ...] = ()


Pointers = Mapping[str, str]
"""C expression of each tensor's address, by tensor name."""


@dataclass(frozen=True)
class _Arguments:
    """One layer and its pieces as C expressions."""

    graph: Graph
    layer: HostLayer
    at: Pointers
    tables: list[Table] = field(default_factory=list)

    def table(self, kind: str, ctype: str, *lines: str) -> str:
        """Adds a table; returns its name, which is unique in the firmware."""
        name = f"{kind}_{self.graph.index[self.layer.name]}"
        suffix = "[]" if ctype == "int32_t" else ""
        self.tables.append(Table(f"static const {ctype} {name}{suffix}", lines))
        return name

    def input(self, i: int) -> str:
        return self.at[self.layer.inputs[i]]

    @property
    def output(self) -> str:
        return self.at[self.layer.outputs[0]]

    def integer(self, key: str, default: int = 0) -> int:
        value = self.layer.attributes.get(key, default)
        assert isinstance(value, int)
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        value = self.layer.attributes[key]
        assert isinstance(value, tuple | list)
        return tuple(int(v) for v in value)

    def number(self, key: str, default: float = 1.0) -> float:
        value = self.layer.attributes.get(key, default)
        assert isinstance(value, int | float)
        return float(value)

    def float(self, key: str, default: float = 1.0) -> str:
        return float_literal(self.number(key, default))

    def word(self, key: str) -> str:
        return str(self.layer.attributes[key])

    def flag(self, key: str) -> str:
        return "true" if self.layer.attributes.get(key, 0) else "false"

    @property
    def relu(self) -> str:
        return "true" if self.layer.attributes.get("activation", "none") == "relu" else "false"

    def shifted(self, pointer: str, key: str) -> str:
        offset = self.integer(key)
        return f"{pointer} + {offset}" if offset else pointer

    def loops(self, *keys: str) -> str:
        """The loops_t; `keys` name the stride attribute of each operand, output last."""
        shape = self.integers("shape") or (1,)
        if len(shape) > MOST_AXES:
            raise EmitError(
                f"layer {self.layer.name}: {len(shape)} axes; the firmware loops over at most {MOST_AXES}"
            )
        strides = [self.integers(key) or (0,) for key in keys]
        order = _loop_order(shape)
        shape, *strides = [tuple(axes[i] for i in order) for axes in (shape, *strides)]
        lines = [f".rank = {len(shape)}, .operands = {len(keys)}, .shape = {_ints(shape)},"]
        lines += [f".strides[{i}] = {_ints(s)}," for i, s in enumerate(strides)]
        return f"&{self.table('loops', 'loops_t', *lines)}"

    def rows(self) -> str:
        """The rows_t."""
        sizes = (self.integer(key) for key in ("outer", "length", "inner"))
        return f"&{self.table('rows', 'rows_t', ', '.join(map(str, sizes)))}"

    def image(self, name: str) -> tuple[int, int, int, int]:
        """A tensor N H W C, or N W C, as N H W C."""
        shape = self.graph.tensors[name].shape
        if len(shape) == 3:
            shape = (shape[0], 1, *shape[1:])
        n, h, w, c = shape
        return n, h, w, c

    def window(self) -> str:
        """The window_t."""
        n, h, w, c = self.image(self.layer.inputs[0])
        _, p, q, _ = self.image(self.layer.outputs[0])
        lists = ", ".join(_list(self.integers(key)) for key in ("kernel", "stride", "dilation", "pads"))
        return f"&{self.table('window', 'window_t', f'{n}, {h}, {w}, {c}, {p}, {q}, {lists}')}"

    def sizes(self, kind: str, values: tuple[int, ...]) -> str:
        """A list of integers."""
        return self.table(kind, "int32_t", ", ".join(map(str, values)))

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.graph.tensors[self.layer.inputs[0]].dtype]


def _loop_order(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Axes from the outermost loop to the innermost, which should be long: elements are independent."""
    axes = list(range(len(shape)))
    if shape[-1] < SHORT_RUN:
        longest = max(reversed(axes), key=lambda axis: shape[axis])
        axes.remove(longest)
        axes.append(longest)
    return tuple(axes)


def _list(values: tuple[int, ...]) -> str:
    return f"{{{', '.join(map(str, values))}}}"


def _ints(values: tuple[int, ...]) -> str:
    return f"(const int32_t[]){_list(values)}"


def _copy(a: _Arguments) -> HostCall:
    operands = (a.shifted(a.input(0), "offset"), a.shifted(a.output, "out_offset"))
    function = "copy_bytes" if a.element_bytes == 1 else "copy_words"
    return HostCall(function, (a.loops("strides", "out_strides"), *operands))


def _lookup(a: _Arguments) -> HostCall:
    operands = (a.shifted(a.input(0), "offset"), a.input(1), a.shifted(a.output, "out_offset"))
    is_integer = a.graph.tensors[a.layer.outputs[0]].dtype == "int32"
    return HostCall(
        "lookup_integer" if is_integer else "lookup", (a.loops("strides", "out_strides"), *operands)
    )


def _binary(a: _Arguments) -> HostCall:
    operands = (
        a.shifted(a.input(0), "offset"),
        a.shifted(a.input(1), "b_offset"),
        a.shifted(a.output, "out_offset"),
    )
    scales = (a.float("a_scale"), a.float("b_scale"), a.float("scale"))
    loops = a.loops("strides", "b_strides", "out_strides")
    return HostCall(f"binary_{a.word('function')}", (loops, *operands, *scales, a.relu))


def _integer(a: _Arguments) -> HostCall:
    operands = (
        a.loops("strides", "b_strides", "out_strides"),
        a.shifted(a.input(0), "offset"),
        a.shifted(a.input(1), "b_offset"),
        a.shifted(a.output, "out_offset"),
    )
    return HostCall(f"integer_{a.word('function')}", operands)


def _select(a: _Arguments) -> HostCall:
    return HostCall("select_integer", _three_operands(a))


def _quantise(a: _Arguments) -> HostCall:
    operands = (a.shifted(a.input(0), "offset"), a.shifted(a.output, "out_offset"))
    loops = a.loops("strides", "out_strides")
    return HostCall("quantise", (loops, *operands, a.float("scale")))


def _three_operands(a: _Arguments) -> tuple[Expr, ...]:
    return (
        a.loops("strides", "b_strides", "c_strides", "out_strides"),
        a.shifted(a.input(0), "offset"),
        a.shifted(a.input(1), "b_offset"),
        a.shifted(a.input(2), "c_offset"),
        a.shifted(a.output, "out_offset"),
    )


def _where(a: _Arguments) -> HostCall:
    scales = (a.float("a_scale"), a.float("b_scale"))
    return HostCall("where", (*_three_operands(a), *scales))


def _scale_shift(a: _Arguments) -> HostCall:
    return HostCall("scale_shift", (*_three_operands(a), a.relu))


def _max_pool(a: _Arguments) -> HostCall:
    return HostCall(a.layer.op, (a.window(), a.input(0), a.output))


def _average_pool(a: _Arguments) -> HostCall:
    arguments = (a.window(), a.input(0), a.output, a.flag("count_include_pad"), a.float("ratio"))
    return HostCall("average_pool", arguments)


def _global_average_pool(a: _Arguments) -> HostCall:
    n, h, w, c = a.image(a.layer.inputs[0])
    return HostCall("global_average_pool", (a.input(0), a.output, n, h * w, c, a.float("scale")))


def _resize_linear(a: _Arguments) -> HostCall:
    tables = tuple(a.input(i) for i in range(1, 5))
    out = a.image(a.layer.outputs[0])
    size = a.image(a.layer.inputs[0])
    arguments = (
        a.input(0),
        *tables,
        a.output,
        a.sizes("size", size),
        a.sizes("out_size", out[1:3]),
        a.float("scale"),
    )
    return HostCall("resize_linear", arguments)


def _softmax(a: _Arguments) -> HostCall:
    masked = "mask_rows" in a.layer.attributes
    x, *tables = [a.input(i) for i in range(len(a.layer.inputs) - masked)]  # for int8 of exponentials
    mask = a.input(len(a.layer.inputs) - 1) if masked else "NULL"
    operands = (x, tables[0] if tables else "NULL", mask)
    arguments: tuple[Expr, ...] = (a.rows(), *operands, a.integer("mask_rows", 1), a.output, a.float("scale"))
    return HostCall("softmax", arguments)


def _log_softmax(a: _Arguments) -> HostCall:
    tables: tuple[Expr, ...] = ("NULL", "NULL", 0, float_literal(1.0), float_literal(1.0))
    if len(a.layer.inputs) > 1:  # int8
        count = a.graph.tensors[a.layer.inputs[2]].size
        tables = (a.input(1), a.input(2), count, a.float("ratio"), a.float("unit"))
    return HostCall("log_softmax", (a.rows(), a.input(0), *tables, a.output))


def _layer_norm(a: _Arguments) -> HostCall:
    operands = (a.rows(), a.input(0), a.input(1), a.input(2), a.output)
    factors = tuple(a.number(key).hex() for key in ("epsilon", "variance_scale", "unit"))
    arguments: tuple[Expr, ...] = (*operands, a.integer("center"), a.flag("per_inner"), *factors)
    return HostCall("layer_norm", arguments)


def _reduce(a: _Arguments) -> HostCall:
    return HostCall(f"reduce_{a.word('function')}", (a.rows(), a.input(0), a.output, a.float("scale")))


def _arg_max(a: _Arguments) -> HostCall:
    smallest = "true" if a.word("function") == "min" else "false"
    return HostCall("arg_max", (a.rows(), a.input(0), a.output, smallest, a.flag("select_last")))


def _gather(a: _Arguments) -> HostCall:
    count = math.prod(a.graph.tensors[a.layer.inputs[1]].shape)
    return HostCall("gather", (a.rows(), a.input(0), a.input(1), count, a.output, a.element_bytes))


def _fill(a: _Arguments) -> HostCall:
    is_float = a.graph.element_type == "float32"
    value: Expr = a.float("value") if is_float else a.integer("value")
    return HostCall("fill", (a.output, a.graph.tensors[a.layer.outputs[0]].size, value))


def _formula(a: _Arguments) -> HostCall:
    operands = (a.shifted(a.input(0), "offset"), a.shifted(a.output, "out_offset"))
    function = formula_name(a.graph, a.layer)
    call = "map_elements" if a.layer.op == "formula" else a.layer.op
    return HostCall(call, (a.loops("strides", "out_strides"), *operands, function))


def _conversion(a: _Arguments) -> HostCall:
    size = a.graph.tensors[a.layer.outputs[0]].size
    return HostCall(a.layer.op, (a.input(0), a.output, size, a.float("scale")))


def _float_binary(a: _Arguments) -> HostCall:
    operands = (
        a.shifted(a.input(0), "offset"),
        a.shifted(a.input(1), "b_offset"),
        a.shifted(a.output, "out_offset"),
    )
    function = f"FLOAT_{a.word('function').upper()}"
    loops = a.loops("strides", "b_strides", "out_strides")
    return HostCall("float_binary", (loops, *operands, function, a.relu, a.float("ceiling", math.inf)))


def _float_product(a: _Arguments) -> HostCall:
    g, n, k, c, p, q, r, s = a.integers("dims")
    height, width = a.integers("input_size")
    pairs = (a.integers("stride"), a.integers("dilation"), a.integers("pads")[:2])
    accesses = (a.integers("strides"), a.integers("b_strides"), a.integers("out_strides"))
    lines = (
        f"{g}, {n}, {k}, {c}, {p}, {q}, {r}, {s}, {height}, {width},",
        f"{', '.join(map(_list, (*pairs, *accesses)))},",
        f"{a.relu}, {a.float('ceiling', math.inf)},",
    )
    product = a.table("product", "float_product_t", *lines)
    operands = (a.shifted(a.input(0), "offset"), a.shifted(a.input(1), "b_offset"))
    bias = a.input(2) if len(a.layer.inputs) > 2 else "NULL"
    return HostCall("float_product", (f"&{product}", *operands, bias, a.shifted(a.output, "out_offset")))


_CALLS: dict[str, Callable[[_Arguments], HostCall]] = {
    "arg_max": _arg_max,
    "average_pool": _average_pool,
    "binary": _binary,
    "copy": _copy,
    "fill": _fill,
    "float_binary": _float_binary,
    "float_formula": _formula,
    "float_max_pool": _max_pool,
    "float_product": _float_product,
    "formula": _formula,
    "gather": _gather,
    "global_average_pool": _global_average_pool,
    "integer": _integer,
    "layer_norm": _layer_norm,
    "log_softmax": _log_softmax,
    "lookup": _lookup,
    "max_pool": _max_pool,
    "quantise": _quantise,
    "reduce": _reduce,
    "resize_linear": _resize_linear,
    "scale_shift": _scale_shift,
    "select": _select,
    "softmax": _softmax,
    "to_float": _conversion,
    "to_int8": _conversion,
    "where": _where,
}


def host_call(graph: Graph, layer: HostLayer, at: Pointers) -> HostCall:
    """The call that runs one host layer; `at` has a C address per tensor it touches.

    Raises:
        EmitError: an operator the firmware library does not have.
    """
    if layer.op not in _CALLS:
        raise EmitError(f"layer {layer.name}: the firmware library has no operator {layer.op!r}")
    arguments = _Arguments(graph, layer, at)
    call = _CALLS[layer.op](arguments)
    return replace(call, tables=tuple(arguments.tables))


def description(layer: HostLayer) -> str:
    """One line above the layer's call."""
    nodes = "" if layer.onnx_nodes in ((), (layer.name,)) else f"; ONNX nodes: {', '.join(layer.onnx_nodes)}"
    return f"{layer.name}: {layer.op}{nodes}"


def print_tables(c: CPrinter, graph: Graph, fused: Set[str] = frozenset()) -> None:
    """The tables of all host layers but those in fusion groups."""
    for layer in graph.layers:
        if isinstance(layer, HostLayer) and layer.op in _CALLS and layer.name not in fused:
            call = host_call(graph, layer, dict.fromkeys((*layer.inputs, *layer.outputs), ""))
            for table in call.tables:
                with c.initialiser(table.declaration):
                    for line in table.lines:
                        c.line(line)
