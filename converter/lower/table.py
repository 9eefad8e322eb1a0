"""The registry: every operator the front end knows, once, with its limits.

`OPERATORS` is the single explicit table.  docs/SUPPORTED_OPS.md is generated from it and from the
docstrings of the constraint functions that it lists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import onnx

from converter.errors import Unsupported
from converter.lower import constraints as limits
from converter.lower.constraints import Constraint
from converter.lower.context import Lowering
from converter.lower.host import lower_add, lower_global_average_pool, lower_max_pool
from converter.lower.layout import lower_reshape, lower_transpose
from converter.lower.products import lower_conv, lower_gemm
from converter.operators import is_elementwise
from converter.plan import Step
from converter.program import Node, Program

Handler = Callable[[Lowering, Step], None]
Where = Literal["array", "core", "gone"]
"""Where an operator runs: systolic array, RISC-V core, or nowhere (it became an access pattern)."""


@dataclass(frozen=True)
class Operator:
    """One operator, from opset `since` on."""

    op: str
    where: Where
    lower: Handler
    constraints: tuple[Constraint, ...] = ()
    since: int = 1
    domain: str = ""


OPERATORS: tuple[Operator, ...] = (
    Operator("Add", "core", lower_add, (limits.float_values, limits.same_shapes)),
    Operator(
        "Conv",
        "array",
        lower_conv,
        (limits.float_values, limits.image, limits.constant_weight, limits.constant_bias),
    ),
    Operator("Flatten", "gone", lower_reshape),
    Operator(
        "Gemm", "array", lower_gemm, (limits.float_values, limits.constant_weight, limits.constant_bias)
    ),
    Operator("GlobalAveragePool", "core", lower_global_average_pool, (limits.float_values, limits.image)),
    Operator("Identity", "gone", lower_reshape),
    Operator("MaxPool", "core", lower_max_pool, (limits.image, limits.one_output, limits.row_major_indices)),
    Operator("ReduceMean", "core", lower_global_average_pool, (limits.float_values, limits.spatial_mean)),
    Operator("Reshape", "gone", lower_reshape),
    Operator("Squeeze", "gone", lower_reshape),
    Operator("Transpose", "gone", lower_transpose),
    Operator("Unsqueeze", "gone", lower_reshape),
)

def find(node: Node) -> Operator | None:
    """The entry with the highest `since` that the node's opset reaches, None when unknown."""
    entries = [e for e in OPERATORS if (e.domain, e.op) == (node.domain, node.op) and e.since <= node.version]
    return max(entries, key=lambda entry: entry.since, default=None)


def unknown_operators(model: onnx.ModelProto) -> tuple[Unsupported, ...]:
    """Nodes of an imported model that ONNX Runtime could not even load, with all other unknown ones.

    Empty when ONNX Runtime can load the model: it may fold operators that are not in the table.
    """
    nodes = [
        Node(n.name or f"{n.op_type}_{i}", n.op_type, n.domain if n.domain != "ai.onnx" else "", 10**6, (), (), {})
        for i, n in enumerate(model.graph.node)
    ]
    if all(_can_load(node) for node in nodes):
        return ()
    return tuple(
        Unsupported(node.name, node.op, node.domain, "unknown operator", _remedy(node))
        for node in nodes
        if not _can_load(node) or (find(node) is None and not is_elementwise(node) and node.op != "Constant")
    )


def _can_load(node: Node) -> bool:
    return node.domain == "com.microsoft" or (node.domain == "" and onnx.defs.has(node.op))


def problem(program: Program, step: Step) -> Unsupported | None:
    """Why a step cannot be lowered, None when it can."""
    node = step.head
    if step.kind == "lookup":
        return None
    entry = find(node)
    if entry is None:
        return Unsupported(node.name, node.op, node.domain, "unknown operator", _remedy(node))
    for constraint in (limits.static_shape, *entry.constraints):
        reason = constraint(program, node)
        if reason is not None:
            return Unsupported(node.name, node.op, node.domain, reason)
    return None


def _remedy(node: Node) -> str:
    if is_elementwise(node):
        return "only functions of one value and the listed binary operators are lowered"
    return "see docs/SUPPORTED_OPS.md, or replace it before exporting"
