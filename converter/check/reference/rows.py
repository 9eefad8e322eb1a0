"""Host layers along one axis, and the interpolation of images: docs/host-ops.md as ONNX."""

from __future__ import annotations

import numpy as np

from fadiff.converter.check.reference.emit import Emit
from fadiff.converter.ir import host as ops
from fadiff.converter.ir.graph import HostLayer


def _rows(emit: Emit, layer: HostLayer, operator: ops.RowOperator) -> str:
    """The first input as [outer, length, inner]."""
    rows = operator.rows
    return emit.reshape(emit.flat(layer.inputs[0]), (rows.outer, rows.length, rows.inner))


def softmax(emit: Emit, layer: HostLayer, operator: ops.Softmax) -> None:
    """rne(f32(e) * (scale / f32(sum e))) with e from a table of integers, or exp(x - max) in float32."""
    exponential, total = _shares(emit, layer, operator)
    gain = emit.op("Div", emit.constant(np.float32(operator.scale)), emit.cast(total, "float32"))
    share = emit.op("Mul", emit.cast(exponential, "float32"), gain)
    emit.write_dense(layer.outputs[0], emit.element(share))


def exponentials(emit: Emit, layer: HostLayer, operator: ops.Exponentials) -> None:
    """The lowest bytes of the table's entries w, and EXPONENTIAL_SUM / f32(sum w)."""
    exponential, total = _shares(emit, layer, operator)
    lowest = emit.op("Mod", exponential, emit.constant(np.int32(256)))
    emit.write_dense(layer.outputs[0], emit.cast(lowest, "int8"))
    one = emit.constant(np.float32(ops.EXPONENTIAL_SUM))
    reciprocal = emit.op("Div", one, emit.cast(total, "float32"))
    emit.write_dense(layer.outputs[1], reciprocal)


def inverse_root(emit: Emit, layer: HostLayer, operator: ops.InverseRoot) -> None:
    """1 / root(f32(squares) * scale + epsilon), each step in float32."""
    squares = _squares(emit, layer.inputs[0], operator.rows)
    mean = emit.op("Add", emit.scaled(squares, operator.scale), emit.constant(np.float32(operator.epsilon)))
    root = emit.op("Sqrt", mean)
    emit.write_dense(layer.outputs[0], emit.op("Div", emit.constant(np.float32(1)), root))


def _squares(emit: Emit, products: str, rows: ops.Rows) -> str:
    """The sum of squares of every row [outer], int32."""
    starts = [min(row - row % rows.length, rows.outer - rows.length) for row in range(rows.outer)]
    places = [row * rows.length + row - start for row, start in enumerate(starts)]
    return emit.op("Gather", emit.flat(products), emit.constant(np.array(places, np.int32)))


def moments(emit: Emit, layer: HostLayer, operator: ops.Moments) -> None:
    """Mean and deviation of each row as integers and 16ths of the rest; 1 / deviation; all in float32."""
    rows, width = operator.rows, operator.width
    products, sums = layer.inputs

    def number(value: float) -> str:
        return emit.constant(np.float32(value))

    total = emit.cast(emit.flat(sums), "int64")
    squares = emit.op(
        "Mul", emit.cast(_squares(emit, products, rows), "int64"), emit.constant(np.int64(width))
    )
    spread = emit.op("Sub", squares, emit.op("Mul", total, total))
    variance = emit.scaled(spread, operator.variance_scale)
    root = emit.op("Sqrt", emit.op("Add", variance, number(operator.epsilon)))
    emit.write_dense(layer.outputs[1], emit.op("Div", number(1), root))
    deviation = emit.op("Min", emit.op("Mul", root, number(operator.steps)), number(127))
    values = []
    for value in (emit.scaled(total, operator.part), deviation):
        whole = emit.op("Round", value)
        rest = emit.op("Round", emit.op("Mul", emit.op("Sub", value, whole), number(16)))
        values += [emit.reshape(emit.cast(v, "int8"), (rows.outer, 1, 1)) for v in (whole, rest)]
    rest_of_room = np.zeros((rows.outer, 1, operator.room - len(values)), np.int8)
    room = emit.op("Concat", *values, emit.constant(rest_of_room), axis=2)
    groups, pitch = width // operator.block, operator.block + operator.room
    added = emit.op("Tile", room, emit.ints([1, groups, 1]))
    shape, strides = (rows.outer * groups, operator.room), (pitch, 1)
    emit.write(layer.outputs[0], added, operator.block, shape, strides)


