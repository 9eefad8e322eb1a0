"""Layer and RMS normalisations that an exporter spelled out in primitive operators.

centred:  y = (x - mean(x)) / sqrt(var(x) + eps) * gamma + beta
RMS:      y = x / sqrt(mean(x^2) + eps) * gamma + beta
They are known by what they compute (converter/plan/moments.py), not by how it is written.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from fadiff.converter.ir.kinds import Kind
from fadiff.converter.ir.operators import is_a
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.plan.moments import M1_SQUARED, M2, ONE, Moments

_SCALED_X = (1, 0, 0, 1)
_SCALED_MEAN = (0, 1, 0, 1)
_TINY = 1e-24  # keeps a row of zeros zero
_FARTHEST = 16
"""Nodes from the root back to the value that is normalised, at most."""
_LONGEST = 64
"""Nodes of a normalisation, at most."""


@dataclass(frozen=True)
class Norm:
    """A normalisation of `source` along the rows that `axes` are.

    `gamma` and `beta` have an element for each of the row, with `per_channel` for each index of axis 1 (the
    rows are then all axes behind it), or one in all.
    """

    nodes: tuple[Node, ...]
    source: str
    output: str
    axes: tuple[int, ...]
    epsilon: float
    centred: bool
    gamma: np.ndarray = field(compare=False, repr=False)
    beta: np.ndarray = field(compare=False, repr=False)
    per_channel: bool


def find_norms(program: Program) -> Iterator[Norm]:
    """All normalisations none of whose inner values is read from outside."""
    position = {node.name: i for i, node in enumerate(program.nodes)}
    taken: set[str] = set()
    for node in program.nodes:
        if node.op not in ("Sqrt", "Pow") or node.name in taken or not program.is_float(node.outputs[0]):
            continue
        for source in _sources(program, position, node):
            norm = _match(program, position, source, node)
            if norm is not None and not taken & {n.name for n in norm.nodes}:
                taken.update(n.name for n in norm.nodes)
                yield norm
                break


def _sources(program: Program, position: Mapping[str, int], root: Node) -> list[str]:
    """Values that may be what `root` normalises: its ancestors that have rows, the farthest first."""
    found: dict[str, int] = {}
    pending, seen = [root], {root.name}
    reduces = False
    while pending and len(seen) <= _FARTHEST:
        node = pending.pop(0)
        reduces = reduces or is_a(node, Kind.SUM)
        for value in program.activations(node):
            producer = program.producer.get(value)
            if program.shapes.get(value) and value not in found:
                found[value] = -1 if producer is None else position[producer.name]
            if producer is not None and producer.name not in seen:
                seen.add(producer.name)
                pending.append(producer)
    return sorted(found, key=lambda value: found[value]) if reduces else []


def _match(program: Program, position: Mapping[str, int], source: str, root: Node) -> Norm | None:
    moments = Moments(program, source)
    order: list[Node] = []
    waiting = [(position[node.name], node) for node in program.consumers(source)]
    heapq.heapify(waiting)
    done: set[str] = set()
    while waiting and len(order) < _LONGEST:
        _, node = heapq.heappop(waiting)
        if node.name not in done and moments.add(node):
            order.append(node)
            for reader in program.consumers(node.outputs[0]):
                heapq.heappush(waiting, (position[reader.name], reader))
        done.add(node.name)
    if not any(node.name == root.name for node in order):
        return None
    for node in reversed(order):
        norm = _norm(program, moments, source, order, node)
        if norm is not None and _is_closed(program, norm.nodes, norm.output):
            return norm
    return None


def _norm(program: Program, moments: Moments, source: str, order: list[Node], last: Node) -> Norm | None:
    """The normalisation of the source that the nodes of `order` up to the `last` compute, if it is one."""
    value = last.outputs[0]
    terms, radicand = moments.terms(value), moments.radicand
    if terms is None or radicand is None or not {_SCALED_X} <= terms.keys() <= {_SCALED_X, _SCALED_MEAN, ONE}:
        return None
    centred = M1_SQUARED in radicand
    gain = terms[_SCALED_X]
    if centred != (_SCALED_MEAN in terms) or (
        centred and not np.allclose(terms[_SCALED_MEAN], -gain, rtol=1e-4)
    ):
        return None
    a, shift = float(radicand[M2]), float(radicand.get(ONE, 0.0))
    epsilon = max(shift, moments.guard**2, _TINY) / a
    affine = (gain / np.sqrt(a), terms.get(ONE, np.zeros(())))
    shape = program.shapes[source]
    for axes, per_channel in ((moments.axes, False), ((1,), True)):
        if per_channel and moments.axes != tuple(range(2, len(shape))):
            continue
        gamma, beta = (_along(array, shape, axes) for array in affine)
        if gamma is not None and beta is not None:
            nodes = _inside(program, order, last)
            return Norm(nodes, source, value, moments.axes, epsilon, centred, gamma, beta, per_channel)
    return None


def _along(array: np.ndarray, shape: tuple[int, ...], axes: tuple[int, ...]) -> np.ndarray | None:
    """An array that varies along `axes` of `shape` only, as a vector over them (or of one element)."""
    if array.size == 1:
        return array.reshape(1).astype(np.float32)
    padded = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
    if any(size > 1 and axis not in axes for axis, size in enumerate(padded.shape)):
        return None
    rows = tuple(size if axis in axes else 1 for axis, size in enumerate(shape))
    return np.broadcast_to(padded, rows).reshape(-1).astype(np.float32)


def _inside(program: Program, order: list[Node], last: Node) -> tuple[Node, ...]:
    """The nodes of `order` that `last` depends on, itself included."""
    needed = {last.outputs[0]}
    nodes: list[Node] = []
    for node in reversed(order):
        if needed & set(node.outputs):
            nodes.append(node)
            needed.update(program.activations(node))
    return tuple(reversed(nodes))


def _is_closed(program: Program, nodes: tuple[Node, ...], output: str) -> bool:
    inside = {node.name for node in nodes}
    inner = [value for node in nodes for value in node.outputs if value != output]
    return not any(
        value in program.outputs or any(reader.name not in inside for reader in program.consumers(value))
        for value in inner
    )
