"""What follows from a node and its kind (kinds.py): axes, window, channels, factors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from fadiff.converter.ir.kinds import ELEMENTWISE, KEEPS_SCALE, KINDS, WEIGHTED, Kind
from fadiff.converter.ir.program import FLOATS, INTEGERS, Node, Program

_DOMAINS = ("", "ai.onnx", "com.microsoft")


def is_a(node: Node, kinds: Kind) -> bool:
    """Whether a node does one of some things."""
    return node.domain in _DOMAINS and KINDS.get(node.op, 0) & kinds._value_ != 0


def reduction_axes(program: Program, node: Node) -> tuple[int, ...] | None:
    """Axes of a Reduce operator, sorted and non-negative; None when computed at run time."""
    rank = len(program.shapes[node.inputs[0]])
    axes = node.attributes.get("axes")
    if node.input(1):
        array = program.constant(node.input(1))
        if array is None:
            return None
        axes = tuple(int(a) for a in array.reshape(-1))
    if not axes:
        return () if node.attributes.get("noop_with_empty_axes", 0) else tuple(range(rank))
    return tuple(sorted(a % rank for a in axes))


def written_positions(program: Program, node: Node) -> tuple[str, int] | None:
    """The value with the positions at which a Scatter writes whole slices, and the axis they count along.

    None where it writes anything else than data[..., positions, ...] = updates.
    """
    data, indices, updates = (program.shapes[name] for name in node.inputs[:3])
    if node.op == "ScatterND":
        whole = indices[-1:] == (1,) and updates == (*indices[:-1], *data[1:])
        return (node.inputs[1], 0) if whole else None
    axis = int(node.attributes.get("axis", 0)) % len(data)
    if not indices == updates == (*data[:axis], indices[axis], *data[axis + 1 :]):
        return None
    positions = node.inputs[1]
    while (before := program.producer.get(positions)) is not None and is_a(before, Kind.REPEAT | Kind.SAME):
        positions = before.inputs[0]
    shape = program.shapes[positions]
    along = shape[axis - len(data)] if len(data) - axis <= len(shape) else 1
    return (positions, axis) if along == math.prod(shape) == indices[axis] else None


def padding(program: Program, node: Node) -> tuple[list[int], list[int], float] | None:
    """Elements that a Pad puts before and behind each axis, and their value; None where that is computed."""
    rank = len(program.shapes[node.inputs[0]])
    if node.version < 11:
        pads = list(node.attributes.get("pads", ()))
        return pads[:rank], pads[rank:], float(node.attributes.get("value", 0.0))
    given, fill = program.constant(node.inputs[1]), program.constant(node.input(2))
    axes = program.constant(node.input(3)) if node.input(3) else np.arange(rank)
    if given is None or axes is None or (node.input(2) and fill is None):
        return None
    begin, end = [0] * rank, [0] * rank
    for i, axis in enumerate(axes.tolist()):
        begin[axis], end[axis] = int(given[i]), int(given[i + len(axes)])
    return begin, end, 0.0 if fill is None or not fill.size else float(fill.reshape(-1)[0])


def norm_affine(program: Program, node: Node) -> tuple[np.ndarray, np.ndarray] | None:
    """Factor and summand of each channel that a BatchNormalization applies; None where they are computed."""
    constants = [program.constant(name) for name in node.inputs[1:5]]
    if any(array is None for array in constants):
        return None
    gamma, beta, mean, variance = (np.asarray(array, np.float64) for array in constants)
    factor = gamma / np.sqrt(variance + float(node.attributes.get("epsilon", 1e-5)))
    return factor, beta - mean * factor


def keeps_scale(node: Node) -> bool:
    """Whether the output of a node has its first input's scale."""
    if is_a(node, Kind.RESIZE):
        return bool(node.attributes.get("mode", "nearest") == "nearest")
    if is_a(node, Kind.PAD):
        return bool(node.attributes.get("mode", "constant") != "constant")
    return is_a(node, KEEPS_SCALE)


def is_square(program: Program, node: Node) -> bool:
    """Whether a node is Pow with the constant exponent 2."""
    exponent = program.constant(node.inputs[1]) if node.op == "Pow" else None
    return exponent is not None and bool(np.all(exponent == 2))


