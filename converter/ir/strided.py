"""StridedView: an ONNX value as an access pattern into a stored tensor, in the manner of numpy strides.

Each ONNX axis is a list of factors (size, stride), outermost first: axis index = mixed-radix
number of the factor indices.  With factors instead of one stride per axis, a reshape only regroups
the list, so reshapes, transposes, slices and expansions need no data movement until an operator
asks for an access it cannot express.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fadiff.converter.ir.builder import dense_strides
from fadiff.converter.ir.loops import Access, Loops

Factor = tuple[int, int]
Axis = tuple[Factor, ...]


@dataclass(frozen=True)
class StridedView:
    """Elements of `tensor` seen in ONNX axis order; `scale` is the meaning of one int8 step."""

    tensor: str
    offset: int
    axes: tuple[Axis, ...]
    scale: float | None

    @property
    def shape(self) -> tuple[int, ...]:
        """The ONNX shape."""
        return tuple(math.prod(size for size, _ in axis) for axis in self.axes)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def transpose(self, order: Sequence[int]) -> StridedView:
        """Axes permuted: new axis i is old axis order[i]."""
        return replace(self, axes=tuple(self.axes[i] for i in order))

    def reshape(self, shape: Sequence[int]) -> StridedView | None:
        """The same elements in row-major order under another shape; None if strides cannot say it."""
        factors = list(merged(f for axis in self.axes for f in axis))
        axes: list[Axis] = []
        for wanted in shape:
            axis: list[Factor] = []
            while wanted > 1:
                if not factors:
                    return None
                size, stride = factors.pop(0)
                if size <= wanted:
                    if wanted % size:
                        return None
                    axis.append((size, stride))
                    wanted //= size
                else:
                    if size % wanted:
                        return None
                    inner = size // wanted
                    axis.append((wanted, inner * stride))
                    factors.insert(0, (inner, stride))
                    wanted = 1
            axes.append(tuple(axis))
        return replace(self, axes=tuple(axes))

    def slice(self, axis: int, start: int, step: int, count: int) -> StridedView | None:
        """`count` indices start, start + step, ... of an axis; None if strides cannot say it."""
        factors = merged(self.axes[axis])
        if count == 1:
            offset = self.offset
            for size, stride in reversed(factors):
                offset += (start % size) * stride
                start //= size
            return self._with_axis(axis, (), offset)
        if not factors:
            return self if (start, count) == (0, 1) else None
        size, stride = factors[0]
        inner = math.prod(s for s, _ in factors[1:])
        if len(factors) == 1:
            return self._with_axis(axis, ((count, stride * step),), self.offset + start * stride)
        if step == 1 and start % inner == 0 and count % inner == 0:
            kept = ((count // inner, stride), *factors[1:])
            return self._with_axis(axis, kept, self.offset + start // inner * stride)
        if step == 1 and start // inner == (start + count - 1) // inner:
            offset = self.offset + start // inner * stride
            rest = replace(self, offset=offset)._with_axis(axis, factors[1:], offset)
            return rest.slice(axis, start % inner, 1, count)
        return None

    def _with_axis(self, axis: int, factors: Axis, offset: int) -> StridedView:
        return replace(self, offset=offset, axes=(*self.axes[:axis], factors, *self.axes[axis + 1 :]))

    def expand(self, shape: Sequence[int]) -> StridedView:
        """Broadcast to `shape` by ONNX (numpy) rules, with strides of zero."""
        missing = len(shape) - len(self.axes)
        axes: list[Axis] = [()] * missing + list(self.axes)
        for i, wanted in enumerate(shape):
            if wanted > 1 and math.prod(size for size, _ in axes[i]) == 1:
                axes[i] = ((wanted, 0),)
        return replace(self, axes=tuple(axes))

    def with_scale(self, scale: float) -> StridedView:
        """The same integers with another meaning."""
        return replace(self, scale=scale)

    def covers(self, size: int) -> bool:
        """Whether the access visits each of the `size` elements of its tensor exactly once."""
        factors = sorted((f for axis in self.axes for f in merged(axis)), key=lambda f: f[1])
        reach = 1
        for count, stride in factors:
            if stride != reach:
                return False
            reach *= count
        return self.offset == 0 and reach == size

    @property
    def is_row_major(self) -> bool:
        """Whether the elements lie one after the other in ONNX order."""
        flat = self.reshape((self.size,))
        return flat is not None and flat.axes[0] in ((), ((self.size, 1),))

    def storage_order(self) -> tuple[int, ...] | None:
        """Axes from the outermost stored to the innermost, None when an axis is split."""
        if any(len(merged(axis)) > 1 for axis in self.axes):
            return None
        strides = [merged(axis)[0][1] if merged(axis) else 0 for axis in self.axes]
        # axes of size one go where they stand, before the next larger axis
        for i in range(len(strides) - 2, -1, -1):
            if not merged(self.axes[i]):
                strides[i] = strides[i + 1]
        return tuple(sorted(range(len(strides)), key=lambda i: (-strides[i], i)))


def merged(factors: Iterable[Factor]) -> Axis:
    """Factors with those of size one dropped and contiguous neighbours joined."""
    out: list[Factor] = []
    for size, stride in factors:
        if size == 1:
            continue
        if out and out[-1][1] == size * stride:
            out[-1] = (out[-1][0] * size, stride)
        else:
            out.append((size, stride))
    return tuple(out)


def dense(
    tensor: str, shape: Sequence[int], scale: float | None, order: Sequence[int] | None = None
) -> StridedView:
    """A whole tensor stored contiguously with its ONNX axes in `order` (default as they are)."""
    order = range(len(shape)) if order is None else order
    strides = dense_strides(tuple(shape[i] for i in order))
    by_axis = {axis: strides[position] for position, axis in enumerate(order)}
    return StridedView(tensor, 0, tuple(merged(((shape[i], by_axis[i]),)) for i in range(len(shape))), scale)


def common_loops(values: Sequence[StridedView]) -> Loops | None:
    """The smallest loop nest that walks values of equal shape together, in the order of the last.

    None when their factors do not split alike.
    """
    rows = aligned([value.axes for value in values])
    if rows is None:
        return None
    rows.sort(key=lambda row: -row[1][-1])
    rows = joined(rows) or [(1, (1,) * len(values))]
    accesses = [
        Access(value.offset, tuple(strides[i] for _, strides in rows)) for i, value in enumerate(values)
    ]
    return Loops(tuple(size for size, _ in rows), tuple(accesses[:-1]), accesses[-1])


Row = tuple[int, tuple[int, ...]]
"""One loop: its extent, and its stride in each value."""


def aligned(values: Sequence[Sequence[Axis]]) -> list[Row] | None:
    """One loop nest over the same axes of several values, in axis order; None if they split unalike."""
    rows: list[Row] = []
    for axis in zip(*values, strict=True):
        refined = _refine([merged(factors) for factors in axis])
        if refined is None:
            return None
        rows.extend(refined)
    return rows


def joined(rows: Sequence[Row]) -> list[Row]:
    """Neighbouring loops made one where every value is contiguous across them."""
    out: list[Row] = []
    for size, strides in rows:
        if out and all(a == size * b for a, b in zip(out[-1][1], strides, strict=True)):
            out[-1] = (out[-1][0] * size, strides)
        else:
            out.append((size, strides))
    return out


def _refine(lists: list[Axis]) -> list[Row] | None:
    """Split factor lists of equal total size at common boundaries (from the innermost)."""
    stacks = [list(factors) for factors in lists]
    rows: list[Row] = []
    while any(stacks):
        if not all(stacks):
            return None
        size = min(stack[-1][0] for stack in stacks)
        strides = []
        for stack in stacks:
            have, stride = stack.pop()
            if have % size:
                return None
            strides.append(stride)
            if have > size:
                stack.append((have // size, stride * size))
        rows.append((size, tuple(strides)))
    rows.reverse()
    return rows
