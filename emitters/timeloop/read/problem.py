"""A Timeloop problem file as a graph of one layer: the front end for people who have no ONNX model.

What a dimension means follows from the data spaces it projects on, not from its letter: the one in
all three is the group G, the one in Weights and Outputs is K, one in Weights and Inputs is C (or R,
S when it shares an axis of Inputs with another), one in Inputs and Outputs is N, P or Q.  So
depthwise problems whose Inputs project on K, batched products whose Weights project on N, and
problems with other letters than ours are all read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fadiff.converter.ir.builder import GraphBuilder, image_view, weight_view
from fadiff.converter.ir.graph import Graph, TensorCoreLayer, TensorCoreOp, View
from fadiff.converter.ir.loops import DIMS, Dim, Dims
from fadiff.emitters.timeloop.nest import OPERANDS
from fadiff.emitters.timeloop.read.yaml_lines import Entry, read_root

_HEIGHT: tuple[Dim, Dim] = ("P", "R")
_WIDTH: tuple[Dim, Dim] = ("Q", "S")
_SCALE = 2.0**-4

Term = tuple[str, str | None]
"""A dimension and the name of its coefficient."""


@dataclass(frozen=True)
class TimeloopProblem:
    """One layer, and the meaning of the dimension letters that its mapping files use.

    `letters` maps each letter to our dimension; `unused` letters have bound one and no meaning of
    their own.
    """

    graph: Graph
    layer: TensorCoreLayer
    letters: Mapping[str, Dim]
    unused: frozenset[str] = frozenset()


def problem_of(graph: Graph, layer: TensorCoreLayer) -> TimeloopProblem:
    """A layer of a graph under our own letters, as problems are emitted."""
    return TimeloopProblem(graph, layer, {d: d for d in DIMS})


def read_problem(path: Path) -> TimeloopProblem:
    """Read `problem:` of a YAML file, native or front-end dialect, as a graph of one layer.

    Raises:
        TimeloopFormatError: `file:line: field: what is wrong`.
    """
    problem = read_root(path, "problem")
    entries = problem.keys()
    shape = _shape(entries.get("shape"), problem)
    sizes = _Sizes(entries.get("instance", problem))
    bounds = {letter: sizes.bound(letter) for letter in shape.dimensions}
    letters = _meanings(shape, bounds)
    dims = Dims(**{d: bounds[letter] for letter, d in letters.items()})
    coefficient = {
        d: sizes.coefficient(name, shape.defaults[name]) for d, name in shape.coefficients(letters).items()
    }
    stride = (coefficient.get("P", 1), coefficient.get("Q", 1))
    dilation = (coefficient.get("R", 1), coefficient.get("S", 1))
    unused = frozenset(shape.dimensions) - frozenset(letters)
    graph = one_layer_graph(path.stem.removesuffix(".problem"), dims, stride, dilation)
    return TimeloopProblem(graph, graph.tensor_core_layers[0], letters, unused)


@dataclass(frozen=True)
class _Shape:
    """`problem.shape`: dimension letters, and the axes of each data space as lists of terms."""

    entry: Entry
    dimensions: tuple[str, ...]
    spaces: Mapping[str, tuple[tuple[Term, ...], ...]]
    defaults: Mapping[str, int]
    """Of the coefficients."""

    def users(self, letter: str) -> frozenset[str]:
        """Operands (W, I, O) that project on a dimension."""
        return frozenset(
            OPERANDS[name]
            for name, axes in self.spaces.items()
            if any(letter == dim for axis in axes for dim, _ in axis)
        )

    def coefficients(self, letters: Mapping[str, Dim]) -> dict[Dim, str]:
        """Name of the coefficient that Inputs multiply each dimension by, where there is one."""
        terms = [term for axis in self.spaces["Inputs"] for term in axis]
        return {letters[letter]: name for letter, name in terms if name and letter in letters}


class _Sizes:
    """`problem.instance` (or the bounds beside `shape`): numbers by name."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.entries = entry.keys()

    def bound(self, letter: str) -> int:
        if letter not in self.entries:
            self.entry.fail(f"no bound for dimension {letter}")
        return self.entries[letter].positive()

    def coefficient(self, name: str, default: int) -> int:
        return self.entries[name].positive() if name in self.entries else default


