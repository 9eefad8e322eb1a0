"""Lowering: what every handler works with while the Graph grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fadiff.converter.ir.builder import GraphBuilder
from fadiff.converter.ir.graph import Activation, DType, ElementType, View
from fadiff.converter.ir.host import Copy, HostOperator, Lookup
from fadiff.converter.ir.loops import Loops
from fadiff.converter.ir.program import Program
from fadiff.converter.ir.strided import StridedView, common_loops, dense, merged
from fadiff.converter.plan.plan import Step
from fadiff.converter.quantise.weights import Quantisation, Quantised, product_scale, shift_of_bias
from fadiff.converter.quantise.zeros import LOWEST

IMAGE_ORDER = (0, 2, 3, 1)  # N C H W stored as N H W C


class Lowering:
    """State of one lowering: stored values as strided accesses, and the growing graph.

    Attributes:
        program: the float program that is lowered.
        quantisation: scales and constants, in the element type of the array.
        graph: the builder.
        values: how each lowered ONNX value is stored.
        bordered: images of those that also lie amid their zero point (converter/lower/products.py).
    """

    def __init__(self, name: str, program: Program, quantisation: Quantisation) -> None:
        self.program = program
        self.quantisation = quantisation
        self.graph = GraphBuilder(name)
        self.values: dict[str, StridedView] = {}
        self.bordered: dict[str, StridedView] = {}
        self._constants: dict[str, StridedView] = {}
        self._weights: dict[str, list[str]] = {}

    # reading -------------------------------------------------------------------------------

    def value(self, name: str) -> StridedView:
        """How a value is stored; a quantised constant becomes a constant tensor."""
        if name in self.values:
            return self.values[name]
        if name not in self._constants:
            quantised = self.quantisation.weights.get(name)
            data = self.program.constants[name] if quantised is None else quantised.data
            if quantised is None:
                assert not np.issubdtype(data.dtype, np.floating), f"{name} has no scale"
                data = data.astype(self.element) if data.dtype == np.bool_ else _to_int32(data)
            scale = None if quantised is None or self.is_float else quantised.scale
            dtype: DType = "int32" if data.dtype == np.int32 else self.element
            tensor = self.graph.tensor(name, data.shape, dtype, scale, data, onnx_name=name)
            self._constants[name] = dense(tensor, data.shape, scale)
        return self._constants[name]

    @property
    def element(self) -> ElementType:
        """Element type of the array."""
        return self.quantisation.element

    @property
    def is_float(self) -> bool:
        """Whether elements are float32: no scales then."""
        return self.element == "float32"

    def scale(self, value: str) -> float | None:
        """Scale of a stored value; None for integers and booleans, and where elements are float32."""
        has_one = self.program.is_float(value) and not self.is_float
        return self.quantisation.scales[value].step if has_one else None

    def zero(self, value: str) -> int:
        """The integer that stands for 0.0 in a stored value."""
        scale = self.quantisation.scales.get(value)
        return 0 if scale is None else scale.zero

    def activation(self, step: Step) -> Activation:
        """The array's activation of the sums of a step: saturation is the ReLU where -128 stands for 0.0."""
        return "none" if self.zero(step.output) == LOWEST else step.activation

    def dtype(self, value: str) -> DType:
        """How a value is stored: floats and booleans as elements of the array, integers in int32."""
        is_element = self.program.is_float(value) or self.program.is_bool(value)
        return self.element if is_element else "int32"

    def weight(self, name: str) -> Quantised | None:
        """A constant operand of a product as integers, None for a computed one."""
        return self.quantisation.weights.get(name)

    def is_whole(self, value: StridedView) -> bool:
        """Whether a value is all of its tensor."""
        return value.covers(self.graph.tensors[value.tensor].size)

    def is_dense(self, value: StridedView, order: Sequence[int] | None = None) -> bool:
        """Whether a value is all of its tensor, with its axes in `order` (default as they are)."""
        return self.is_whole(value) and value.axes == dense("", value.shape, None, order).axes

    def preferred_order(self, value: str) -> tuple[int, ...] | None:
        """Storage order that saves a copy later: that of a Transpose which alone reads the value."""
        reader = self.program.sole_consumer(value)
        if reader is None or reader.op != "Transpose":
            return None
        return tuple(reader.attributes.get("perm", reversed(range(len(self.program.shapes[value])))))

    # writing -------------------------------------------------------------------------------

    def output(self, step: Step, order: Sequence[int] | None = None) -> StridedView:
        """A new dense tensor for the value of a step, stored in axis `order`."""
        value = step.output
        shape = self.program.shapes[value]
        plain = tuple(range(len(shape)))
        order = plain if order is None else tuple(order)
        stored = tuple(shape[i] for i in order)
        tensor = self._tensor(value, stored, value, None if order == plain else order)
        self.values[value] = dense(tensor, shape, self.scale(value), order)
        return self.values[value]

    def output_like(self, step: Step, like: StridedView) -> StridedView:
        """A new tensor for the value of a step, stored exactly as `like` (of the same shape) is.

        Where `like` is part of a tensor, the output is dense with the same order of factors.
        """
        value = step.output
        if self.is_whole(like):
            shape = self.graph.tensors[like.tensor].shape
            order = None if like.is_row_major else like.storage_order()
            # an order within an axis is none of the ONNX value's: nobody can compare the two
            onnx_name = value if like.is_row_major or order else None
            tensor = self._tensor(value, shape, onnx_name, order)
            self.values[value] = StridedView(tensor, 0, like.axes, self.scale(value))
            return self.values[value]
        return self.output(step, like.storage_order())

    def _tensor(
        self, value: str, shape: tuple[int, ...], onnx_name: str | None, onnx_axes: tuple[int, ...] | None
    ) -> str:
        scale, zero = self.scale(value), self.zero(value)
        return self.graph.tensor(value, shape, self.dtype(value), scale, None, onnx_name, onnx_axes, zero)

    def bias(self, step: Step, groups: int, channels: int) -> str | None:
        """The bias of a product as accumulator words [G, K] (int32 or float32), None without bias."""
        bias = self.quantisation.biases.get(step.name)
        moved = shift_of_bias(step, self.quantisation)
        if bias is None and moved is None:
            return None
        if bias is None:
            bias = Quantised(np.zeros(1, np.int32), product_scale(step, self.quantisation))
        data = np.broadcast_to(bias.data.reshape(-1), (groups * channels,))
        if moved is not None:
            limit = np.iinfo(np.int32)
            data = np.clip(data + moved, limit.min, limit.max).astype(np.int32)
        data = data.reshape(groups, channels)
        dtype: DType = "float32" if self.is_float else "int32"
        return self.graph.constant(f"{step.name}.bias", (groups, channels), dtype, self.unit(bias), data)

    def weights(self, name: str, data: np.ndarray, content: Quantised) -> str:
        """The stored weights of a product; products that store a constant alike share one tensor."""
        data = np.ascontiguousarray(data)
        for known in self._weights.get(name, ()):
            if np.array_equal(data, np.asarray(self.graph.tensors[known].data)):
                return known
        tensor = self.graph.tensor(name, data.shape, self.element, self.unit(content), data, onnx_name=name)
        self._weights.setdefault(name, []).append(tensor)
        return tensor

    def channel_scale(self, step: Step, groups: int, weight: Quantised) -> str | None:
        """The scales of a product's weights for each output channel; None where there is one for all."""
        if not weight.step.ndim:
            return None
        scales = weight.step.reshape(groups, -1).astype(np.float32)
        return self.graph.constant(f"{step.name}.scales", scales.shape, "float32", None, scales)

    def unit(self, content: Quantised) -> float | None:
        """Scale of a tensor that holds `content`."""
        return None if self.is_float else content.scale

    def host(self, step: Step, operator: HostOperator, out: StridedView, *inputs: StridedView | str) -> None:
        """A host layer for a step: the value that it writes, and those (or the tensors) that it reads."""
        names = tuple(value if isinstance(value, str) else value.tensor for value in inputs)
        self.graph.host(step.name, operator, names, (out.tensor,), step.onnx_nodes)

    def copy(self, value: StridedView, order: Sequence[int] | None = None, name: str = "copy") -> StridedView:
        """The value moved to a dense tensor of its own, stored in axis `order`."""
        shape = value.shape
        order = tuple(range(len(shape))) if order is None else tuple(order)
        source = self.graph.tensors[value.tensor]
        # the same ONNX value in another order: should the copy become the place where it is written
        is_value = source.onnx_name is not None and self.values.get(source.onnx_name) == value
        tensor = self.graph.tensor(
            f"{value.tensor}.{name}",
            tuple(shape[i] for i in order),
            source.dtype,
            value.scale,
            onnx_axes=order if is_value else None,
            zero=source.zero,
        )
        out = dense(tensor, shape, value.scale, order)
        self.move(value, out, name)
        return out

    def reshaped(self, value: StridedView, shape: Sequence[int]) -> StridedView:
        """The value under another shape, through a dense copy where its strides cannot say it."""
        view = value.reshape(tuple(shape)) or self.copy(value).reshape(tuple(shape))
        assert view is not None
        return view

    def sliced(self, value: StridedView, axis: int, start: int, step: int, count: int) -> StridedView:
        """Evenly spaced indices of an axis, through a dense copy where strides cannot say it."""
        part = value.slice(axis, start, step, count) or self.copy(value).slice(axis, start, step, count)
        assert part is not None
        return part

    def move(
        self, source: StridedView, target: StridedView, name: str = "copy", nodes: tuple[str, ...] = ()
    ) -> None:
        """A host layer that copies elements between two accesses of equal shape and scale."""
        source, loops = self.walk(source, target)
        self.graph.host(f"{target.tensor}.{name}", Copy(loops), (source.tensor,), (target.tensor,), nodes)

    def rescale(
        self, source: StridedView, target: StridedView, name: str, nodes: tuple[str, ...] = ()
    ) -> None:
        """A host layer that copies elements between two accesses of equal shape, to the scale of `target`."""
        if source.scale == target.scale or source.scale is None or target.scale is None:
            self.move(source, target, name, nodes)
            return
        table = rescaling_table(source.scale, target.scale)
        source, loops = self.walk(source, target)
        entries = self.graph.constant(f"{name}.table", (256,), "int8", target.scale, table)
        self.graph.host(name, Lookup(loops), (source.tensor, entries), (target.tensor,), nodes)

    def walk(self, source: StridedView, target: StridedView) -> tuple[StridedView, Loops]:
        """Loops over two accesses of equal shape.

        Where their axes split differently the source goes through a plain dense tensor, which is returned.
        """
        (source,), loops = self.together((source,), target)
        return source, loops

    def together(
        self, operands: Sequence[StridedView], out: StridedView
    ) -> tuple[tuple[StridedView, ...], Loops]:
        """Operands of the shape of the result, each through a dense tensor where their axes split differently
        from those of the others, and loops over all."""
        loops = common_loops((*operands, out))
        if loops is None:
            operands = [self.copy(value) for value in operands]
            loops = common_loops((*operands, out))
        assert loops is not None
        return tuple(operands), loops

    def rename(self, value: StridedView, onnx_name: str, row_major: bool) -> None:
        """Record that a whole tensor is the ONNX value `onnx_name`.

        Stored row-major, its flat content is the ONNX value's (whatever the two shapes); else its
        axes are a permutation of the ONNX axes.
        """
        tensor = self.graph.tensors[value.tensor]
        order = None if row_major else value.storage_order()
        self.graph.tensors[value.tensor] = replace(tensor, onnx_name=onnx_name, onnx_axes=order)

    def image(self, value: StridedView) -> tuple[StridedView, tuple[int, int, int, int]]:
        """A value N C H W (or N C W) as an image access with unit channel stride, and its N H W C strides.

        Copied when its strides do not allow that.
        """
        strides = _image_strides(value)
        if strides is None:
            rank = len(value.axes)
            value = self.copy(value, (0, *range(2, rank), 1), "nhwc")
            strides = _image_strides(value)
            assert strides is not None
        return value, strides


