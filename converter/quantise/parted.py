"""Parts of one product that differ in size: means beside logarithms of variances, gates beside values.

Split and Slice only move integers, so all parts would have the scale of the largest.

Columns of a small part are multiplied by a power of two in the weights, and the part by its inverse, which is
no layer but a smaller scale.  No weight becomes larger than the largest, so nothing else becomes coarser.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fadiff.converter.decompose.unused import Pick, chain_of, picks_of
from fadiff.converter.ir.channels import magnitudes, output_axis, outputs_first
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.ir.stored import StoredWeights
from fadiff.converter.printable import FreshNames
from fadiff.converter.quantise.observe import activations
from fadiff.converter.read.inputs import Samples
from fadiff.converter.read.reserved import names_in

_LINEAR = frozenset(("Add", "Sub", "Mul", "Div", "Relu", "LeakyRelu", "Identity"))
"""What may stand between product and parts: s f(x) = f(s x), where what is added is multiplied, too."""


def enlarge_parts(file: str, model: onnx.ModelProto, program: Program, samples: Samples) -> tuple[str, ...]:
    """Rewrite a normalised float model in place; the values that were enlarged, by powers of two.

    Raises:
        ModelError: the samples do not fit the model.
    """
    found = [(node, picks) for node in program.nodes if (picks := _parts(program, node))]
    parts = [output for _, picks in found for pick in picks for output, _ in pick.indices]
    largest = dict.fromkeys(parts, 0.0)
    for name, array in activations(file, model, StoredWeights(), samples, parts):
        largest[name] = max(largest[name], float(np.abs(array).max(initial=0.0)))
    done = list[str]()
    editor = _Editor(model, program)
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
        array = np.asarray(self.program.constants[node.inputs[place]] * factors, np.float32)
        self.nodes[node.outputs[0]].input[place] = self._constant(node.inputs[place], array)

    def _constant(self, wanted: str, array: np.ndarray) -> str:
        name = self.fresh.new(wanted)
        self.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name
