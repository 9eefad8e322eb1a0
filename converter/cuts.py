"""Where a model can be cut: at single tensors that separate it, and around what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import networkx as nx
import onnx

from fadiff.converter.errors import ModelError, UnsupportedError
from fadiff.converter.ir.kinds import MOVE, WEIGHTED, Kind, named
from fadiff.converter.ir.operators import is_a, macs_of
from fadiff.converter.ir.program import Program
from fadiff.converter.read.cut import Cut, read_by
from fadiff.converter.read.load import load_model, named_model
from fadiff.converter.simplify import simplify


@dataclass(frozen=True)
class CutPoint:
    """A tensor through which everything flows, and the multiply-accumulates on both sides of it."""

    tensor: str
    shape: tuple[int, ...]
    after: str
    """The node that computes it."""
    macs_before: int
    macs_behind: int


def cut_points(
    path: Path, *, dims: Mapping[str, int], cut: Cut, progress: Callable[[str], None]
) -> tuple[CutPoint, ...]:
    """Tensors of the file that every path from the inputs to the outputs goes through, in order.

    Of several that hold the same numbers, moved or reshaped, the first is listed.

    Raises:
        ModelError: the file, a dimension or the cut cannot be used.
        UnsupportedError: an operator that nobody knows, so that what is behind it has no shapes.
    """
    names = {value for node in named_model(path).graph.node for value in node.output if value}
    progress(f"reading {path.name}")
    model, weights, _ = load_model(path, dims, cut)
    program = simplify(str(path), model, weights, lambda _: (), {}).program
    work = [macs_of(program, node) for node in program.nodes]
    found, done, total = [], 0, sum(work)
    for node, macs, open_values in zip(program.nodes, work, _open_values(program), strict=True):
        done += macs
        alone = open_values == {node.outputs[0]} and node.outputs[0] not in program.outputs
        if alone and node.outputs[0] in names and not is_a(node, MOVE):
            value = node.outputs[0]
            found.append(CutPoint(value, program.shapes.get(value, ()), node.name, done, total - done))
    return tuple(found)


def _open_values(program: Program) -> list[set[str]]:
    """After each node, the values that are known and still needed: inputs, results, not constants."""
    left = Counter(value for node in program.nodes for value in set(program.activations(node)))
    left.update(program.outputs)
    known = {value for value in program.inputs if left[value]}
    found = []
    for node in program.nodes:
        left.subtract(set(program.activations(node)))
        known.update(value for value in node.outputs if value)
        known = {value for value in known if left[value] > 0}
        found.append(set(known))
    return found


_ROUNDS = 3
"""A cut can bring to light what was hidden behind the first refusals."""
_MOST_TENSORS = 12
"""More on one side is no cut that anyone would make."""


def way_out(
    model: onnx.ModelProto, whole: Cut, refused: UnsupportedError, attempt: Callable[[Cut], object]
) -> str:
    """Advice that was tried, nothing where no cut helps.

    Args:
        model: as in the file, with a name for every node.
        whole: the cut that the user made.
        refused: what was said about `model` cut so.
        attempt: converts the model cut otherwise; raises ModelError.
    """
    flow = _Flow(model, whole)
    for both_sides in (True, False):
        nodes = flow.nodes_of(problem.node for problem in refused.problems)
        for _ in range(_ROUNDS):
            cut = flow.around(nodes, both_sides=both_sides) if nodes else None
            if cut is None:
                break
            try:
                attempt(cut)
            except UnsupportedError as error:
                more = flow.nodes_of(problem.node for problem in error.problems) - nodes
                if not more:
                    break
                nodes |= more
            except ModelError:
                break
            else:
                return _advice(flow, nodes, cut)
    return ""


def _advice(flow: _Flow, nodes: set[str], cut: Cut) -> str:
    before, after = flow.sides(nodes) if cut.inputs != flow.whole.inputs else (set(), nodes)
    parts = [_named(f"after {{}} {', '.join(sorted(before))}", before)] if before else []
    parts += [_named(f"before {{}} {', '.join(sorted(after))}", after)] if after else []
    return f"everything {' and '.join(parts)} converts: {cut}"


def _named(text: str, nodes: set[str]) -> str:
    return text.format("node" if len(nodes) == 1 else "nodes")


class _Flow:
    """Dependences among the nodes that compute something from the inputs."""

    def __init__(self, model: onnx.ModelProto, whole: Cut) -> None:
        self.whole = whole
        graph = model.graph
        constants = {tensor.name for tensor in graph.initializer}
        self.inputs = [v.name for v in graph.input if v.name not in constants]
        self.outputs = [v.name for v in graph.output]
        self.nodes = {node.name: node for node in graph.node}
        self.twins: dict[bytes, set[str]] = {}
        for node in graph.node:
            self.twins.setdefault(_content(node), set()).add(node.name)
        self.reads = {node.name: read_by(node) for node in graph.node}
        maker = {value: node.name for node in graph.node for value in node.output if value}
        self.graph: nx.DiGraph[str] = nx.DiGraph()
        self.graph.add_nodes_from(self.nodes)
        self.graph.add_edges_from(
            (maker[value], name) for name, values in self.reads.items() for value in values if value in maker
        )
        fed = {name for name, values in self.reads.items() if values & set(self.inputs)}
        self.live = fed.union(*(nx.descendants(self.graph, name) for name in fed)) if fed else set()

    def nodes_of(self, names: Iterable[str]) -> set[str]:
        """The nodes of the file behind the names of refused ones: inlined bodies are called NODE/..., one of
        equal nodes stands for all."""
        found = set()
        for name in names:
            while name and name not in self.nodes:
                name = name.rpartition("/")[0]
            if name in self.live:
                found |= self.twins[_content(self.nodes[name])]
        return found

    def sides(self, nodes: set[str]) -> tuple[set[str], set[str]]:
        """Refused nodes that are nearer to the inputs, and those that are nearer to the outputs."""
        front = {
            name
            for name in nodes
            if len(nx.ancestors(self.graph, name) & self.live)
            < len(nx.descendants(self.graph, name) & self.live)
        }
        return front, nodes - front

    def around(self, nodes: set[str], *, both_sides: bool) -> Cut | None:
        """The cut that leaves out refused nodes with all before or behind them, None where nothing stays."""
        front, back = self.sides(nodes) if both_sides else (set(), set(nodes))
        before = front.union(*(nx.ancestors(self.graph, name) for name in front)) if front else set()
        behind = back.union(*(nx.descendants(self.graph, name) for name in back)) if back else set()
        kept = self.live - before - behind
        if not any(self.nodes[name].op_type in _WORK for name in kept):
            return None
        made = {name: [v for v in self.nodes[name].output if v] for name in self.live}
        read = {value for name in kept for value in self.reads[name]}
        lost = {value for name in behind for value in self.reads[name]} | set(self.outputs)
        outputs = [v for name in self.nodes if name in kept for v in made[name] if v in lost]
        inputs = [v for name in self.nodes if name in before & self.live for v in made[name] if v in read]
        inputs += [v for v in self.inputs if v in read] if inputs else []
        if not outputs or max(len(outputs), len(inputs)) > _MOST_TENSORS:
            return None
        if any("," in name for name in (*inputs, *outputs)):
            return None
        cut = Cut(tuple(inputs) or self.whole.inputs, tuple(outputs) if behind else self.whole.outputs)
        return cut if cut != self.whole else None


def _content(node: onnx.NodeProto) -> bytes:
    """What equal nodes have in common."""
    alike = onnx.NodeProto(op_type=node.op_type, domain=node.domain, input=node.input)
    alike.attribute.extend(node.attribute)
    return bytes(alike.SerializeToString(deterministic=True))


_WORK = named(WEIGHTED | Kind.RECURRENT | Kind.INTEGER_PRODUCT)
"""Operators of which a cut must keep at least one to be worth it."""