def rescaling_table(source: float, target: float) -> np.ndarray:
    """256 entries: sat8(rne(q * source / target)), the ratio in float32."""
    ratio = np.float32(source) / np.float32(target)
    steps = np.rint(np.arange(-128, 128).astype(np.float32) * ratio)
    return np.asarray(np.clip(steps, -128, 127), np.int8)


def _to_int32(data: np.ndarray) -> np.ndarray:
    """Integers in 32 bits; what does not fit (the "to the end" of a Slice) becomes the nearest that does."""
    limits = np.iinfo(np.int32)
    return np.asarray(np.clip(data, limits.min, limits.max), np.int32)


def _image_strides(value: StridedView) -> tuple[int, int, int, int] | None:
    axes = [merged(axis) for axis in value.axes]
    if len(axes) == 3:
        axes.insert(2, ())
    if any(len(axis) > 1 for axis in axes):
        return None
    sizes = [axis[0] if axis else None for axis in axes]
    channels, height, width = sizes[1], sizes[2], sizes[3]
    if channels is not None and channels[1] != 1:
        return None
    if width is not None and width[1] == 0:  # mvin with stride 0 fetches one pixel for all
        return None
    c = channels[0] if channels else 1
    w_stride = width[1] if width else c
    h_stride = height[1] if height else w_stride * (width[0] if width else 1)
    n_stride = sizes[0][1] if sizes[0] else h_stride * (height[0] if height else 1)
    return n_stride, h_stride, w_stride, 1


def image_shape(shape: Sequence[int]) -> tuple[int, int, int, int]:
    """N, H, W, C of an ONNX shape N C H W or N C W (H = 1)."""
    if len(shape) == 3:
        return shape[0], 1, shape[2], shape[1]
    n, c, h, w = shape
    return n, h, w, c


def view(value: StridedView, g: int, n: int, h: int, w: int, c: int) -> View:
    """A View of a value with the given strides."""
    return View(value.tensor, value.offset, (g, n, h, w, c))