def extremes_taken(program: Program, value: str) -> tuple[Node, ...]:
    """The nodes that read a value, moved or not, if all of them only see its maxima, or all its minima.

    (A softmax does not see what lies far enough below its maximum.)  Empty where others read it as well.
    """
    readers = list[Node]()
    pending = [value]
    while pending:
        moved = pending.pop()
        if moved in program.outputs:
            return ()
        for node in program.consumers(moved):
            if is_a(node, Kind.MAXIMUM | Kind.MINIMUM):
                readers.append(node)
            elif keeps_scale(node) and node.inputs[0] == moved:
                pending.extend(v for v in node.outputs if v)
            else:
                return ()
    alike = any(all(is_a(node, kind) for node in readers) for kind in (Kind.MAXIMUM, Kind.MINIMUM))
    return tuple(readers) if alike else ()


def is_tabulated(program: Program, node: Node) -> bool:
    """Whether an element-wise node can be part of a table of one value: numbers in and out, no randomness."""
    if node.op == "Dropout":
        training = program.constant(node.input(2))
        return not node.input(2) or (training is not None and not training.any())
    kinds = (*FLOATS, *INTEGERS, onnx.TensorProto.BOOL)
    return is_a(node, ELEMENTWISE) and all(program.types.get(v) in kinds for v in node.outputs if v)


def linear_factor(program: Program, nodes: Sequence[Node]) -> float | None:
    """c when a chain of element-wise nodes computes x -> c x with c > 0, else None.

    Such a chain needs no work at all: the int8 numbers stay, their scale is multiplied by c.
    """
    factor = np.float32(1.0)
    for node in nodes:
        linear = is_a(node, Kind.FACTOR | Kind.SAME | Kind.CONVERT) or node.op == "Dropout"
        if not linear or len(list(program.activations(node))) != 1:
            return None
        if is_a(node, Kind.CONVERT) and not (
            program.is_float(node.inputs[0]) and program.is_float(node.outputs[0])
        ):
            return None
        if is_a(node, Kind.FACTOR):
            constant = next(program.constants[v] for v in node.inputs if v in program.constants)
            if node.op == "Div" and node.inputs[0] in program.constants:
                return None
            value = np.float32(constant.reshape(-1)[0])
            factor = factor * value if node.op == "Mul" else factor / value
    return float(factor) if np.isfinite(factor) and factor > 0 else None


def channel_axis(program: Program, value: str, product: Node) -> int:
    """The axis of the channels in what a product computes, or sums over."""
    return 1 if is_a(product, Kind.IMAGE) else len(program.shapes[value]) - 1


def output_axis(node: Node) -> int:
    """The axis of the output channels in the weights."""
    return 0 if node.op == "Conv" or node.attributes.get("transB", 0) else 1


def outputs_first(node: Node, weight: np.ndarray) -> np.ndarray:
    """The weights as [output channels, all others]: a view."""
    return weight.T if output_axis(node) else weight.reshape(len(weight), -1)


def magnitudes(weight: np.ndarray, axes: int | tuple[int, ...]) -> np.ndarray:
    """The largest magnitude over some axes, without a copy of all magnitudes."""
    return np.asarray(np.maximum(weight.max(axes), -weight.min(axes)))


def are_owned(program: Program, node: Node, *, bias: bool = True) -> bool:
    """Whether a product's weights (and bias) are float32 constants in memory that nobody else reads."""
    if not is_a(node, Kind.PRODUCT) or node.attributes.get("transA", 0):
        return False
    if node.op == "MatMul" and len(program.shapes[node.inputs[1]]) != 2:
        return False
    names = [node.inputs[1], *([node.input(2)] if bias and node.input(2) else [])]
    arrays = [program.constant(name) for name in names if name not in program.stored]
    return (
        len(arrays) == len(names)
        and all(array is not None and array.dtype == np.float32 for array in arrays)
        and all(len(program.consumers(name)) == 1 and name not in program.outputs for name in names)
        and (len(names) < 2 or program.shapes[names[1]] == (program.shapes[node.outputs[0]][1],))
    )


