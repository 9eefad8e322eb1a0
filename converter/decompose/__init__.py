"""Operators that are written as other operators before anything is planned.

Unlike the definitions that ONNX ships (converter/lower/functions.py) these need static shapes and
constants, so they follow constant folding, which then runs again.
"""

from __future__ import annotations

import onnx

from fadiff.converter.decompose.masks import blank, blank_out, find_blanks, find_guards, find_masks, guard
from fadiff.converter.decompose.nodes import Nodes
from fadiff.converter.decompose.table import DECOMPOSITIONS, find, reason
from fadiff.converter.ir.edit import Editor
from fadiff.converter.ir.program import Program
from fadiff.converter.read.inputs import Samples

__all__ = ["DECOMPOSITIONS", "decompose", "find", "reason"]


def decompose(
    model: onnx.ModelProto, program: Program, samples: Samples
) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """A normalised model rewritten, and the names of the operators that were written as others.

    `program` is what was read from the model, `samples` are calibration
    inputs, if there are any.  Nodes that break a constraint stay as they are.
    """
    masks = find_masks(model, program, samples)
    guards = find_guards(program, masks)
    blanks = find_blanks(model, program, samples, masks)
    special = masks.keys() | guards.keys() | blanks.keys()
    edit, done = Editor(model), set[str]()
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