def _shape(entry: Entry | None, problem: Entry) -> _Shape:
    if entry is None or entry.is_text:
        name = "cnn_layer" if entry is None else entry.text().replace("-", "_").lower()
        if name != "cnn_layer":
            (entry or problem).fail(
                f"stock shape {name!r} is not known; write the shape out (or use cnn_layer)"
            )
        return _stock(entry or problem)
    entries = entry.required("a shape", "dimensions", "data_spaces")
    dimensions = tuple(entries["dimensions"].texts())
    for letter in dimensions:
        if len(letter) != 1 or dimensions.count(letter) > 1:
            entries["dimensions"].fail(f"dimension {letter!r}: names are single letters, each given once")
    defaults = _defaults(entries.get("coefficients"))
    spaces: dict[str, tuple[tuple[Term, ...], ...]] = {}
    for space in entries["data_spaces"].items():
        keys = space.required("a data space", "name", "projection")
        name = keys["name"].text()
        if name not in OPERANDS:
            keys["name"].fail(f"unknown data space {name!r}; rename it to one of {', '.join(OPERANDS)}")
        if _is_true(keys.get("read_write")) != (name == "Outputs"):
            space.fail("Outputs, and only Outputs, need `read_write: true`")
        spaces[name] = tuple(_axis(axis, dimensions, defaults) for axis in keys["projection"].items())
    missing = [name for name in OPERANDS if name not in spaces]
    if missing:
        entries["data_spaces"].fail(f"no data space {', '.join(missing)}")
    return _Shape(entry, dimensions, spaces, defaults)


def _is_true(entry: Entry | None) -> bool:
    return entry is not None and entry.text().lower() == "true"


def _defaults(coefficients: Entry | None) -> dict[str, int]:
    defaults = {}
    for coefficient in coefficients.items() if coefficients else ():
        keys = coefficient.required("a coefficient", "name", "default")
        defaults[keys["name"].text()] = keys["default"].positive()
    return defaults


def _axis(axis: Entry, dimensions: tuple[str, ...], coefficients: Mapping[str, int]) -> tuple[Term, ...]:
    """One axis of a projection: a letter, or a sum of [dimension] and [dimension, coefficient] terms."""
    terms = []
    for term in [axis] if axis.is_text else axis.items():
        parts = [term.text()] if term.is_text else term.texts()
        if not 1 <= len(parts) <= 2:
            term.fail("a term is [dimension] or [dimension, coefficient]")
        if parts[0] not in dimensions:
            term.fail(f"unknown dimension {parts[0]!r}; the shape has {' '.join(dimensions)}")
        if len(parts) == 2 and parts[1] not in coefficients:
            term.fail(f"unknown coefficient {parts[1]!r}; the shape has {' '.join(coefficients) or 'none'}")
        terms.append((parts[0], parts[1] if len(parts) == 2 else None))
    return tuple(terms)


def _stock(entry: Entry) -> _Shape:
    """Timeloop's stock `cnn_layer` (there Wstride belongs to P and Hstride to Q)."""
    axes = {
        "Weights": ((("C", None),), (("K", None),), (("R", None),), (("S", None),)),
        "Inputs": (
            (("N", None),),
            (("C", None),),
            (("R", "Wdilation"), ("P", "Wstride")),
            (("S", "Hdilation"), ("Q", "Hstride")),
        ),
        "Outputs": ((("N", None),), (("K", None),), (("Q", None),), (("P", None),)),
    }
    names = ("Wstride", "Hstride", "Wdilation", "Hdilation")
    return _Shape(entry, tuple("RSPQCKN"), axes, dict.fromkeys(names, 1))


