"""Operators that are written as other operators before anything is planned.

Unlike the definitions that ONNX ships (converter/lower/table.py) these need static shapes and
constants, so they follow constant folding, which then runs again.  Every page ends with the records of its
operators (`DECOMPOSITIONS`).
"""

from __future__ import annotations

import onnx

from fadiff.converter.decompose import (
    integers,
    norms,
    picking,
    products,
    recurrent,
    softmax,
    windows,
)
from fadiff.converter.decompose.nodes import Decomposition, Nodes
from fadiff.converter.decompose.softmax import (
    Mask,
    blank,
    blank_out,
    find_blanks,
    find_guards,
    find_masks,
    guard,
)
from fadiff.converter.ir.edit import Editor
from fadiff.converter.ir.kinds import Kind
from fadiff.converter.ir.operators import is_a
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.read.inputs import Samples

_PAGES = (integers, norms, picking, products, recurrent, softmax, windows)
DECOMPOSITIONS: tuple[Decomposition, ...] = tuple(record for page in _PAGES for record in page.DECOMPOSITIONS)
"""Of several for one operator the first that applies counts."""


WRITTEN = frozenset(record.op for record in DECOMPOSITIONS)
"""Operators that may be written as others."""
_BY_NAME = {op: tuple(record for record in DECOMPOSITIONS if record.op == op) for op in WRITTEN}


def find(program: Program, node: Node) -> Decomposition | None:
    """The record that writes a node as others, None where there is none or a constraint is broken."""
    if node.domain or node.op not in _BY_NAME or reason(program, node) is not None:
        return None
    return next((entry for entry in _BY_NAME[node.op] if entry.applies(program, node)), None)


def reason(program: Program, node: Node) -> str | None:
    """Why a node that has records is not written as others; None when it is (or has none)."""
    entries = _BY_NAME.get("" if node.domain else node.op, ())
    unknown = next((v for v in node.inputs if entries and v and v not in program.shapes), None)
    if unknown is not None:
        return f"the shape of {unknown} is not static"
    fits = [entry for entry in entries if entry.applies(program, node)]
    return next(
        (why for e in fits or entries for c in e.constraints if (why := c(program, node)) is not None), None
    )


def decompose(program: Program, samples: Samples) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """The model rewritten, and the names of the operators that were written as others.

    `samples` are calibration inputs, if there are any.  Nodes that break a constraint stay as they are.
    """
    masks, guards, blanks = dict[str, Mask](), dict[str, Mask](), dict[str, Mask]()
    if any(is_a(node, Kind.MAXIMUM) for node in program.nodes):
        masks = find_masks(program, samples)
        guards = find_guards(program, masks)
        blanks = find_blanks(program, samples, masks)
    special = masks.keys() | guards.keys() | blanks.keys()
    edit, done = Editor(program.model), set[str]()
    for node in program.nodes:
        entry = find(program, node)
        if entry is None and node.name not in special:
            continue
        nodes = Nodes(edit, edit.node(node), node.version)
        if node.name in masks:
            blank(nodes, program, node, masks[node.name])
            done.add("Softmax with a mask")
        elif node.name in guards:
            guard(nodes, program, node, guards[node.name])
            done.add("Softmax with a mask")
        elif node.name in blanks:
            blank_out(nodes, node, blanks[node.name])
            done.add("Add of a mask")
        elif entry is not None:
            entry.write(nodes, program, node)
            done.add(node.op)
        edit.remove(edit.node(node))
    return edit.model(), tuple(sorted(done))
