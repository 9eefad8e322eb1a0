"""Plan: which nodes become one layer, and which values are therefore stored (and quantised).

Five kinds of grouping, all on the float graph:

* epilogue: bias add, ReLU and Clip(0, max) join the convolution, matrix product or residual add
  before them, when nothing else reads the value in between;
* lookup: element-wise nodes that depend on one stored value only (an activation function, however
  many nodes the exporter made of it) become one 256-entry table of that value;
* input: an affine function of an input alone becomes what its integers mean (converter/plan/inputs.py), or
  one table for every function of bytes;
* output: an affine function that ends an output becomes what that output's integers mean;
* norm: a layer or RMS normalisation spelled out in primitive operators (converter/plan/norms.py);
* everything else is a step of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fadiff.converter.ir.graph import Activation, ElementType
from fadiff.converter.ir.kinds import WEIGHTED
from fadiff.converter.ir.operators import channel_axis, is_a, is_tabulated
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.plan.inputs import input_chains, output_chains
from fadiff.converter.plan.norms import Norm, find_norms
from fadiff.converter.rewrites import FOLD_CHAINS, FOLD_EPILOGUES, FOLD_INPUTS, FOLD_NORMS

StepKind = Literal["node", "lookup", "norm", "input", "output"]

BLANK = -1e4
"""An attention mask blanks positions with values from here down."""


@dataclass(frozen=True)
class Step:
    """Nodes that become one layer; `output` is the stored value (the first of several)."""

    kind: StepKind
    head: Node
    nodes: tuple[Node, ...]
    output: str
    bias: str = ""
    """Constant added by a fused Add, besides any bias of the head itself."""
    activation: Activation = "none"
    mask: str = ""
    """Mask fused into a Softmax: a constant added to the scores, or the condition of a Where (a computed
    one blanks where it is true)."""
    source: str = ""
    """The value that feeds the head; for a lookup the one value it is a function of."""
    norm: Norm | None = None
    ceiling: float | None = None
    """Upper bound of a fused Clip: saturation stands for it, so 127 must not mean more."""
    is_float: bool = False
    """Kept in float32, on the core, although the array computes in int8 (converter/plan/floats.py)."""
    is_wide: bool = False
    """A product that is the array's where it is kept in float32, from 16-bit activations
    (converter/lower/float_layers.py); a function that may be kept so although it has exponentials."""

    @property
    def name(self) -> str:
        """The head's name: what the layer will be called."""
        return self.head.name

    @property
    def onnx_nodes(self) -> tuple[str, ...]:
        """Names of all fused nodes."""
        return tuple(node.name for node in self.nodes)


def plan(
    program: Program,
    element: ElementType = "int8",
    without: Collection[str] = (),
    apart: Collection[str] = (),
    caps: Collection[str] = (),
    prescribed: Collection[str] = (),
) -> tuple[Step, ...]:
    """Group the nodes of a normalised float program into steps, in topological order.

    `element` is what the array computes with: only int8 saturates, as fusing Clip(0, max) needs.
    `without` names rewrites to leave out (`fadiff.converter.rewrites.NAMES`), `apart` Clip nodes that no
    saturation can stand for, `caps` Min nodes that it stands for (converter/quantise/equalise.py),
    `prescribed` values of which the file gives the scale.
    """
    return _Planner(program, element, without, apart, caps, prescribed).steps()


