"""Inputs whose columns are unlike: each is centred and scaled, which the weights behind take back.

A steering angle of 0.01 rad beside a speed of 35 m/s, a pressure beside a humidity: one scale for all makes
the small ones zero.  With x = c * n + m the product W x is (W c) n + W m, so n may be stored instead, and the
program around is told of c and m (converter/plan/inputs.py).  Pixels from 0 to 1 gain their other 127 steps.
What a Concat joins to such an input stays; parted.py makes it as large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from fadiff.converter.decompose.picks import pick_of
from fadiff.converter.ir.edit import Editor, content_of, input_of
from fadiff.converter.ir.operators import outputs_first, pads_of
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.plan.inputs import axis_before, input_chains, is_move
from fadiff.converter.quantise.factors import by_inputs, divide_inputs, multiplies
from fadiff.converter.quantise.ranges import activations
from fadiff.converter.read.inputs import Samples

_LEAST_SAMPLES = 3
_UNLIKE, _DOUBT = 3.0, 4.0
"""Columns whose deviations differ by more get scales of their own; of n numbers a deviation is off by a share
of about 1 / sqrt(2 n), and among many columns by several times that."""
_OFF_CENTRE = 0.25
"""A middle farther from zero than so many half ranges is worth an offset."""
_MOST_NUMBERS = 2**14


@dataclass(frozen=True)
class _Columns:
    """A value, and the axis that the products that read it, or some of its columns, sum over."""

    value: str
    readers: tuple[Node, ...]
    axis: int
    products: tuple[tuple[Node, tuple[int, ...]], ...]
    """With the column that each of its inputs is, -1 for those of another value."""
    can_shift: bool


def balance_inputs(file: str, program: Program, samples: Samples) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """A normalised float model rewritten, and the inputs whose columns it made alike.

    Raises:
        ModelError: the samples do not fit the model.
    """
    if len(samples) < _LEAST_SAMPLES:
        return program.model, ()
    ends = {name: nodes[-1].outputs[0] for name, nodes in input_chains(program)}
    edit, found = Editor(program.model), []
    for name in program.inputs:
        columns = _columns(program, name, _behind_moves(program, ends.get(name, name)))
        if columns is None:
            continue
        factor, shift = _choice(columns, _numbers(file, program, samples, columns))
        if np.all(shift == 0) and np.unique(factor).size == 1:
            continue
        _balance(edit, program, columns, factor.astype(np.float32), shift.astype(np.float32))
        found.append(name)
    return edit.model(), tuple(found)


def _columns(program: Program, name: str, value: str) -> _Columns | None:
    states = {state.input for state in program.states}
    readers = program.consumers(value)
    if not program.is_float(value) or name in states or value in program.outputs or not readers:
        return None
    rank = len(program.shapes[value])
    if rank < 2:
        return None
    found = [_products(program, reader, value) for reader in readers]
    products = [product for some in found for product in some]
    axes = {axis for _, axis, _ in products}
    if not all(found) or len(axes) != 1:
        return None
    axis = axes.pop()
    if not _can_move(program, value, name, axis):
        return None
    can_shift = all(_takes_shift(program, node) for node, _, _ in products)
    return _Columns(value, readers, axis, tuple((node, taken) for node, _, taken in products), can_shift)


def _products(program: Program, reader: Node, value: str) -> Sequence[tuple[Node, int, tuple[int, ...]]]:
    """The products that read a value, some of its columns or what it is joined to; none where others do, too.

    Each with the axis of its sums and the column that each of its inputs is, -1 for those of another value.
    """
    shape, pick = program.shapes[value], pick_of(program, reader, value)
    axis: int | None = None
    parts: Sequence[tuple[str, tuple[int, ...]]] = [(value, ())]
    if reader.op == "Concat":
        axis = int(reader.attributes["axis"]) % len(shape)
        sizes = [(name == value, program.shapes[name][axis]) for name in reader.inputs]
        parts = [(reader.outputs[0], tuple(i if own else -1 for own, size in sizes for i in range(size)))]
    elif pick is not None:
        axis, parts = -1 if pick.drops_axis else pick.axis, pick.indices
    products = list[tuple[Node, int, tuple[int, ...]]]()
    for part, taken in parts:
        nodes = (reader,) if axis is None else program.consumers(part)
        if part in program.outputs or not all(multiplies(program, node, part) for node in nodes):
            return ()
        for node in nodes:
            summed = 1 if node.op == "Conv" else len(shape) - 1
            if axis not in (None, summed):
                return ()
            products.append((node, summed, taken or tuple(range(shape[summed]))))
    return products


def _behind_moves(program: Program, value: str) -> str:
    """The value as its readers see it: transposed, or under another shape."""
    while (reader := program.sole_consumer(value)) is not None and is_move(program, reader, value):
        value = reader.outputs[0]
    return value


def _can_move(program: Program, value: str, name: str, axis: int) -> bool:
    """Whether what varies along an axis of the value can come before its moves."""
    at: int | None = axis
    while value != name and at is not None:
        node = program.producer[value]
        at = axis_before(program, node, at) if is_move(program, node, node.inputs[0]) else at
        value = next(program.activations(node))
    return at is not None


def _takes_shift(program: Program, node: Node) -> bool:
    """Whether a bias can take back what an offset adds: padding would stay zero."""
    bias = program.constant(node.input(2)) if node.input(2) else None
    outputs = program.shapes[node.outputs[0]]
    if node.op == "Conv":
        weight = program.shapes[node.inputs[1]]
        return not any(pads_of(node, program.shapes[node.inputs[0]][2:], weight[2:]))
    if node.op == "MatMul":
        return True
    alpha, beta = (float(node.attributes.get(name, 1.0)) for name in ("alpha", "beta"))
    fits = not node.input(2) or (bias is not None and bias.size in (1, outputs[-1]) and beta != 0)
    return fits and alpha > 0


def _numbers(file: str, program: Program, samples: Samples, columns: _Columns) -> np.ndarray:
    """What the columns were, [numbers, columns]; of many some, and always the smallest and the largest."""
    found = []
    most = max(1, _MOST_NUMBERS // len(samples))
    for _, array in activations(file, program, samples, [columns.value]):
        rows = np.moveaxis(array, columns.axis, -1).reshape(-1, array.shape[columns.axis]).astype(np.float64)
        found += [rows[:: -(-len(rows) // most)], rows.min(0)[None], rows.max(0)[None]]
    return np.concatenate(found)


def _choice(columns: _Columns, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What columns are multiplied by after an offset was subtracted: vectors where they are unlike.

    By their deviations, not by the largest of a few numbers: what few samples miss in one column, another has
    seen, and the range of the tensor fits all of them.
    """
    middle = numbers.mean(0) if columns.can_shift else np.zeros(numbers.shape[1])
    spread = np.sqrt(np.mean((numbers - middle) ** 2, 0))
    varies = numbers.max(0) > numbers.min(0)
    if not np.any(varies):
        return np.ones(1), np.zeros(1)
    most = spread[varies].max()
    unlike = _UNLIKE * (1 + _DOUBT / np.sqrt(len(numbers)))
    if np.all(spread[varies] * unlike >= most):
        low, high = numbers.min(), numbers.max()
        is_off = columns.can_shift and abs(high + low) > _OFF_CENTRE * (high - low)
        return np.ones(1), np.full(1, (high + low) / 2 if is_off else 0.0)
    spread = np.where(varies, spread, np.maximum(most, np.abs(middle)))  # (what never moved may do so)
    return most / spread, np.where(varies, middle, 0.0)


