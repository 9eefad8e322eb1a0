"""Values that nobody reads are not computed: dropped columns of products, joins that are parted again.

Gaussian policies compute means and deviations and keep the means: the deviations cost products, and their
range would set the scale of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fadiff.converter.ir.channels import PRODUCTS, channel_axis, output_axis
from fadiff.converter.ir.operators import UNARY
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.printable import FreshNames
from fadiff.converter.read.reserved import names_in

_WITH_VECTORS = frozenset(("Add", "Sub", "Mul", "Div"))


@dataclass(frozen=True)
class Pick:
    """A node takes evenly or unevenly spaced indices of an axis, for each output that somebody reads."""

    node: Node
    axis: int
    indices: tuple[tuple[str, tuple[int, ...]], ...]
    drops_axis: bool = False


def drop_unused(model: onnx.ModelProto, program: Program) -> int:
    """Rewrite a normalised model in place; how many columns of products, and joined parts, are left out."""
    editor = _Editor(model, program)
    done = 0
    for node in program.nodes:
        found = picks_of(program, node)
        if not found:
            continue
        axis = found[0].axis
        if node.op == "Concat" and int(node.attributes["axis"]) % len(_shape(program, node)) == axis:
            done += editor.pass_by(node, axis, found)
            continue
        used = sorted({i for pick in found for _, taken in pick.indices for i in taken})
        chain = chain_of(program, node, axis)
        if chain and 0 < len(used) < _shape(program, node)[axis]:
            editor.narrow(chain, used)
            editor.pick_again(node.outputs[0], found, used)
            done += _shape(program, node)[axis] - len(used)
    if done:
        editor.finish()
    return done


def picks_of(program: Program, node: Node) -> Sequence[Pick]:
    """What readers take of the one value of a node; nothing where one takes it whole."""
    if len(node.outputs) != 1 or node.outputs[0] in program.outputs:
        return ()
    picks = [pick_of(program, reader, node.outputs[0]) for reader in program.consumers(node.outputs[0])]
    found = [pick for pick in picks if pick is not None]
    return found if len(found) == len(picks) and len({pick.axis for pick in found}) == 1 else ()


def _shape(program: Program, node: Node) -> tuple[int, ...]:
    return program.shapes[node.outputs[0]]


def pick_of(program: Program, node: Node, value: str) -> Pick | None:
    """Indices of the value that a reader takes; None where they are not of one axis."""
    shape = program.shapes.get(value)
    if shape is None or any(v and v not in program.shapes for v in node.outputs):  # (it is refused later)
        return None
    if node.inputs[0] != value or value in node.inputs[1:] or node.domain:
        return None
    if node.op == "Split":
        axis, start, parts = int(node.attributes.get("axis", 0)) % len(shape), 0, []
        for output in node.outputs:
            count = program.shapes[output][axis]
            if program.consumers(output) or output in program.outputs:
                parts.append((output, tuple(range(start, start + count))))
            start += count
        return Pick(node, axis, tuple(parts))
    if node.op == "Slice" and node.version >= 10:
        bounds = [program.constant(node.input(i)) for i in (1, 2, 3, 4)]
        if bounds[0] is None or bounds[1] is None or bounds[0].size != 1:
            return None
        if any(node.input(i) and bounds[i - 1] is None for i in (3, 4)):
            return None
        start, end = (int(np.asarray(bound).reshape(-1)[0]) for bound in bounds[:2])
        axis = 0 if bounds[2] is None else int(bounds[2].reshape(-1)[0]) % len(shape)
        step = 1 if bounds[3] is None else int(bounds[3].reshape(-1)[0])
        taken = tuple(range(*slice(start, end, step).indices(shape[axis])))
        return Pick(node, axis, ((node.outputs[0], taken),)) if step > 0 and taken else None
    indices = program.constant(node.inputs[1]) if node.op == "Gather" else None
    if indices is None or indices.ndim > 1 or not indices.size:
        return None
    axis = int(node.attributes.get("axis", 0)) % len(shape)
    taken = tuple(int(i) % shape[axis] for i in indices.reshape(-1))
    return Pick(node, axis, ((node.outputs[0], taken),), drops_axis=indices.ndim == 0)


def chain_of(program: Program, node: Node, axis: int) -> list[Node]:
    """From the node back to the product whose columns are those of the value; nothing where there is none."""
    chain = [node]
    while chain[-1].op not in PRODUCTS:
        last = chain[-1]
        computed = list(program.activations(last))
        before = program.producer.get(computed[0]) if len(computed) == 1 else None
        alone = before is not None and program.sole_consumer(computed[0]) is not None
        if before is None or not alone or program.shapes.get(computed[0]) != _shape(program, last):
            return []
        if last.op not in UNARY and not (last.op in _WITH_VECTORS and not last.domain):
            return []
        chain.append(before)
    product = chain[-1]
    weight = program.constant(product.inputs[1])
    plain = weight is not None and (product.op == "Conv" or weight.ndim == 2)
    if (
        not plain
        or product.inputs[1] in program.stored
        or axis != channel_axis(program, product.outputs[0], product.op)
    ):
        return []
    bias = product.input(2)
    has_vector = not bias or (bias in program.constants and program.constants[bias].ndim <= 1)
    return chain if has_vector and product.attributes.get("group", 1) == 1 else []


class _Editor:
    def __init__(self, model: onnx.ModelProto, program: Program) -> None:
        self.graph, self.program = model.graph, program
        self.nodes = {value: node for node in model.graph.node for value in node.output if value}
        self.fresh = FreshNames(names_in(model.graph))

    def narrow(self, chain: Sequence[Node], used: Sequence[int]) -> None:
        """Leave only some columns in a product and what follows it."""
        product = chain[-1]
        proto = self.nodes[product.outputs[0]]
        weight = self.program.constants[product.inputs[1]]
        proto.input[1] = self._constant(product.inputs[1], np.take(weight, used, output_axis(product)))
        columns = len(self.program.shapes[product.outputs[0]])
        axis = channel_axis(self.program, product.outputs[0], product.op)
        if product.input(2):
            bias = self.program.constants[product.inputs[2]]
            if bias.size > 1:
                proto.input[2] = self._constant(product.inputs[2], bias[list(used)])
        for node in chain[:-1]:
            for place, name in enumerate(node.inputs):
                array = self.program.constants.get(name)
                at = -1 if array is None else axis - (columns - array.ndim)
                if array is not None and at >= 0 and array.shape[at] > 1:
                    constant = self._constant(name, np.take(array, used, at))
                    self.nodes[node.outputs[0]].input[place] = constant

    def pick_again(self, value: str, picks: Sequence[Pick], used: Sequence[int]) -> None:
        """The readers take what they took of a value with fewer indices."""
        place = {index: i for i, index in enumerate(used)}
        for pick in picks:
            for output, taken in pick.indices:
                indices = np.array([place[i] for i in taken], np.int64)
                self._give(pick, value, output, indices, len(used))
            self.graph.node.remove(self.nodes[pick.indices[0][0]])

    def _give(self, pick: Pick, value: str, output: str, indices: np.ndarray, size: int) -> None:
        node = self.nodes[pick.indices[0][0]]
        at = list(self.graph.node).index(node)
        name = self.fresh.node(f"{pick.node.name}.used")
        if not pick.drops_axis and indices.tolist() == list(range(size)):
            made = helper.make_node("Identity", [value], [output], name)
        else:
            array = indices.reshape(()) if pick.drops_axis else indices
            constant = self._constant(f"{output}.indices", array)
            made = helper.make_node("Gather", [value, constant], [output], name, axis=pick.axis)
        self.graph.node.insert(at, made)

    def pass_by(self, node: Node, axis: int, picks: Sequence[Pick]) -> int:
        """Readers of whole operands of a Concat read these; how many did."""
        sizes = [self.program.shapes[name][axis] for name in node.inputs]
        ends = np.cumsum(sizes).tolist()
        spans = {(end - size, end): name for name, size, end in zip(node.inputs, sizes, ends, strict=True)}
        parts = [
            (pick, output, spans.get((taken[0], taken[-1] + 1)))
            for pick in picks
            for output, taken in pick.indices
            if not pick.drops_axis and taken == tuple(range(taken[0], taken[0] + len(taken)))
        ]
        if len(parts) < sum(len(pick.indices) for pick in picks) or any(part is None for *_, part in parts):
            return 0
        for pick, output, part in parts:
            assert part is not None
            proto = self.nodes[pick.indices[0][0]]
            name = self.fresh.node(f"{pick.node.name}.part")
            made = helper.make_node("Identity", [part], [output], name)
            self.graph.node.insert(list(self.graph.node).index(proto), made)
        for pick in picks:
            self.graph.node.remove(self.nodes[pick.indices[0][0]])
        return len(parts)

    def finish(self) -> None:
        """Shapes are another question now."""
        del self.graph.value_info[:]

    def _constant(self, wanted: str, array: np.ndarray) -> str:
        name = self.fresh.new(wanted)
        self.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name