class _Planner:
    def __init__(
        self,
        program: Program,
        element: ElementType,
        without: Collection[str],
        apart: Collection[str],
        caps: Collection[str],
        prescribed: Collection[str],
    ) -> None:
        self.program = program
        self.prescribed = prescribed
        self.caps = frozenset(caps)
        self.apart = frozenset(apart)
        self.without = without
        self.saturates = element == "int8"
        self.taken: set[str] = set()
        self.origin: dict[str, str] = {}
        """The one stored value that an element-wise value is a function of."""
        self.region: dict[str, tuple[Node, ...]] = {}
        """Element-wise nodes from the origin of a value to the value."""

    def steps(self) -> tuple[Step, ...]:
        position = {node.name: i for i, node in enumerate(self.program.nodes)}
        found: list[Step] = []
        for norm in () if FOLD_NORMS in self.without else find_norms(self.program):
            nodes = tuple(sorted(norm.nodes, key=lambda node: position[node.name]))
            found.append(Step("norm", nodes[-1], nodes, norm.output, source=norm.source, norm=norm))
            self.taken.update(node.name for node in nodes)
        found.extend(self._ends())
        for node in self.program.nodes:
            if node.name not in self.taken and not self._joins_region(node):
                step = self._step(node)
                self.taken.update(step.onnx_nodes)
                found.append(step)
        for value, nodes in self.region.items():
            if self._is_stored(value):
                found.append(Step("lookup", nodes[-1], nodes, value, source=self.origin[value]))
        return tuple(sorted(found, key=lambda step: position[step.nodes[-1].name]))

    def _ends(self) -> list[Step]:
        folds, but = FOLD_INPUTS not in self.without, {*self.prescribed, *self.program.float_inputs}
        steps = list[Step]()
        for value, chain in input_chains(self.program, but) if self.saturates else ():
            is_byte = value in self.program.byte_inputs
            nodes = chain if folds else chain[:is_byte]
            if nodes:
                self._take(Step("input", nodes[-1], nodes, nodes[-1].outputs[0], source=value), steps)
        for value, nodes in output_chains(self.program, but) if self.saturates and folds else ():
            source = next(self.program.activations(nodes[0]))
            self._take(Step("output", nodes[-1], nodes, value, source=source), steps)
        return steps

    def _take(self, step: Step, steps: list[Step]) -> None:
        """Add a step, unless another has one of its nodes."""
        if self.taken.isdisjoint(step.onnx_nodes):
            steps.append(step)
            self.taken.update(step.onnx_nodes)

    def _joins_region(self, node: Node) -> bool:
        if not is_tabulated(self.program, node) or len(node.outputs) != 1:
            return False
        sources = list(dict.fromkeys(self.program.activations(node)))
        constants = [self.program.constants[v] for v in node.inputs if v in self.program.constants]
        chains = FOLD_CHAINS not in self.without
        origins = {self.origin.get(value, value) if chains else value for value in sources}
        if len(origins) != 1 or any(array.size != 1 for array in constants):
            return False
        (origin,) = origins
        shape = self.program.shapes.get(node.outputs[0])
        elements = self.program.is_float(origin) or self.program.is_bool(origin)
        if not elements or shape != self.program.shapes.get(origin):
            return False
        nodes: dict[str, Node] = {}
        for value in sources if chains else ():
            nodes.update((n.name, n) for n in self.region.get(value, ()))
        self.origin[node.outputs[0]] = origin
        self.region[node.outputs[0]] = (*nodes.values(), node)
        return True

    def _is_stored(self, value: str) -> bool:
        """Whether something outside the region of element-wise nodes reads a value."""
        if value in self.program.outputs:
            return True
        readers = self.program.consumers(value)
        return any(self.origin.get(reader.outputs[0]) != self.origin[value] for reader in readers)

    def _step(self, node: Node) -> Step:
        nodes = [node]
        bias = ""
        ceiling: float | None = None
        activation: Activation = "none"
        value = node.outputs[0] if node.outputs else ""
        folds = FOLD_EPILOGUES not in self.without
        if is_a(node, WEIGHTED) and folds:
            adder = self._next(value, "Add")
            if adder is not None and not node.input(2) and self._is_bias(node, adder):
                bias = next(v for v in adder.inputs if v in self.program.constants)
                nodes.append(adder)
                value = adder.outputs[0]
        softmax = self._next(value, "Softmax")
        mask = self._mask(node, softmax) if softmax is not None else ""
        if softmax is not None and mask:
            scores = next(v for v in self.program.activations(node) if v != mask)
            return Step("node", softmax, (node, softmax), softmax.outputs[0], mask=mask, source=scores)
        if folds and (is_a(node, WEIGHTED) or self._is_residual_add(node)):
            relu = self._next(value, "Relu") or self._next(value, "Clip")
            if relu is not None and self._is_rectifier(relu):
                activation = "relu"
                ceiling = clip_bounds(self.program, relu)[1] if relu.op == "Clip" else None
                nodes.append(relu)
                value = relu.outputs[0]
                cap = self._next(value, "Min")
                if cap is not None and cap.name in self.caps:
                    ceiling = float(self.program.constants[cap.inputs[1]].min())
                    nodes.append(cap)
                    value = cap.outputs[0]
        source = next(self.program.activations(node), "")
        return Step("node", node, tuple(nodes), value, bias, activation, source=source, ceiling=ceiling)

    def _mask(self, node: Node, softmax: Node) -> str:
        """The mask that blanks scores of `softmax` along its rows: a constant that Add or Where reads, or
        the computed condition of a Where."""
        shapes, constants = self.program.shapes, self.program.constants
        computed = node.op == "Where" and node.inputs[0] not in constants and node.inputs[1] in constants
        sources = [v for v in self.program.activations(node) if not computed or v != node.inputs[0]]
        shape = shapes.get(node.outputs[0])
        axis = int(softmax.attributes.get("axis", -1 if softmax.version >= 13 else 1))
        if (
            shape is None
            or len(sources) != 1
            or shapes.get(sources[0]) != shape
            or axis % len(shape) != len(shape) - 1
        ):
            return ""
        if node.op == "Add":
            (added,) = (value for value in node.inputs if value != sources[0])
            array = constants[added]
            blanks = np.all((array == 0) | (array <= BLANK)) and np.any(array != 0)
            return added if blanks else ""
        if computed:  # float32 holds the huge numbers as they are
            fits = self.saturates and bool(np.all(constants[node.inputs[1]] <= BLANK))
            return node.inputs[0] if fits else ""
        if node.op != "Where" or node.inputs[0] not in constants:
            return ""
        (fill,) = (constants[value] for value in node.inputs[1:] if value in constants)
        # a row that is blank throughout is uniform in ONNX, zero on the core
        blank_rows = np.all(_blanked_by_where(self.program, node), axis=-1)
        return node.inputs[0] if np.all(fill <= BLANK) and not np.any(blank_rows) else ""

    def _next(self, value: str, op: str) -> Node | None:
        node = self.program.sole_consumer(value)
        return node if node is not None and node.op == op and node.domain == "" else None

    def _is_bias(self, product: Node, adder: Node) -> bool:
        constants = [self.program.constants[v] for v in adder.inputs if v in self.program.constants]
        if len(constants) != 1:
            return False
        rank = len(self.program.shapes[product.outputs[0]])
        channel = channel_axis(self.program, product.outputs[0], product)
        channels = self.program.shapes[product.outputs[0]][channel]
        shape = (1,) * (rank - constants[0].ndim) + constants[0].shape
        others = [size for axis, size in enumerate(shape) if axis != channel]
        weight = self.program.constant(product.input(1))
        return (
            len(shape) == rank
            and set(others) <= {1}
            and shape[channel] in (1, channels)
            and weight is not None
        )

    def _is_residual_add(self, node: Node) -> bool:
        shapes = [self.program.shapes.get(v) for v in self.program.activations(node)]
        return node.op == "Add" and len(shapes) == 2 and shapes[0] == shapes[1]

    def _is_rectifier(self, node: Node) -> bool:
        """ReLU, or Clip(0, max): the calibrated scale makes int8 saturation the upper bound."""
        if node.op == "Relu":
            return True
        low, high = clip_bounds(self.program, node)
        return low == 0.0 and (self.saturates or high is None) and node.name not in self.apart


def clip_bounds(program: Program, node: Node) -> tuple[float | None, float | None]:
    """Lower and upper bound of a Clip: None when absent, NaN when computed at run time."""
    if node.version < 11:
        return node.attributes.get("min"), node.attributes.get("max")

    def bound(index: int) -> float | None:
        if not node.input(index):
            return None
        array = program.constant(node.input(index))
        return float("nan") if array is None else float(np.asarray(array).reshape(-1)[0])

    return bound(1), bound(2)


def blanked(program: Program, step: Step) -> np.ndarray:
    """Where the mask of a softmax step blanks its scores: booleans that broadcast to them."""
    adder = step.nodes[0]
    if adder.op == "Where":
        return _blanked_by_where(program, adder)
    return np.asarray(program.constants[step.mask] != 0)


def _blanked_by_where(program: Program, node: Node) -> np.ndarray:
    condition = np.asarray(program.constants[node.inputs[0]], dtype=bool)
    return np.atleast_1d(condition if node.inputs[1] in program.constants else ~condition)
