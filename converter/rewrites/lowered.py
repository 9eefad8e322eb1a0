"""Rewrites of the lowered Graph.

write-in-place: a layer writes where a copy would have moved its output, and others read it there.  Legal when
the copy takes the whole tensor without rescaling it, the tensor is neither input, output nor constant, and
every access of the layers that write and read it stays a strided access in the destination (unit strides stay
unit: rows of the array are stored contiguously).  Concatenations then cost nothing: each branch writes its
slice, and what the skip of a dense network is read by finds it there.

drop-padding-taps: rows and columns of a kernel that only ever meet padding are cut off.  A 5 x 5 kernel with
padding 2 on a 2 x 2 image has 3 x 3 taps that ever see a pixel; the others multiply zeros.  Networks with
many strides end like this, and small images get there early.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fadiff.converter.ir.builder import weight_view
from fadiff.converter.ir.graph import Graph, HostLayer, Layer, Tensor, TensorCoreLayer, View
from fadiff.converter.ir.host import Binary, Copy, Lookup, ScaleShift, Where
from fadiff.converter.ir.loops import Access, Loops
from fadiff.converter.ir.recurrence import State


def write_in_place(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """Remove copies whose source can be written and read at its destination."""
    layers = {layer.name: layer for layer in graph.layers}
    users: dict[str, set[str]] = {}
    """Names of the layers that touch a tensor."""
    for layer in graph.layers:
        for tensor in _names(layer):
            users.setdefault(tensor, set()).add(layer.name)
    place = graph.index
    notes = []
    for copy in (
        layers[layer.name] for layer in reversed(graph.layers)
    ):  # chained ones end in their last tensor
        if not isinstance(copy, HostLayer) or not isinstance(copy.operator, Copy):
            continue
        move = _move(graph, copy, copy.operator.loops)
        if move is None:
            continue
        others = [layers[name] for name in sorted(users[move.source] - {copy.name}, key=place.__getitem__)]
        changed = [_redirected(layer, move) for layer in others]
        if not others or any(layer is None for layer in changed):
            continue
        layers.update((layer.name, layer) for layer in changed if layer is not None)
        users[move.target] |= users.pop(move.source)
        users[move.target].remove(copy.name)
        del layers[copy.name]
        writers = [layer.name for layer in others if move.source in layer.outputs]
        notes.append(f"{', '.join(writers)} write into {move.target}, copy {copy.name} removed")
    if not notes:
        return graph, ()
    used = {name for layer in layers.values() for name in _names(layer)} | {*graph.inputs, *graph.outputs}
    tensors = {name: tensor for name, tensor in graph.tensors.items() if name in used}
    for copy in graph.layers:
        if copy.op == "copy" and copy.name not in layers and copy.outputs[0] in tensors:
            source, target = graph.tensors[copy.inputs[0]], tensors[copy.outputs[0]]
            if target.onnx_axes is not None and target.onnx_name is None:  # all of the value, in this order
                tensors[target.name] = replace(target, onnx_name=source.onnx_name)
    ordered = _begun_first(layers.values(), graph.states)
    return replace(graph, layers=ordered, tensors=tensors), tuple(reversed(notes))


def _begun_first(layers: Collection[Layer], states: Sequence[State]) -> tuple[Layer, ...]:
    """The layers, those that begin a tensor just before the first other that touches it.

    Who writes in place now came before them.  A `fill` of a padded tensor would overwrite that; the rest of a
    window that slides, copied from one end of a state to the other, can share its place only while nothing
    else is there.
    """
    slides = {(state.input, state.output) for state in states}
    begins = [
        layer
        for layer in layers
        if isinstance(layer, HostLayer)
        and (layer.op == "fill" or (layer.op == "copy" and _names(layer) in slides))
    ]
    waiting: dict[str, list[Layer]] = {}
    for begun in begins:
        waiting.setdefault(begun.outputs[0], []).append(begun)
    ordered: dict[str, Layer] = {}
    for layer in layers:
        for tensor in _names(layer):
            ordered.update((first.name, first) for first in waiting.pop(tensor, ()) if first is not layer)
        ordered.setdefault(layer.name, layer)
    return tuple(ordered.values())


def _names(layer: Layer) -> tuple[str, ...]:
    return (*layer.inputs, *layer.outputs)


@dataclass(frozen=True)
class _Move:
    """Where a copy moves the elements of a whole tensor: loops from the largest source stride down."""

    source: str
    target: str
    offset: int
    loops: tuple[tuple[int, int, int], ...]
    """Source stride, extent and target stride."""

    def access(
        self, offset: int, sizes: Sequence[int], strides: Sequence[int]
    ) -> tuple[int, tuple[int, ...]] | None:
        """A strided access to the source as one to the target, None when strides cannot say it."""
        address, rest = self.offset, offset
        room = []
        for stride, extent, out_stride in self.loops:
            address += rest // stride * out_stride
            room.append(extent - 1 - rest // stride)
            rest %= stride
        moved = []
        for size, stride in zip(sizes, strides, strict=True):
            if size == 1 or stride == 0:
                moved.append(0)
                continue
            index = next((i for i, (s, _, _) in enumerate(self.loops) if s <= stride), None)
            if index is None or stride % self.loops[index][0]:
                return None
            steps = stride // self.loops[index][0]
            room[index] -= (size - 1) * steps
            if room[index] < 0:
                return None
            moved.append(steps * self.loops[index][2])
        return address, tuple(moved)

    def split(self, size: int, stride: int) -> int:
        """How many steps of a loop over the source stay within one loop of the move."""
        for s, extent, _ in self.loops:
            if s <= stride:
                within = s * extent // stride if s * extent % stride == 0 else size
                return within if 1 < within < size and size % within == 0 else size
        return size


def _move(graph: Graph, copy: HostLayer, nest: Loops) -> _Move | None:
    """The move that a copy makes, if it takes a whole tensor that may live elsewhere, without rescaling."""
    (source,), (target,) = copy.inputs, copy.outputs
    tensor: Tensor = graph.tensors[source]
    fixed = source in (*graph.inputs, *graph.outputs) or tensor.data is not None
    joins = graph.tensors[target].along is not None  # every part keeps its scale
    if fixed or source == target or (tensor.scale != graph.tensors[target].scale and not joins):
        return None
    loops = sorted(zip(nest.inputs[0].strides, nest.shape, nest.output.strides, strict=True), reverse=True)
    reach = 1
    for stride, size, _ in reversed(loops):
        if size > 1 and stride != reach:
            return None
        reach *= size
    if nest.inputs[0].offset != 0 or reach != tensor.size or reach != math.prod(nest.shape):
        return None
    return _Move(source, target, nest.output.offset, tuple(loops))


def _redirected(layer: Layer, move: _Move) -> Layer | None:
    """The layer with the target wherever it accesses the source."""
    if isinstance(layer, TensorCoreLayer):
        return _redirected_product(layer, move)
    operator = layer.operator
    if not isinstance(operator, Copy | Lookup | ScaleShift | Binary | Where):
        return None
    read = len(operator.loops.inputs)
    if move.source in layer.inputs[read:]:
        return None
    touched = [name == move.source for name in (*layer.inputs[:read], layer.outputs[0])]
    loops = _split_loops(operator.loops, touched, move)
    accesses = []
    for access, is_source in zip(loops.accesses, touched, strict=True):
        moved = (
            move.access(access.offset, loops.shape, access.strides)
            if is_source
            else (access.offset, access.strides)
        )
        if moved is None:
            return None
        accesses.append(Access(*moved))
    return replace(
        layer,
        operator=replace(operator, loops=Loops(loops.shape, tuple(accesses[:-1]), accesses[-1])),
        inputs=tuple(move.target if name == move.source else name for name in layer.inputs),
        outputs=tuple(move.target if name == move.source else name for name in layer.outputs),
    )


def _split_loops(loops: Loops, touched: Sequence[bool], move: _Move) -> Loops:
    """Loops that run over several loops of the move at once (a dense tensor in one) are cut there."""
    i = 0
    while i < len(loops.shape):
        size = loops.shape[i]
        strides = [
            access.strides[i] for access, is_source in zip(loops.accesses, touched, strict=True) if is_source
        ]
        inner = min((move.split(size, stride) for stride in strides), default=size)
        if inner < size:
            cut = [
                Access(at, (*steps[:i], steps[i] * inner, steps[i], *steps[i + 1 :]))
                for at, steps in ((access.offset, access.strides) for access in loops.accesses)
            ]
            shape = (*loops.shape[:i], size // inner, inner, *loops.shape[i + 1 :])
            loops = Loops(shape, tuple(cut[:-1]), cut[-1])
        i += 1
    return loops


def _spelled(extents: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Strides that say of axes of one element, too, where a next one would lie: hardware loops count lines in
    pixels and images in lines."""
    spelled = list(strides)
    for i in reversed(range(len(spelled))):
        if extents[i] == 1:
            inner = slice(i + 1, i + 2)
            spelled[i] = math.prod((*spelled[inner], *extents[inner]))
    return tuple(spelled)