def _shares(emit: Emit, layer: HostLayer, operator: ops.Softmax | ops.Exponentials) -> tuple[str, str]:
    """Exponentials [outer, length, inner], 0 where masked, and their sums [outer, 1, inner], at least 1."""
    value = _rows(emit, layer, operator)
    value = emit.word(value)
    blank = None
    if operator.mask_rows:
        outer, length, rows = operator.rows.outer, operator.rows.length, operator.mask_rows
        mask = emit.reshape(emit.cast(emit.flat(layer.inputs[-1]), "bool"), [rows, length])
        repeated = emit.op("Tile", mask, emit.ints([outer // rows, 1]))
        blank = emit.reshape(repeated, [outer, length, 1])
        value = emit.op("Where", blank, emit.word(emit.constant(emit.lowest)), value)
    largest = emit.op("ReduceMax", value, emit.ints([1]), keepdims=1)
    exponential = _exponential(emit, layer, emit.op("Sub", value, largest))
    if blank is not None:
        exponential = emit.op("Where", blank, emit.zero(), exponential)
    total = emit.op("ReduceSum", emit.wide(exponential), emit.ints([1]), keepdims=1)
    if blank is not None:  # a row that is masked throughout divides by what is not zero
        tiny = np.float64(np.finfo(np.float32).tiny) if emit.is_float else np.int64(1)
        total = emit.op("Max", total, emit.constant(tiny))
    return exponential, total


def _exponential(emit: Emit, layer: HostLayer, below: str) -> str:
    """Exponentials of differences to the largest: of integers (-255 to 0) from the table."""
    if emit.is_float:
        return emit.op("Exp", below)
    return emit.op("Gather", emit.flat(layer.inputs[1]), emit.op("Add", below, emit.constant(np.int32(255))))


def log_softmax(emit: Emit, layer: HostLayer, operator: ops.LogSoftmax) -> None:
    """sat8(rne(f32(x - max) * ratio - f32(thresholds that sum e reaches) * unit)), or in float32."""
    value = _rows(emit, layer, operator)
    value = emit.word(value)
    below = emit.op("Sub", value, emit.op("ReduceMax", value, emit.ints([1]), keepdims=1))
    exponential = _exponential(emit, layer, below)
    total = emit.cast(emit.op("ReduceSum", emit.wide(exponential), emit.ints([1]), keepdims=1), "float32")
    if emit.is_float:
        emit.write_dense(layer.outputs[0], emit.op("Sub", below, emit.op("Log", total)))
        return
    total = emit.op("Unsqueeze", total, emit.ints([3]))
    reached = emit.op("GreaterOrEqual", total, emit.flat(layer.inputs[2]))
    count = emit.op("ReduceSum", emit.cast(reached, "int32"), emit.ints([3]), keepdims=0)
    logarithm = emit.op("Mul", emit.cast(count, "float32"), emit.constant(np.float32(operator.unit)))
    difference = emit.op("Sub", emit.scaled(below, operator.ratio), logarithm)
    emit.write_dense(layer.outputs[0], emit.element(difference))


def layer_norm(emit: Emit, layer: HostLayer, operator: ops.LayerNorm) -> None:
    """Centred (or RMS) normalisation: integer (float64) moments, one float64 root, float32 affine."""
    value = _rows(emit, layer, operator)
    x = emit.wide(value)
    n = emit.wide(emit.constant(np.int64(operator.rows.length)))
    spread = emit.op("Mul", emit.op("ReduceSum", emit.op("Mul", x, x), emit.ints([1]), keepdims=1), n)
    total = emit.op("ReduceSum", x, emit.ints([1]), keepdims=1)
    if operator.center:
        spread = emit.op("Sub", spread, emit.op("Mul", total, total))
    else:
        total = emit.op("Sub", total, total)
    variance = emit.op(
        "Mul", emit.cast(spread, "float64"), emit.constant(np.float64(operator.variance_scale))
    )
    root = emit.op("Sqrt", emit.op("Add", variance, emit.constant(np.float64(operator.epsilon))))
    gain = emit.op("Div", emit.constant(np.float64(operator.unit)), root)
    middle = emit.op("Div", total, n)
    rest = emit.op("Sub", total, emit.op("Mul", n, middle))
    kind = "float64" if emit.is_float else "float32"
    factor = emit.cast(emit.op("Mul", gain, emit.cast(n, "float64")), kind)
    shift = emit.cast(emit.op("Mul", gain, emit.op("Neg", emit.cast(rest, "float64"))), kind)
    distance = emit.cast(emit.op("Sub", x, middle), kind)
    normal = emit.op("Add", emit.op("Mul", distance, factor), shift)
    shape = (1, 1, operator.rows.inner) if operator.per_inner else (1, operator.rows.length, 1)
    gamma, beta = (emit.reshape(emit.flat(name), shape) for name in layer.inputs[1:3])
    affine = emit.op("Add", emit.op("Mul", emit.cast(normal, "float32"), gamma), beta)
    emit.write_dense(layer.outputs[0], emit.element(affine))


def reduce(emit: Emit, layer: HostLayer, operator: ops.Reduce) -> None:
    """sat8(rne(f32(sum or extremum) * scale)); sums of floats in double precision."""
    value = _rows(emit, layer, operator)
    op = {"sum": "ReduceSum", "max": "ReduceMax", "min": "ReduceMin"}[operator.function]
    read = emit.wide(value) if emit.is_float and operator.function == "sum" else emit.word(value)
    total = emit.op(op, read, emit.ints([1]), keepdims=0)
    rounded = emit.cast(total, "float32") if emit.is_float else total
    emit.write_dense(layer.outputs[0], emit.element(emit.scaled(rounded, operator.scale)))


def arg_max(emit: Emit, layer: HostLayer, operator: ops.ArgMax) -> None:
    """Index of the largest (smallest) element of a row."""
    value = _rows(emit, layer, operator)
    op = {"max": "ArgMax", "min": "ArgMin"}[operator.function]
    index = emit.op(op, emit.word(value), axis=1, keepdims=0, select_last_index=int(operator.select_last))
    emit.write_dense(layer.outputs[0], emit.cast(index, "int32"))


def gather(emit: Emit, layer: HostLayer, operator: ops.Gather) -> None:
    """out[o, j, i] = x[o, index[j], i]."""
    value = _rows(emit, layer, operator)
    emit.write_dense(layer.outputs[0], emit.op("Gather", value, emit.flat(layer.inputs[1]), axis=1))


def scatter(emit: Emit, layer: HostLayer, operator: ops.Scatter) -> None:
    """out[o, index[j], i] = updates[o, j, i]; the rest is x."""
    value, rows = _rows(emit, layer, operator), operator.rows
    _, indices, updates = layer.inputs
    count = emit.tensors[indices].size
    shape = (rows.outer, count, rows.inner)
    places = emit.cast(emit.reshape(emit.flat(indices), (1, count, 1)), "int64")
    places = emit.op("Expand", places, emit.ints(shape))
    written = emit.op("ScatterElements", value, places, emit.reshape(emit.flat(updates), shape), axis=1)
    emit.write_dense(layer.outputs[0], written)


def resize_linear(emit: Emit, layer: HostLayer, operator: ops.ResizeLinear) -> None:
    """Two taps per axis: columns first, then rows, every step in float32."""
    value = emit.cast(emit.dense(layer.inputs[0]), "float32")
    rows, row_weights, columns, column_weights = layer.inputs[1:5]
    p, q = emit.tensors[rows].shape[0], emit.tensors[columns].shape[0]
    value = _interpolated(emit, value, columns, column_weights, 2, (1, 1, q, 1))
    value = _interpolated(emit, value, rows, row_weights, 1, (1, p, 1, 1))
    scaled = emit.op("Mul", value, emit.constant(np.float32(operator.scale)))
    emit.write_dense(layer.outputs[0], emit.element(scaled))


def _interpolated(emit: Emit, value: str, index: str, weight: str, axis: int, shape: tuple[int, ...]) -> str:
    """x[low] * w0 + x[high] * w1 along one axis."""
    indices, weights = emit.tensors[index].data, emit.tensors[weight].data
    assert indices is not None and weights is not None
    low, high = (
        emit.op(
            "Mul",
            emit.op("Gather", value, emit.constant(indices[:, tap]), axis=axis),
            emit.constant(weights[:, tap].reshape(shape)),
        )
        for tap in (0, 1)
    )
    return emit.op("Add", low, high)
