"""Parts of one value that differ in size: means beside deviations, positions beside speeds.

Split, Slice and Concat only move integers, so all parts would have the scale of the largest.

Where one product computes them, columns of a small part are multiplied by a power of two in the weights, and
the part by its inverse, which is no layer but a smaller scale.  Where a Concat joins them for products, a
small part is multiplied, and the weights that read it are divided.  No weight becomes larger than the
largest, and none that is divided smaller than those beside it: nothing else becomes coarser.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fadiff.converter.decompose.unused import Pick, chain_of, picks_of
from fadiff.converter.ir.channels import channel_axis, magnitudes, output_axis, outputs_first
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.ir.stored import StoredWeights
from fadiff.converter.printable import FreshNames
from fadiff.converter.quantise.columns import by_input, multiplies
from fadiff.converter.quantise.observe import activations
from fadiff.converter.read.inputs import Samples
from fadiff.converter.read.reserved import names_in

_LINEAR = frozenset(("Add", "Sub", "Mul", "Div", "Relu", "LeakyRelu", "Identity"))
"""What may stand between product and parts: s f(x) = f(s x), where what is added is multiplied, too."""
_WORTH_A_COPY = 8
"""What other layers write has a scale of its own, so that a factor makes the core copy it into the joint."""


def enlarge_parts(file: str, model: onnx.ModelProto, program: Program, samples: Samples) -> tuple[str, ...]:
    """Rewrite a normalised float model in place; the values that were enlarged, by powers of two.

    Raises:
        ModelError: the samples do not fit the model.
    """
    found = [(node, picks) for node in program.nodes if (picks := _parts(program, node))]
    joins = [node for node in program.nodes if _is_joined_for_products(program, node)]
    parts = [output for _, picks in found for pick in picks for output, _ in pick.indices]
    parts += [name for join in joins for name in join.inputs]
    largest = dict.fromkeys(parts, 0.0)
    for name, array in activations(file, model, StoredWeights(), samples, parts):
        largest[name] = max(largest[name], float(np.abs(array).max(initial=0.0)))
    done = list[str]()
    editor = _Editor(model, program)
    for join in joins:
        done += _enlarge_joined(editor, program, join, largest)
    for node, picks in found:
        chain = chain_of(program, node, picks[0].axis)
        weight = program.constants[chain[-1].inputs[1]]
        columns = magnitudes(outputs_first(chain[-1], weight), 1)
        factors = np.ones(len(columns), np.float32)
        indices = {output: list(taken) for pick in picks for output, taken in pick.indices}
        top = max(largest[output] for output in indices)
        for output, taken in indices.items():
            sizes = largest[output], float(columns[taken].max())
            if min(sizes) > 0:
                room = min(top / sizes[0], float(columns.max()) / sizes[1])
                factors[taken] = np.exp2(np.floor(np.log2(room)))
        small = {output: float(factors[taken[0]]) for output, taken in indices.items()}
        small = {output: factor for output, factor in small.items() if factor > 1}
        if small:
            editor.enlarge(chain, picks[0].axis, factors)
            for output, factor in small.items():
                editor.take_back(output, factor)
            done += small
    return tuple(done)


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
            and axis == channel_axis(program, value, reader.op)
            for reader in readers
        )
    )


def _enlarge_joined(
    editor: _Editor, program: Program, join: Node, largest: Mapping[str, float]
) -> Sequence[str]:
    """Multiply small operands of a Concat, and divide the weights that read them."""
    axis = int(join.attributes["axis"]) % len(program.shapes[join.outputs[0]])
    readers = program.consumers(join.outputs[0])
    ends = np.cumsum([program.shapes[name][axis] for name in join.inputs]).tolist()
    starts = [0, *ends[:-1]]
    rows = [_rows(reader, program.constants[reader.inputs[1]], ends[-1]) for reader in readers]
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
                editor.enlarge(chain, axis, np.full(program.shapes[name][axis], factor, np.float32))
            else:
                editor.multiply(join, i, factor)
            done.append(name)
    for reader in readers if done else ():
        editor.divide_rows(reader, factors)
    return done


def _own_product(program: Program, value: str, axis: int) -> list[Node]:
    """From the writer of a value that has one reader back to the product that computes it, up to a factor."""
    writer = program.producer.get(value)
    if writer is None or program.sole_consumer(value) is None:
        return []
    chain = chain_of(program, writer, axis)
    return chain if all(step.op in _LINEAR for step in chain[:-1]) else []


def _rows(product: Node, weight: np.ndarray, count: int) -> np.ndarray:
    """The largest magnitude of the weights of each input channel."""
    if product.op == "Conv":
        return magnitudes(weight.reshape(len(weight), count, -1), (0, 2))
    return magnitudes(by_input(product, weight), 1)


def _parts(program: Program, node: Node) -> Sequence[Pick]:
    """What readers take of columns of a product, if no two take the same."""
    picks = picks_of(program, node)
    if not picks or not all(step.op in _LINEAR for step in chain_of(program, node, picks[0].axis)[:-1]):
        return ()
    taken = [index for pick in picks for _, indices in pick.indices for index in indices]
    parted = sum(len(pick.indices) for pick in picks) > 1 and len(set(taken)) == len(taken)
    return picks if parted and chain_of(program, node, picks[0].axis) else ()


class _Editor:
    """Changes a model in place."""

    def __init__(self, model: onnx.ModelProto, program: Program) -> None:
        self.graph, self.program = model.graph, program
        self.nodes = {value: node for node in model.graph.node for value in node.output if value}
        self.fresh = FreshNames(names_in(model.graph))
        self.changed: dict[str, np.ndarray] = {}

    def enlarge(self, chain: Sequence[Node], axis: int, factors: np.ndarray) -> None:
        """Multiply columns of a product, and what is added to them."""
        product, rank = chain[-1], len(self.program.shapes[chain[-1].outputs[0]])
        weight = self.program.constants[product.inputs[1]]
        along = [-1 if at == output_axis(product) else 1 for at in range(weight.ndim)]
        self._change(product, 1, factors.reshape(along))
        if product.input(2):
            self._change(product, 2, factors)
        for node in chain[:-1]:
            for place, name in enumerate(node.inputs):
                if node.op in ("Add", "Sub") and name in self.program.constants:
                    self._change(node, place, factors.reshape(-1, *(1 for _ in range(rank - 1 - axis))))

    def multiply(self, join: Node, place: int, factor: float) -> None:
        """Multiply an operand, for this reader only."""
        name = join.inputs[place]
        large = self.fresh.new(f"{name}.large")
        number = self._constant(f"{name}.factor", np.array(factor, np.float32))
        made = helper.make_node("Mul", [name, number], [large], name=self.fresh.node(large))
        node = self.nodes[join.outputs[0]]
        node.input[place] = large
        self.graph.node.insert(list(self.graph.node).index(node), made)
        shape, kind = self.program.shapes[name], self.program.types[name]
        self.graph.value_info.append(helper.make_tensor_value_info(large, kind, shape))

    def divide_rows(self, product: Node, factors: np.ndarray) -> None:
        """Divide the weights of input channels."""
        weight = self.program.constants[product.inputs[1]]
        at = 0 if product.op != "Conv" and not product.attributes.get("transB", 0) else 1
        along = [-1 if axis == at else 1 for axis in range(weight.ndim)]
        self._change(product, 1, 1 / factors.reshape(along))

    def take_back(self, value: str, factor: float) -> None:
        """Divide a part by its factor for those who read it."""
        node = self.nodes[value]
        large = self.fresh.new(f"{value}.large")
        node.output[:] = [large if name == value else name for name in node.output]
        inverse = self._constant(f"{value}.inverse", np.array(1 / factor, np.float32))
        made = helper.make_node("Mul", [large, inverse], [value], name=self.fresh.node(f"{value}.small"))
        self.graph.node.insert(list(self.graph.node).index(node) + 1, made)
        shape, kind = self.program.shapes[value], self.program.types[value]
        self.graph.value_info.append(helper.make_tensor_value_info(large, kind, shape))

    def _change(self, node: Node, place: int, factors: np.ndarray) -> None:
        proto = self.nodes[node.outputs[0]]
        before = self.changed.get(proto.input[place], self.program.constants[node.inputs[place]])
        array = np.asarray(before * factors, np.float32)
        proto.input[place] = self._constant(node.inputs[place], array)
        self.changed[proto.input[place]] = array

    def _constant(self, wanted: str, array: np.ndarray) -> str:
        name = self.fresh.new(wanted)
        self.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name
