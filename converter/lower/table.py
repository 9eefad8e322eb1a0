"""The registry: every operator the front end knows, once, with its limits.

`OPERATORS` is the single explicit table.  docs/SUPPORTED_OPS.md is generated from it and from the
docstrings of the constraint functions that it lists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

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

_BY_NAME = {(entry.domain, entry.op, entry.since): entry for entry in OPERATORS}


def find(node: Node) -> Operator | None:
    """The entry with the highest `since` that the node's opset reaches, None when unknown."""
    entries = [e for e in OPERATORS if (e.domain, e.op) == (node.domain, node.op) and e.since <= node.version]
    return max(entries, key=lambda entry: entry.since, default=None)


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