def _redirected_product(layer: TensorCoreLayer, move: _Move) -> TensorCoreLayer | None:
    d = layer.dims
    sizes = {
        "input": (d.G, d.N, *layer.input_size, d.C),
        "weight": (d.G, d.R, d.S, d.C, d.K),
        "output": (d.G, d.N, d.P, d.Q, d.K),
    }
    if layer.op in ("gemm", "bmm"):
        sizes["input"] = (d.G, d.N, d.P, d.Q, d.C)
    views: dict[str, View] = {}
    for role, extents in sizes.items():
        view: View = getattr(layer, role)
        if view.tensor != move.source:
            continue
        moved = move.access(view.offset, extents, view.strides)
        if moved is None:
            return None
        offset, (a, b, c, e, f) = moved[0], _spelled(extents, moved[1])
        units = zip(extents, view.strides, moved[1], strict=True)
        if any(size > 1 and before == 1 and after != 1 for size, before, after in units):
            return None
        views[role] = View(move.target, offset, (a, b, c, e, f))
    return replace(
        layer,
        input=views.get("input", layer.input),
        weight=views.get("weight", layer.weight),
        output=views.get("output", layer.output),
    )


class _Axis(NamedTuple):
    """A kernel along one axis of the image."""

    taps: int
    outputs: int
    size: int
    stride: int
    dilation: int
    before: int
    after: int

    def dead(self) -> tuple[int, int]:
        """Taps at the start and at the end that meet no pixel for any output, as far as padding goes."""
        last = (self.outputs - 1) * self.stride - self.before
        start = sum(last + tap * self.dilation < 0 for tap in range(self.taps))
        end = sum(tap * self.dilation - self.before >= self.size for tap in range(self.taps))
        return min(start, self.before // self.dilation), min(end, self.after // self.dilation)


def drop_padding_taps(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """Legal for constant weights in dense storage: the sums lose terms that are zero."""
    tensors = dict(graph.tensors)
    layers: list[Layer] = []
    notes = []
    for layer in graph.layers:
        smaller = _cropped(layer, tensors) if isinstance(layer, TensorCoreLayer) else None
        layers.append(smaller or layer)
        if smaller is not None and isinstance(layer, TensorCoreLayer):
            was, now = ((d.R, d.S) for d in (layer.dims, smaller.dims))
            notes.append(f"{layer.name}: {was[0]} x {was[1]} taps became {now[0]} x {now[1]}")
    if not notes:
        return graph, ()
    used = {name for layer in layers for name in (*layer.inputs, *layer.outputs)}
    used |= {*graph.inputs, *graph.outputs}
    kept = {name: tensor for name, tensor in tensors.items() if name in used}
    return replace(graph, layers=tuple(layers), tensors=kept), tuple(notes)


def _cropped(layer: TensorCoreLayer, tensors: dict[str, Tensor]) -> TensorCoreLayer | None:
    """The layer with a smaller kernel, its weights added to `tensors`; None if all taps are needed."""
    d, (top, left, bottom, right) = layer.dims, layer.pads
    weight = tensors[layer.weight.tensor]
    if weight.data is None or layer.weight != weight_view(weight.name, d):
        return None
    height, width = layer.input_size
    up, down = _Axis(d.R, d.P, height, layer.stride[0], layer.dilation[0], top, bottom).dead()
    before, after = _Axis(d.S, d.Q, width, layer.stride[1], layer.dilation[1], left, right).dead()
    rows, columns = d.R - up - down, d.S - before - after
    if not (up or down or before or after) or rows < 1 or columns < 1:
        return None
    data = np.ascontiguousarray(weight.data[:, up : d.R - down, before : d.S - after])
    name = f"{weight.name}.{rows}x{columns}"
    if name in tensors and not np.array_equal(np.asarray(tensors[name].data), data):
        return None  # two layers see different taps of one kernel: one of them keeps it whole
    tensors[name] = replace(weight, name=name, shape=data.shape, data=data)
    dims = d.replace({"R": rows, "S": columns})
    pads = (
        top - up * layer.dilation[0],
        left - before * layer.dilation[1],
        bottom - down * layer.dilation[0],
        right - after * layer.dilation[1],
    )
    return replace(layer, dims=dims, weight=weight_view(name, dims), pads=pads)
