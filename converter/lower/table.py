"""The registry: every operator the front end knows, once, with its limits.

`OPERATORS` is the single explicit table.  docs/SUPPORTED_OPS.md is generated from it and from the
docstrings of the constraint functions that it lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

import onnx

from fadiff.converter import decompose
from fadiff.converter.errors import Unsupported
from fadiff.converter.ir.graph import ElementType
from fadiff.converter.ir.kinds import ELEMENTWISE, is_a, named
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.lower import constraints as limits
from fadiff.converter.lower import movement, pool, rows
from fadiff.converter.lower.constraints import Constraint
from fadiff.converter.lower.context import Lowering
from fadiff.converter.lower.elementwise import lower_batch_norm, lower_binary, lower_where
from fadiff.converter.lower.formula import has_formula
from fadiff.converter.lower.integers import lower_cast, lower_integers
from fadiff.converter.lower.layout import lower_reshape, lower_transpose
from fadiff.converter.lower.matmul import lower_matmul
from fadiff.converter.lower.products import lower_conv, lower_gemm
from fadiff.converter.lower.refused import FOLDED, REFUSED
from fadiff.converter.lower.resize import lower_resize
from fadiff.converter.lower.scatter import lower_scatter
from fadiff.converter.lower.transposed import lower_conv_transpose
from fadiff.converter.plan.plan import Step

Handler = Callable[[Lowering, Step], None]
Where = Literal["array", "core", "gone", "store"]
"""Where an operator runs: systolic array, RISC-V core, nowhere (it became an access pattern), or the core or
the stores of the layer before."""


@dataclass(frozen=True)
class Operator:
    """One operator, from opset `since` on."""

    op: str
    where: Where
    lower: Handler
    constraints: tuple[Constraint, ...] = ()
    since: int = 1
    domain: str = ""


_FLOAT = limits.float_values


def _binary(op: str, *constraints: Constraint) -> Operator:
    return Operator(op, "core", lower_binary, constraints or (_FLOAT,))


OPERATORS: tuple[Operator, ...] = (
    _binary("Add", limits.numbers),
    _binary("And", limits.booleans),
    Operator("ArgMax", "core", rows.lower_arg_max),
    Operator("ArgMin", "core", rows.lower_arg_max),
    Operator(
        "AveragePool", "core", pool.lower_average_pool, (_FLOAT, limits.image, limits.windows_begin_inside)
    ),
    Operator(
        "BatchNormalization",
        "core",
        lower_batch_norm,
        (_FLOAT, limits.inference_mode, limits.constant_inputs),
    ),
    *(
        Operator(op, "core", lower_integers, (limits.integers,))
        for op in ("BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Mod")
    ),
    Operator("Cast", "core", lower_cast, (limits.of_integers,)),
    Operator("Concat", "gone", movement.lower_concat, (limits.comparable,)),
    Operator(
        "Conv",
        "array",
        lower_conv,
        (_FLOAT, limits.image, limits.constant_weight, limits.constant_bias, limits.channels_of_groups),
    ),
    Operator(
        "ConvTranspose",
        "array",
        lower_conv_transpose,
        (_FLOAT, limits.image, limits.constant_weight, limits.constant_bias, limits.few_phases),
    ),
    Operator("DepthToSpace", "gone", movement.lower_depth_to_space),
    _binary("Div", limits.numbers),
    _binary("Equal", limits.comparable),
    Operator("Expand", "gone", movement.lower_expand),
    Operator("Flatten", "gone", lower_reshape, (limits.same_elements,)),
    Operator("Gather", "core", movement.lower_gather, (limits.int32_indices,)),
    Operator(
        "Gemm",
        "array",
        lower_gemm,
        (_FLOAT, limits.rows_of_gemm, limits.constant_weight, limits.constant_bias),
    ),
    Operator("GlobalAveragePool", "core", pool.lower_global_average_pool, (_FLOAT, limits.image)),
    Operator("GlobalMaxPool", "core", pool.lower_global_max_pool, (_FLOAT, limits.image)),
    _binary("Greater", limits.comparable),
    _binary("GreaterOrEqual", limits.comparable),
    Operator("Identity", "gone", lower_reshape, (limits.same_elements,)),
    Operator("InstanceNormalization", "core", rows.lower_instance_norm, (limits.constant_inputs, _FLOAT)),
    Operator(
        "LayerNormalization",
        "core",
        rows.lower_layer_norm,
        (_FLOAT, limits.one_output, limits.constant_inputs),
    ),
    _binary("Less", limits.comparable),
    _binary("LessOrEqual", limits.comparable),
    Operator("LogSoftmax", "core", rows.lower_log_softmax, (_FLOAT,)),
    Operator("MatMul", "array", lower_matmul, (_FLOAT, limits.bare_matrices)),
    _binary("Max", limits.numbers),
    Operator(
        "MaxPool",
        "store",
        pool.lower_max_pool,
        (_FLOAT, limits.image, limits.windows_begin_inside, limits.one_output, limits.row_major_indices),
    ),
    _binary("Min", limits.numbers),
    _binary("Mul", limits.numbers),
    _binary("Or", limits.booleans),
    Operator("PRelu", "core", lower_binary, (_FLOAT, limits.slopes)),
    Operator("Pad", "core", movement.lower_pad, (limits.constant_inputs, _FLOAT)),
    Operator("RMSNormalization", "core", rows.lower_layer_norm, (limits.constant_inputs, _FLOAT)),
    Operator("ReduceMax", "core", rows.lower_reduce, (limits.known_axes, _FLOAT)),
    Operator("ReduceMean", "core", pool.lower_mean, (limits.known_axes, _FLOAT)),
    Operator("ReduceMin", "core", rows.lower_reduce, (limits.known_axes, _FLOAT)),
    Operator("ReduceSum", "core", rows.lower_reduce, (limits.known_axes, _FLOAT)),
    Operator("Reshape", "gone", lower_reshape, (limits.same_elements,)),
    Operator("Resize", "core", lower_resize, (limits.constant_inputs, _FLOAT, limits.known_resize)),
    Operator("Slice", "gone", movement.lower_slice, (limits.constant_inputs,)),
    Operator("Softmax", "core", rows.lower_softmax, (_FLOAT,)),
    Operator("SpaceToDepth", "gone", movement.lower_depth_to_space),
    Operator("Split", "gone", movement.lower_split, (limits.parts_of_all,)),
    Operator("Squeeze", "gone", lower_reshape, (limits.same_elements,)),
    *(
        Operator(op, "core", lower_scatter, (limits.slices_along_one_axis,))
        for op in ("ScatterElements", "ScatterND")
    ),
    _binary("Sub", limits.numbers),
    _binary("Sum", limits.numbers),
    Operator("Tile", "gone", movement.lower_tile, (limits.constant_inputs,)),
    Operator("Transpose", "gone", lower_transpose),
    Operator("Unsqueeze", "gone", lower_reshape, (limits.same_elements,)),
    Operator("Upsample", "core", lower_resize, (limits.constant_inputs, _FLOAT, limits.known_resize)),
    Operator("Where", "core", lower_where, (limits.comparable,)),
    _binary("Xor", limits.booleans),
)


FOR_ALL: tuple[Constraint, ...] = (limits.static_shape, limits.not_empty)
"""Constraints that every operator obeys."""


def find(node: Node) -> Operator | None:
    """The entry with the highest `since` that the node's opset reaches, None when unknown."""
    entries = [e for e in OPERATORS if (e.domain, e.op) == (node.domain, node.op) and e.since <= node.version]
    return max(entries, key=lambda entry: entry.since, default=None)


