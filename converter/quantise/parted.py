"""Parts of one value that differ in size: means beside deviations, positions beside speeds.

Split, Slice and Concat only move integers, so all parts would have the scale of the largest; so would all
columns of an output.

Where one product computes them, columns of a small part are multiplied by a power of two in the weights, and
the part by its inverse, which is no layer but a smaller scale.  Where a Concat joins them for products, a
small part is multiplied, and the weights that read it are divided.  No weight becomes larger than the
largest, and none that is divided smaller than those beside it: nothing else becomes coarser.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from fadiff.converter.decompose.picks import chain_of, picks_of
from fadiff.converter.ir.edit import Editor
from fadiff.converter.ir.kinds import ARITHMETIC, Kind
from fadiff.converter.ir.operators import channel_axis, is_a
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.plan.inputs import is_move, output_chains
from fadiff.converter.quantise.factors import (
    divide_inputs,
    largest_of_inputs,
    largest_of_outputs,
    multiplies,
    multiply_outputs,
)
from fadiff.converter.quantise.ranges import maxima
from fadiff.converter.read.inputs import Samples

_LINEAR = ARITHMETIC | Kind.HOMOGENEOUS
"""What may stand between product and parts: s f(x) = f(s x), where what is added is multiplied, too."""
_WORTH_MEANINGS = 8
"""Times smaller than the largest: columns of an output get scales of their own, which callers must know."""
_MOST_COLUMNS = 128
_MOST_ELEMENTS = 2**22
_WORTH_A_COPY = 8
"""What other layers write has a scale of its own, so that a factor makes the core copy it into the joint."""


@dataclass(frozen=True)
class _Parted:
    """A value whose columns come from one product, and which of them each of its parts is."""

    chain: Sequence[Node]
    """Back to the product."""
    axis: int
    columns: Mapping[str, Sequence[int]]


def enlarge_parts(file: str, program: Program, samples: Samples) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """The float model rewritten, and the values that were enlarged, by powers of two.

    Raises:
        ModelError: the samples do not fit the model.
    """
    parted = [found for node in program.nodes if (found := _parts(program, node)) is not None]
    joins = [node for node in program.nodes if _is_joined_for_products(program, node)]
    meant = dict(output_chains(program))
    found_ends = {name: _end(program, name, meant.get(name, ())) for name in program.outputs}
    ends = {name: end for name, end in found_ends.items() if end is not None}
    values = [output for found in parted for output in found.columns]
    values += [name for join in joins for name in join.inputs] + [end.value for end in ends.values()]
    axes = {end.value: end.axis for end in ends.values()}
    largest = maxima(file, program, samples, {name: axes.get(name) for name in values})
    sizes = {name: float(size.max(initial=0.0)) for name, size in largest.items()}
    done = list[str]()
    edit = Editor(program.model)
    for join in joins:
        done += _enlarge_joined(edit, program, join, sizes)
    for found in parted:
        done += _enlarge_parted(edit, program, found, sizes)
    for end in ends.values():
        done += _enlarge_columns(edit, program, end, largest[end.value])
    return edit.model(), tuple(done)


def _enlarge_parted(
    edit: Editor, program: Program, found: _Parted, largest: Mapping[str, float]
) -> Sequence[str]:
    """Multiply small parts in the weights, and divide them for their readers."""
    product = found.chain[-1]
    weights = largest_of_outputs(product, program.constants[product.inputs[1]])
    factors, small = np.ones(len(weights), np.float32), dict[str, np.ndarray]()
    top = max(largest[output] for output in found.columns)
    for output, columns in found.columns.items():
        factor = _factor(np.array(largest[output]), weights[list(columns)].max(), top, weights.max())
        if factor > 1:
            small[output] = factors[list(columns)] = factor
    if small:
        multiply_outputs(edit, program, found.chain, found.axis, factors)
    for output, factor in small.items():
        _take_back(edit, output, factor)
    return list(small)


@dataclass(frozen=True)
class _End:
    """What an output is an affine function of, and the product that computes its columns."""

    value: str
    chain: Sequence[Node]
    axis: int


def _end(program: Program, output: str, meant: Sequence[Node]) -> _End | None:
    """`meant` nodes say what the output's integers mean."""
    value = next(program.activations(meant[0])) if meant else output
    states = {state.output for state in program.states}
    writer = program.producer.get(value)
    if writer is None or output in states or (value == output and program.consumers(output)):
        return None
    for axis in dict.fromkeys((1, len(program.shapes[value]) - 1)):
        chain = _linear_chain(program, writer, axis)
        if chain and 1 < program.shapes[value][axis] <= _MOST_COLUMNS:
            return _End(value, chain, axis)
    return None


def _enlarge_columns(edit: Editor, program: Program, end: _End, largest: np.ndarray) -> Sequence[str]:
    """Multiply small columns of an output in the weights; what its integers mean takes it back."""
    product = end.chain[-1]
    weights = largest_of_outputs(product, program.constants[product.inputs[1]])
    factors = _factor(largest, weights, largest.max(), weights.max())
    if factors.max() < _WORTH_MEANINGS:
        return []
    multiply_outputs(edit, program, end.chain, end.axis, factors)
    rank = len(program.shapes[end.value])
    _take_back(edit, end.value, factors.reshape([-1 if i == end.axis else 1 for i in range(rank)]))
    return [end.value]


def _factor(size: np.ndarray, weight: np.ndarray, top: float, most: float) -> np.ndarray:
    """By how much something small may grow: to the largest value, and the largest weight."""
    size, weight = np.broadcast_arrays(size, weight)
    used = (size > 0) & (weight > 0)
    factor = np.ones(size.shape, np.float32)
    factor[used] = np.exp2(np.floor(np.log2(np.minimum(top / size[used], most / weight[used]))))
    return factor


