"""Single tensors that separate a model: where it can be cut with one `--inputs` or `--outputs`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fadiff.converter.ir.kinds import MOVE, is_a
from fadiff.converter.ir.program import Program
from fadiff.converter.ir.work import macs_of
from fadiff.converter.read.cut import Cut
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
    program = simplify(str(path), model, weights, lambda *_: (), {}).program
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