def is_known(op: str) -> bool:
    """Whether a standard operator is in one of the tables or element-wise, in any opset."""
    lowered = {entry.op for entry in OPERATORS if not entry.domain}
    return op in named(ELEMENTWISE) | lowered | {entry.op for entry in decompose.DECOMPOSITIONS}


def unknown_operators(
    model: onnx.ModelProto, refused: Mapping[str, Unsupported] = MappingProxyType({})
) -> tuple[Unsupported, ...]:
    """Nodes of an imported model that nothing lowers, writes as others, folds or expands.

    `refused` has those, by name, of which it is known why.
    """
    constants = {tensor.name for tensor in model.graph.initializer}
    constants.update(v for node in model.graph.node if node.op_type == "Constant" for v in node.output)
    found = []
    for i, proto in enumerate(model.graph.node):
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        node = Node(proto.name or f"{proto.op_type}_{i}", proto.op_type, domain, 10**6, (), (), {}, proto)
        is_constant = all(value in constants for value in proto.input)  # folded, if it can be
        if not is_constant and not _is_supported(node):
            found.append(refused.get(proto.name) or _unknown(node))
    return tuple(found)


def cannot_load(problem: Unsupported) -> bool:
    """Whether nothing could be loaded with this operator, or the shapes behind it would be unknown."""
    known = not problem.domain and onnx.defs.has(problem.op)
    return not known or (problem.op in ("If", "Loop", "Scan") and not problem.domain)