def _meanings(shape: _Shape, bounds: Mapping[str, int]) -> dict[str, Dim]:
    """Our dimension for every letter of the shape."""
    letters: dict[str, Dim] = {}
    windows = [axis for axis in shape.spaces["Inputs"] if len(axis) > 1]
    # R and S name their axes if the letters are used; otherwise the first window is the height.
    windows.sort(key=lambda axis: any(letter in "QS" for letter, _ in axis))
    if len(windows) > 2:
        shape.entry.fail("Inputs slide along more than two axes; Gemmini's convolution has two")
    for axis, (output, kernel) in zip(windows, (_HEIGHT, _WIDTH), strict=False):
        for letter, _ in axis:
            meaning = output if shape.users(letter) == {"I", "O"} else kernel
            _assign(letters, letter, (meaning,), shape)
    choices: dict[frozenset[str], tuple[Dim, ...]] = {
        frozenset("WIO"): ("G",),
        frozenset("WO"): ("K",),
        frozenset("WI"): ("C", "R", "S"),
        frozenset("IO"): ("P", "N", "Q"),
    }
    # Letters that bear our name come first, so that a P without a kernel stays P.
    plain = [letter for letter in shape.dimensions if letter not in letters]
    for letter in sorted(plain, key=lambda name: name not in DIMS):
        allowed = choices.get(shape.users(letter))
        if allowed is None or (bounds[letter] == 1 and not set(allowed) - set(letters.values())):
            if bounds[letter] > 1:
                users = " and ".join(sorted(shape.users(letter))) or "no data space"
                shape.entry.fail(f"dimension {letter} projects on {users}: no layer has such a dimension")
            continue
        _assign(letters, letter, tuple(sorted(allowed, key=lambda d: d != letter)), shape)
    return letters


def _assign(letters: dict[str, Dim], letter: str, wanted: tuple[Dim, ...], shape: _Shape) -> None:
    for d in wanted:
        if d not in letters.values():
            letters[letter] = d
            return
    rival = next(name for name, d in letters.items() if d == wanted[0])
    shape.entry.fail(f"dimensions {rival} and {letter} play the same part ({wanted[0]}); merge them into one")


def one_layer_graph(name: str, dims: Dims, stride: tuple[int, int], dilation: tuple[int, int]) -> Graph:
    """A graph of one layer with dense operands: inputs unpadded, constant weights without memory."""
    builder = GraphBuilder(name)
    size = tuple(
        (dims[out] - 1) * stride[i] + (dims[kernel] - 1) * dilation[i] + 1
        for i, (out, kernel) in enumerate((_HEIGHT, _WIDTH))
    )
    height, width = size
    op = _op(dims)
    weights_shape = (dims.G, dims.R, dims.S, dims.C, dims.K)
    if op == "bmm":
        x = builder.input("input", (dims.G, dims.P, dims.C), scale=_SCALE)
        w = builder.input("weight", (dims.G, dims.C, dims.K), scale=_SCALE)
        y = builder.tensor("output", (dims.G, dims.P, dims.K), scale=_SCALE)
        input_view = View(x, 0, (dims.P * dims.C, dims.P * dims.C, dims.C, dims.C, 1))
        weight = View(w, 0, (dims.C * dims.K, 0, 0, dims.K, 1))
        output_view = View(y, 0, (dims.P * dims.K, dims.P * dims.K, dims.K, dims.K, 1))
    else:
        data = np.broadcast_to(np.int8(0), weights_shape)
        image = (dims.N, height, width, dims.G * dims.C)
        result = (dims.N, dims.P, dims.Q, dims.G * dims.K)
        x = builder.input("input", image, scale=_SCALE)
        w = builder.tensor("weight", weights_shape, scale=_SCALE, data=data)
        y = builder.tensor("output", result, scale=_SCALE)
        input_view, output_view = image_view(x, image, dims.G), image_view(y, result, dims.G)
        weight = weight_view(w, dims)
    builder.tensor_core(
        TensorCoreLayer(
            name, op, dims, input_view, weight, output_view, (height, width), stride=stride, dilation=dilation
        )
    )
    return builder.build((y,))


def _op(dims: Dims) -> TensorCoreOp:
    if dims.G > 1 and dims.K == dims.C == 1:
        return "depthwise"
    if dims.N == dims.Q == dims.R == dims.S == 1:
        return "bmm" if dims.G > 1 else "gemm"
    return "conv"
