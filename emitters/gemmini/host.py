"""Calls of the host operator library (docs/host-ops.md): what a record says becomes arguments.

Loop bounds and strides are tables in constant memory: as literals in `run` they would take stack.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from fadiff.converter.ir import host as ops
from fadiff.converter.ir.graph import Graph, HostLayer
from fadiff.converter.ir.loops import Access, Loops
from fadiff.costmodel.group.copies import MovedRows
from fadiff.costmodel.group.host_work import innermost
from fadiff.emitters.gemmini.errors import EmitError
from fadiff.emitters.gemmini.expression import Expr
from fadiff.emitters.gemmini.formula import float_literal, formula_name
from fadiff.emitters.gemmini.printer import CPrinter

ELEMENT_BYTES = {"int8": 1, "uint8": 1, "int32": 4, "float32": 4}
MOST_AXES = 8
ROW_FACTORS = {operator.op for operator in (ops.Exponentials, ops.InverseRoot, ops.Moments)}
"""Operators of runtime/row_factors.h, which programs without them do not include."""


@dataclass(frozen=True)
class Table:
    """`static const type name = {lines};`, at file scope."""

    ctype: str
    name: str
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
    shared: Mapping[str, str]
    """Names of tables that say the same, by name."""
    tables: list[Table] = field(default_factory=list)

    def table(self, kind: str, ctype: str, *lines: str) -> str:
        """Adds a table; returns its name in the firmware."""
        name = f"{kind}_{self.graph.index[self.layer.name]}"
        self.tables.append(Table(ctype, name, lines))
        return self.shared.get(name, name)

    def input(self, i: int) -> str:
        return self.at[self.layer.inputs[i]]

    @property
    def output(self) -> str:
        return self.at[self.layer.outputs[0]]

    def operands(self, loops: Loops) -> tuple[Expr, ...]:
        """The loops_t, and where its operands start, the output last."""
        names = [self.at[name] for name in self.layer.inputs[: len(loops.inputs)]] + [self.output]
        return (self.loops(loops), *map(_start, names, loops.accesses))

    def loops(self, loops: Loops) -> str:
        """The loops_t."""
        shape = loops.shape or (1,)
        if len(shape) > MOST_AXES:
            raise EmitError(
                f"layer {self.layer.name}: {len(shape)} axes; the firmware loops over at most {MOST_AXES}"
            )
        strides = [access.strides or (0,) for access in loops.accesses]
        order = _loop_order(shape)
        shape, *strides = [tuple(axes[i] for i in order) for axes in (shape, *strides)]
        lines = [f".rank = {len(shape)}, .operands = {len(strides)}, .shape = {_ints(shape)},"]
        lines += [f".strides[{i}] = {_ints(s)}," for i, s in enumerate(strides)]
        return f"&{self.table('loops', 'loops_t', *lines)}"

    def rows(self, rows: ops.Rows) -> str:
        """The rows_t."""
        return f"&{self.table('rows', 'rows_t', f'{rows.outer}, {rows.length}, {rows.inner}')}"

    def image(self, name: str) -> tuple[int, int, int, int]:
        """A tensor N H W C, or N W C, as N H W C."""
        shape = self.graph.tensors[name].shape
        if len(shape) == 3:
            shape = (shape[0], 1, *shape[1:])
        n, h, w, c = shape
        return n, h, w, c

    def window(self, window: ops.PoolWindow) -> str:
        """The window_t."""
        n, h, w, c = self.image(self.layer.inputs[0])
        _, p, q, _ = self.image(self.layer.outputs[0])
        lists = ", ".join(map(_list, (window.kernel, window.stride, window.dilation, window.pads)))
        return f"&{self.table('window', 'window_t', f'{n}, {h}, {w}, {c}, {p}, {q}, {lists}')}"

    def sizes(self, kind: str, values: tuple[int, ...]) -> str:
        """A list of integers."""
        return self.table(kind, "int32_t", ", ".join(map(str, values)))

    @property
    def is_kept_float(self) -> bool:
        return self.graph.is_kept_float(self.layer)

    @property
    def function(self) -> str:
        """What the layer's operator is called in C."""
        return f"float_{self.layer.op}" if self.is_kept_float else self.layer.op

    @property
    def element_bytes(self) -> int:
        return ELEMENT_BYTES[self.graph.tensors[self.layer.inputs[0]].dtype]