def _is_supported(node: Node) -> bool:
    if node.domain == "":
        return is_known(node.op) or node.op in FOLDED
    return find(node) is not None or is_a(node, ELEMENTWISE)


def _unknown(node: Node) -> Unsupported:
    """The refusal of an operator that no table lists."""
    reason, remedy = REFUSED.get(node.op if not node.domain else "", ("unknown operator", _remedy(node)))
    if node.op not in REFUSED and not node.domain and onnx.defs.has(node.op):
        reason = "nothing lowers it, and ONNX's definition of it does not expand with these inputs"
    if node.op in FOLDED and not node.domain:
        reason, remedy = "its inputs are computed at run time", "make them constant, or bind sizes with --dim"
    return Unsupported(node.name, node.op, node.domain, reason, remedy)


def problem(program: Program, step: Step, element: ElementType = "int8") -> Unsupported | None:
    """Why a step cannot be lowered for an array of `element`s, None when it can."""
    node = step.head
    if step.kind == "lookup" and element == "float32":
        unknown = next((n for n in step.nodes if not has_formula(n.op)), None)
        if unknown is not None:
            reason = "no float32 formula"
            return Unsupported(unknown.name, unknown.op, unknown.domain, reason, "use an int8 target")
        is_element = program.is_float(step.output) or program.is_bool(step.output)
        reason = "a float32 formula gives no integers"
        return (
            None if is_element else Unsupported(node.name, node.op, node.domain, reason, "use an int8 target")
        )
    if step.kind != "node":
        return None
    entry = find(node)
    if entry is None:
        why = decompose.reason(program, node)
        return _broken(node, why) if why else _unknown(node)
    for constraint in (*FOR_ALL, *entry.constraints):
        broken = constraint(program, node)
        if broken is not None:
            return _broken(node, broken)
    return None


def _broken(node: Node, why: str) -> Unsupported:
    """The refusal of a node by a constraint, which may name a remedy: "reason; remedy"."""
    reason, _, remedy = why.partition("; ")
    refusal = Unsupported(node.name, node.op, node.domain, reason)
    return replace(refusal, remedy=remedy) if remedy else refusal


def _remedy(node: Node) -> str:
    if is_a(node, ELEMENTWISE):
        return "only functions of one value and the listed binary operators are lowered"
    if not node.domain and not onnx.defs.has(node.op):
        return "it is no operator of ONNX: export the model without the tool that wrote it, or cut it away"
    return "see docs/SUPPORTED_OPS.md, or replace it before exporting"