def keeps_apart(program: Program, node: Node) -> bool:
    """Whether a channel (the second axis) of the result comes from that of the input alone: pools, means and
    reshapes; functions of each element are not looked at."""
    shape, result = (program.shapes[value] for value in (node.inputs[0], node.outputs[0]))
    if is_a(node, Kind.RESHAPE):
        return shape[:2] == result[:2] and all(size == 1 for size in (*shape[2:], *result[2:]))
    if is_a(node, Kind.REDUCE):
        return min(reduction_axes(program, node) or (0,)) > 1
    return is_a(node, Kind.POOL | Kind.GLOBAL_POOL)


@dataclass(frozen=True)
class Window:
    """A 2-D window; one-dimensional ones have height 1.  pads: top, left, bottom, right."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    pads: tuple[int, int, int, int]
    output: tuple[int, int]


def window_of(node: Node, input_size: tuple[int, int], kernel: Sequence[int]) -> Window:
    """Resolve auto_pad and ceil_mode; `kernel` is its spatial shape."""
    rank = len(kernel)
    stride = tuple(node.attributes.get("strides", (1,) * rank))
    dilation = tuple(node.attributes.get("dilations", (1,) * rank))
    sizes = input_size[2 - rank :]
    pads = pads_of(node, sizes, kernel)
    begin, end = pads[:rank], pads[rank:]
    output = []
    for size, k, s, d, before, after in zip(sizes, kernel, stride, dilation, begin, end, strict=True):
        room = size + before + after - (k - 1) * d - 1
        ceil_mode = bool(node.attributes.get("ceil_mode", 0))
        out = (-(-room // s) if ceil_mode else room // s) + 1
        if ceil_mode and (out - 1) * s >= size + before:
            out -= 1  # a window must start inside the image or its left padding
        output.append(out)
    one: tuple[int, ...] = (1,) if rank == 1 else ()
    zero: tuple[int, ...] = (0,) if rank == 1 else ()
    top, left = _pair(zero, begin)
    bottom, right = _pair(zero, end)
    return Window(
        _pair(one, kernel),
        _pair(one, stride),
        _pair(one, dilation),
        (top, left, bottom, right),
        _pair(one, output),
    )


def pads_of(node: Node, sizes: Sequence[int], kernel: Sequence[int]) -> tuple[int, ...]:
    """Padding before every spatial axis, then that behind, also where `auto_pad` says it."""
    rank = len(kernel)
    ones, none = (1,) * rank, (0,) * (2 * rank)
    auto_pad = node.attributes.get("auto_pad", "NOTSET")
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        return none if auto_pad == "VALID" else tuple(node.attributes.get("pads", none))
    strides, dilations = (node.attributes.get(name, ones) for name in ("strides", "dilations"))
    totals = [
        max(0, (-(-size // s) - 1) * s + (k - 1) * d + 1 - size)
        for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True)
    ]
    halves = [(total // 2, total - total // 2) for total in totals]
    begin, end = zip(*halves, strict=True)
    return (*begin, *end) if auto_pad == "SAME_UPPER" else (*end, *begin)


def _pair(prefix: Sequence[int], values: Sequence[int]) -> tuple[int, int]:
    first, second = (*prefix, *values)
    return int(first), int(second)


def parts_along(inner: Sequence[int], axis: int, outer: Sequence[int], along: int) -> tuple[int, int] | None:
    """The indices of `axis` under another shape: how many of its axis `along` each becomes, and how often all
    repeat there; None where other axes tell them apart, too."""
    size, least = math.prod(inner[axis + 1 :]), math.prod(outer[along + 1 :])
    if size % least or outer[along] * least % (size * inner[axis]):
        return None
    return size // least, outer[along] * least // (size * inner[axis])


def macs_of(program: Program, node: Node) -> int:
    """Multiply-accumulates of a product (Conv, ConvTranspose, Gemm, MatMul), 0 of any other node, and of
    one whose shapes are not known."""
    if not is_a(node, WEIGHTED) or node.domain:
        return 0
    shapes = [program.shapes.get(value, ()) for value in (*node.inputs[:2], node.outputs[0])]
    if not all(shapes):
        return 0
    first, second, result = shapes
    if node.op == "MatMul":
        return math.prod(result) * first[-1]
    if node.op == "ConvTranspose":  # every input element meets every weight of its channel
        return math.prod(first) * math.prod(second[1:])
    if node.op == "Gemm":
        return math.prod(result) * first[0 if node.attributes.get("transA") else 1]
    return math.prod(result) * math.prod(second[1:])