def _balance(
    edit: Editor, program: Program, columns: _Columns, factor: np.ndarray, shift: np.ndarray
) -> None:
    """(value - shift) * factor for the readers, whose weights and biases take it back."""
    shape = program.shapes[columns.value]
    along = [-1 if axis == columns.axis else 1 for axis in range(len(shape))]
    value, first = edit.value(columns.value), edit.node(columns.readers[0])
    for op, vector, neutral in (("Sub", shift, 0), ("Mul", factor, 1)):
        if np.any(vector != neutral):
            array = vector.reshape(along if vector.size > 1 else [1] * len(shape))
            operand = edit.constant(f"{columns.value}.{op}", array)
            value = edit.elementwise(first, op, [value, operand], f"{columns.value}.{op}.out")
    for node in columns.readers:
        for place in (i for i, name in enumerate(node.inputs) if name == columns.value):
            edit.node(node).replace_input_with(place, value)
    factor, shift = (np.broadcast_to(vector, shape[columns.axis]) for vector in (factor, shift))
    for node, taken in columns.products:
        at = np.array(taken)
        _take_back(edit, program, node, np.where(at < 0, 1, factor[at]), np.where(at < 0, 0, shift[at]))


def _take_back(edit: Editor, program: Program, node: Node, factor: np.ndarray, shift: np.ndarray) -> None:
    weight = program.constants[node.inputs[1]]
    divide_inputs(edit, node, factor)
    if np.any(shift != 0):
        shifted = by_inputs(node, weight, shift.astype(np.float64))
        _add(edit, program, node, outputs_first(node, shifted).sum(1))


def _add(edit: Editor, program: Program, node: Node, added: np.ndarray) -> None:
    """Add a vector over output channels to the bias of a product, or to what is added to a MatMul."""
    product = edit.node(node)
    if node.op != "MatMul":
        alpha, beta = (float(node.attributes.get(name, 1.0)) for name in ("alpha", "beta"))
        added = added * (alpha / beta) if node.op == "Gemm" and node.input(2) else added * alpha
        before = content_of(input_of(product, 2))  # (another input's offsets may be in it)
        sums = added if before is None else before.reshape(-1) + added
        bias = edit.constant(node.input(2) or f"{node.name}.bias", sums.astype(np.float32))
        if node.op == "Gemm" and not node.input(2):  # (a beta without a bias says nothing)
            product.attributes.pop("beta", None)
        product.resize_inputs(3)
        product.replace_input_with(2, bias)
        return
    reader, constants = program.sole_consumer(node.outputs[0]), program.constants
    if reader is not None and reader.op == "Add" and any(v in constants for v in reader.inputs):
        place = next(i for i, v in enumerate(reader.inputs) if v in constants)
        edit.change_constant(reader, place, lambda array: (array + added).astype(np.float32))
        return
    bias = edit.constant(f"{node.name}.bias", added.astype(np.float32))
    value = product.outputs[0]
    total = edit.elementwise(
        product, "Add", [value, bias], f"{value.name}.sums", called=f"{node.name}.add", behind=True
    )
    edit.replace(value, total)