def _linear_chain(program: Program, node: Node, axis: int) -> Sequence[Node]:
    chain = chain_of(program, node, axis)
    return chain if all(is_a(step, _LINEAR) for step in chain[:-1]) else ()


def _is_joined_for_products(program: Program, node: Node) -> bool:
    """Whether a Concat joins computed values along the axis that products with weights alone sum over."""
    if node.op != "Concat" or node.outputs[0] in program.outputs or len(set(node.inputs)) < len(node.inputs):
        return False
    value, readers = node.outputs[0], program.consumers(node.outputs[0])
    axis = int(node.attributes["axis"]) % len(program.shapes[value])
    return (
        bool(readers)
        and not any(name in program.constants or not program.is_float(name) for name in node.inputs)
        and all(
            multiplies(program, reader, value)
            and reader.attributes.get("group", 1) == 1
            and axis == channel_axis(program, value, reader)
            for reader in readers
        )
    )


def _enlarge_joined(
    edit: Editor, program: Program, join: Node, largest: Mapping[str, float]
) -> Sequence[str]:
    """Multiply small operands of a Concat, and divide the weights that read them."""
    axis = int(join.attributes["axis"]) % len(program.shapes[join.outputs[0]])
    readers = program.consumers(join.outputs[0])
    ends = np.cumsum([program.shapes[name][axis] for name in join.inputs]).tolist()
    starts = [0, *ends[:-1]]
    rows = [largest_of_inputs(reader, program.constants[reader.inputs[1]]) for reader in readers]
    top = max(range(len(ends)), key=lambda i: largest[join.inputs[i]])
    factors = np.ones(ends[-1], np.float32)
    done = list[str]()
    for i, name in enumerate(join.inputs):
        weights = [(row[starts[i] : ends[i]].max(), row[starts[top] : ends[top]].max()) for row in rows]
        if i == top or min(largest[name], *(min(pair) for pair in weights)) <= 0:
            continue
        room = min(largest[join.inputs[top]] / largest[name], *(own / other for own, other in weights))
        factor = float(np.exp2(np.floor(np.log2(room))))
        chain = _own_product(program, name, axis)
        is_free = bool(chain) or name not in program.producer
        if factor >= (2 if is_free else _WORTH_A_COPY):
            factors[starts[i] : ends[i]] = factor
            if chain:
                multiply_outputs(
                    edit, program, chain, axis, np.full(program.shapes[name][axis], factor, np.float32)
                )
            else:
                _multiply(edit, join, i, factor)
            done.append(name)
    for reader in readers if done else ():
        divide_inputs(edit, reader, factors)
    return done


def _own_product(program: Program, value: str, axis: int) -> Sequence[Node]:
    """From the writer of a value that has one reader back to the product that computes it, up to a factor."""
    writer = program.producer.get(value)
    alone = writer is not None and program.sole_consumer(value) is not None
    return _linear_chain(program, writer, axis) if writer is not None and alone else ()


def _parts(program: Program, node: Node) -> _Parted | None:
    """What readers take of columns of a product, also where these lie under another shape, if no two take the
    same."""
    picks = picks_of(program, node)
    if sum(len(pick.indices) for pick in picks) < 2:
        return None
    moves, base = list[Node](), node
    while is_move(program, base, base.inputs[0]) and base.inputs[0] in program.producer:
        if program.sole_consumer(base.inputs[0]) is None:
            return None
        moves.insert(0, base)
        base = program.producer[base.inputs[0]]
    shape = program.shapes[base.outputs[0]]
    if moves and np.prod(shape) > _MOST_ELEMENTS:
        return None
    for axis in dict.fromkeys((1, len(shape) - 1)) if len(shape) > 1 else ():
        chain = _linear_chain(program, base, axis)
        if not chain:
            continue
        along = [-1 if i == axis else 1 for i in range(len(shape))]
        places = np.arange(shape[axis], dtype=np.int32).reshape(along)
        places = np.broadcast_to(places, shape) if moves else places
        for move in moves:
            order = move.attributes.get("perm", tuple(range(places.ndim))[::-1])
            moved = program.shapes[move.outputs[0]]
            places = places.transpose(order) if move.op == "Transpose" else places.reshape(moved)
        if not moves and picks[0].axis != axis:
            continue
        columns = {
            output: np.unique(np.take(places, taken, pick.axis)).tolist()
            for pick in picks
            for output, taken in pick.indices
        }
        taken = [column for some in columns.values() for column in some]
        return _Parted(chain, axis, columns) if len(set(taken)) == len(taken) else None
    return None


def _multiply(edit: Editor, join: Node, place: int, factor: float) -> None:
    """Multiply an operand, for this reader only."""
    name, reader = join.inputs[place], edit.node(join)
    number = edit.constant(f"{name}.factor", np.float32(factor))
    reader.replace_input_with(
        place, edit.elementwise(reader, "Mul", [edit.value(name), number], f"{name}.large")
    )


def _take_back(edit: Editor, name: str, factor: np.ndarray) -> None:
    """Divide a value by its factor, or by those of its columns, for those who read it."""
    large = edit.value(name)
    inverse = edit.constant(f"{name}.inverse", np.asarray(1 / factor, np.float32))
    writer = large.producer()
    assert writer is not None
    small = edit.elementwise(
        writer, "Mul", [large, inverse], f"{name}.large", called=f"{name}.small", behind=True
    )
    edit.replace(large, small)