def _loop_order(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Axes from the outermost loop to the innermost."""
    last = innermost(shape)
    return (*(axis for axis in range(len(shape)) if axis != last), last)


def _start(name: str, access: Access) -> str:
    """Where an access to a tensor begins."""
    return f"{name} + {access.offset}" if access.offset else name


def _list(values: tuple[int, ...]) -> str:
    return f"{{{', '.join(map(str, values))}}}"


def _ints(values: tuple[int, ...]) -> str:
    return f"(const int32_t[]){_list(values)}"


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _relu(activation: ops.Activation) -> str:
    return _flag(activation == "relu")


def _strided(a: _Arguments, operator: ops.StridedOperator) -> HostCall:
    loops, *starts = a.operands(operator.loops)
    operands = (loops, *starts)
    match operator:
        case ops.Copy():
            return HostCall("copy_bytes" if a.element_bytes == 1 else "copy_words", operands)
        case ops.Lookup():
            is_integer = a.graph.tensors[a.layer.outputs[0]].dtype == "int32"
            name = "lookup_integer" if is_integer else "lookup"
            is_byte = a.graph.tensors[a.layer.inputs[0]].dtype == "uint8"
            source = f"(const int8_t *)({starts[0]})" if is_byte else starts[0]
            return HostCall(name, (loops, source, a.input(1), starts[1]))
        case ops.TableProduct(scale=scale, activation=activation):
            read = (*starts[:2], a.input(2))
            return HostCall(operator.op, (loops, *read, starts[2], float_literal(scale), _relu(activation)))
        case ops.Formula():
            name = "float_formula" if a.is_kept_float else "map_elements"
            return HostCall(name, (*operands, formula_name(a.graph, a.layer)))
        case ops.Binary(function=function, activation=activation, ceiling=ceiling) if a.is_kept_float:
            bounds = (_relu(activation), _ceiling(ceiling))
            return HostCall("float_binary", (*operands, f"FLOAT_{function.upper()}", *bounds))
        case ops.Binary(function=function, activation=activation):
            scales = map(float_literal, (operator.a_scale, operator.b_scale, operator.scale))
            return HostCall(f"binary_{function}", (*operands, *scales, _relu(activation)))
        case ops.Integer(function=function):
            return HostCall(f"integer_{function}", operands)
        case ops.Select():
            return HostCall("select_integer", operands)
        case ops.Quantise(scale=scale):
            return HostCall("quantise", (*operands, float_literal(scale)))
        case ops.Where(a_scale=a_scale, b_scale=b_scale):
            return HostCall("where", (*operands, float_literal(a_scale), float_literal(b_scale)))
        case ops.ScaleShift(activation=activation):
            return HostCall(a.function, (*operands, _relu(activation)))
    raise _unknown(a.layer)


def _ceiling(ceiling: float | None) -> str:
    return float_literal(math.inf if ceiling is None else ceiling)


def _row(a: _Arguments, operator: ops.RowOperator) -> HostCall:
    rows = a.rows(operator.rows)
    match operator:
        case ops.Softmax(scale=scale, mask_rows=mask_rows):
            x, *tables = a.layer.inputs[: -1 if mask_rows else None]  # for int8 of exponentials
            operands = (a.at[x], a.at[tables[0]] if tables else "NULL", a.input(-1) if mask_rows else "NULL")
            return HostCall("softmax", (rows, *operands, mask_rows or 1, a.output, float_literal(scale)))
        case ops.Exponentials(mask_rows=mask_rows):
            mask = a.input(2) if mask_rows else "NULL"
            results = (a.output, a.at[a.layer.outputs[1]], float_literal(ops.EXPONENTIAL_SUM))
            return HostCall("exponentials", (rows, a.input(0), a.input(1), mask, mask_rows or 1, *results))
        case ops.InverseRoot(scale=scale, epsilon=epsilon):
            mean = (float_literal(scale), float_literal(epsilon))
            return HostCall("inverse_root", (rows, a.input(0), a.output, *mean))
        case ops.Moments(width=width, block=block, room=room):
            of_row = (operator.part, operator.variance_scale, operator.epsilon, operator.steps)
            constants = map(float_literal, of_row)
            read = (a.input(i) for i in range(2))
            written = (a.at[name] for name in a.layer.outputs)
            return HostCall("moments", (rows, *read, *written, width, block, room, *constants))
        case ops.LogSoftmax(ratio=ratio, unit=unit):
            levels: tuple[Expr, ...] = ("NULL", "NULL", 0, float_literal(1.0), float_literal(1.0))
            if len(a.layer.inputs) > 1:  # int8
                count = a.graph.tensors[a.layer.inputs[2]].size
                levels = (a.input(1), a.input(2), count, float_literal(ratio), float_literal(unit))
            return HostCall("log_softmax", (rows, a.input(0), *levels, a.output))
        case ops.LayerNorm():
            factors = (v.hex() for v in (operator.epsilon, operator.variance_scale, operator.unit))
            tensors = (a.input(0), a.input(1), a.input(2), a.output)
            name = "layer_norm" if operator.center else "rms_norm"
            return HostCall(name, (rows, *tensors, _flag(operator.per_inner), *factors))
        case ops.Reduce(function=function, scale=scale):
            return HostCall(f"reduce_{function}", (rows, a.input(0), a.output, float_literal(scale)))
        case ops.ArgMax(function=function, select_last=select_last):
            flags_ = (_flag(function == "min"), _flag(select_last))
            return HostCall("arg_max", (rows, a.input(0), a.output, *flags_))
        case ops.Gather():
            count = math.prod(a.graph.tensors[a.layer.inputs[1]].shape)
            return HostCall("gather", (rows, a.input(0), a.input(1), count, a.output, a.element_bytes))
        case ops.Scatter():
            count = a.graph.tensors[a.layer.inputs[1]].size
            places = (a.input(1), count)
            return HostCall("scatter", (rows, a.input(0), *places, a.input(2), a.output, a.element_bytes))
    raise _unknown(a.layer)


def _resize_linear(a: _Arguments, operator: ops.ResizeLinear) -> HostCall:
    taps = tuple(a.input(i) for i in range(1, 5))
    sizes = (
        a.sizes("size", a.image(a.layer.inputs[0])),
        a.sizes("out_size", a.image(a.layer.outputs[0])[1:3]),
    )
    return HostCall("resize_linear", (a.input(0), *taps, a.output, *sizes, float_literal(operator.scale)))


def _fill(a: _Arguments, operator: ops.Fill) -> HostCall:
    value = float_literal(operator.value) if a.graph.element_type == "float32" else int(operator.value)
    return HostCall("fill", (a.output, a.graph.tensors[a.layer.outputs[0]].size, value))


def _float_product(a: _Arguments, o: ops.FloatProduct) -> HostCall:
    accesses = (o.input, o.weight, o.output)
    lists = (o.stride, o.dilation, o.pads[:2], *(access.strides for access in accesses))
    lines = (
        f"{', '.join(map(str, (*o.dims, *o.input_size)))},",
        f"{', '.join(map(_list, lists))},",
        f"{_relu(o.activation)}, {_ceiling(o.ceiling)},",
    )
    product = a.table("product", "float_product_t", *lines)
    x, weight, out = map(_start, (a.input(0), a.input(1), a.output), accesses)
    bias = a.input(2) if len(a.layer.inputs) > 2 else "NULL"
    return HostCall("float_product", (f"&{product}", x, weight, bias, out))


def _call(a: _Arguments) -> HostCall:
    size = a.graph.tensors[a.layer.outputs[0]].size
    match a.layer.operator:
        case ops.StridedOperator() as operator:
            return _strided(a, operator)
        case ops.RowOperator() as operator:
            return _row(a, operator)
        case ops.MaxPool(window=window):
            return HostCall(a.function, (a.window(window), a.input(0), a.output))
        case ops.AveragePool(window=window, count_include_pad=padded, ratio=ratio):
            arguments = (a.window(window), a.input(0), a.output, _flag(padded), float_literal(ratio))
            return HostCall("average_pool", arguments)
        case ops.GlobalAveragePool(scale=scale):
            n, h, w, c = a.image(a.layer.inputs[0])
            pixels = a.rows(ops.Rows(n, h * w, c))
            return HostCall("reduce_sum", (pixels, a.input(0), a.output, float_literal(scale)))
        case ops.ResizeLinear() as operator:
            return _resize_linear(a, operator)
        case ops.Fill() as operator:
            return _fill(a, operator)
        case ops.ToFloat(scale=scale) | ops.ToInt8(scale=scale):
            return HostCall(a.layer.op, (a.input(0), a.output, size, float_literal(scale)))
        case ops.FloatProduct() as operator:
            return _float_product(a, operator)
        case ops.Planes():
            return HostCall("planes", (a.input(0), a.output, a.at[a.layer.outputs[1]], size // 2))
        case ops.FloatSums() as operator:
            read = (*(a.input(i) for i in range(3)), a.input(3) if len(a.layer.inputs) > 3 else "NULL")
            bounds = (_relu(operator.activation), _ceiling(operator.ceiling))
            channels = a.graph.tensors[a.layer.inputs[2]].size
            return HostCall("float_sums", (*read, a.output, size, channels, *bounds))
    raise _unknown(a.layer)


def _unknown(layer: HostLayer) -> EmitError:
    return EmitError(f"layer {layer.name}: the firmware library has no operator {layer.op!r}")


def host_call(
    graph: Graph, layer: HostLayer, at: Pointers, shared: Mapping[str, str], moved: MovedRows | None = None
) -> HostCall:
    """The call that runs one host layer; `at` has a C address per tensor it touches, `shared` is what
    `print_tables` returned, `moved` the rows of a copy by Gemmini.

    Raises:
        EmitError: an operator the firmware library does not have.
    """
    arguments = _Arguments(graph, layer, at, shared)
    if moved is None:
        call = _call(arguments)
    else:
        call = HostCall("copy_rows", (*arguments.operands(moved.loops), moved.length))
    return replace(call, tables=tuple(arguments.tables))


def description(layer: HostLayer) -> str:
    """One line above the layer's call."""
    nodes = "" if layer.onnx_nodes in ((), (layer.name,)) else f"; ONNX nodes: {', '.join(layer.onnx_nodes)}"
    return f"{layer.name}: {layer.op}{nodes}"


def print_tables(
    c: CPrinter, graph: Graph, layers: Iterable[HostLayer], moved: Mapping[str, MovedRows]
) -> dict[str, str]:
    """The tables of host layers, each once; names that stand for others.  `moved`: of copies by Gemmini."""
    names: dict[tuple[str, tuple[str, ...]], str] = {}
    shared = {}
    for layer in layers:
        nowhere = dict.fromkeys((*layer.inputs, *layer.outputs), "")
        call = host_call(graph, layer, nowhere, {}, moved.get(layer.name))
        for table in call.tables:
            shared[table.name] = names.setdefault((table.ctype, table.lines), table.name)
            if shared[table.name] == table.name:
                suffix = "[]" if table.ctype == "int32_t" else ""
                with c.initialiser(f"static const {table.ctype} {table.name}{suffix}"):
                    for line in table.lines:
                        c.line(line)
    return shared
