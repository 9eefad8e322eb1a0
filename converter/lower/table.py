"""The registry: every operator the front end knows, once, with its limits, and those refused on purpose.

`OPERATORS` are the records of all pages.  docs/SUPPORTED_OPS.md is generated from them and from the
docstrings of the constraint functions that they list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import onnx
import onnx.inliner
import onnx.shape_inference

from fadiff.converter import decompose
from fadiff.converter.errors import Unsupported
from fadiff.converter.ir.graph import ElementType
from fadiff.converter.ir.kinds import ELEMENTWISE, Kind, named
from fadiff.converter.ir.operators import is_a
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.lower import constraints as limits
from fadiff.converter.lower import elementwise, images, matmul, movement, products, rows
from fadiff.converter.lower.constraints import Constraint, Operator
from fadiff.converter.lower.functions import has_formula
from fadiff.converter.plan.plan import Step
from fadiff.converter.read.opsets import opset_of

_CUT = "cut the model before its post-processing"
_HOST = "do this step outside of the model"

_SEQUENCES = " ".join(sorted(named(Kind.SEQUENCE)))
_REFUSED = {
    "If": (
        "its condition is computed at run time",
        "give the input that decides it a value (--dim NAME=VALUE), or export one branch",
    ),
    "Loop": (
        "is a loop whose trip count is not constant",
        "give the input that decides it a value (--dim NAME=VALUE), or export the model with it unrolled",
    ),
    "Scan": ("is a loop", "export the model with its loop unrolled, or with LSTM or GRU nodes"),
    f"SequenceMap {_SEQUENCES} Optional OptionalGetElement OptionalHasElement": (
        "works on sequences or optional values",
        _HOST,
    ),
    "NonMaxSuppression NonZero Unique": ("the size of its result depends on the data", _CUT),
    "MaxUnpool": ("writes pixels at computed positions", "replace it by Resize or ConvTranspose"),
    "RoiAlign MaxRoiPool DeformConv GridSample AffineGrid": ("reads pixels at computed positions", _CUT),
    "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Bernoulli Multinomial": (
        "draws random numbers",
        "give the random numbers as an input",
    ),
    "Adagrad Adam Gradient Momentum": ("is for training", "export the model for inference"),
    "LabelEncoder RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer": (
        "works on strings",
        _HOST,
    ),
    "DFT MelWeightMatrix": ("is a spectral transform", _HOST),
    "ImageDecoder": ("decodes image files", _HOST),
    "ConvInteger MatMulInteger": (
        "multiplies by integer weights that are no constants",
        "convert the float model",
    ),
    "BitCast": ("reads bits as another type", _HOST),
}
REFUSED: Mapping[str, tuple[str, str]] = {op: why for ops, why in _REFUSED.items() for op in ops.split()}
"""By operator: the reason, and the remedy."""

FOLDED = named(Kind.SIZE | Kind.CONSTANT)
"""Folded where their inputs are constant or have static shapes: there is no layer for them."""


_PAGES = (elementwise, images, matmul, movement, products, rows)
OPERATORS: tuple[Operator, ...] = tuple(record for page in _PAGES for record in page.OPERATORS)
"""Those that are lowered, each on its family's page."""
_BY_NAME = {record.op: record for record in OPERATORS}


FOR_ALL: tuple[Constraint, ...] = (limits.static_shape, limits.not_empty)
"""Constraints that every operator obeys."""


def find(node: Node) -> Operator | None:
    """The record of a node's operator, None when unknown."""
    return None if node.domain else _BY_NAME.get(node.op)


KNOWN = named(ELEMENTWISE) | _BY_NAME.keys() | decompose.WRITTEN
"""Standard operators that are in one of the tables or element-wise, in any opset."""


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
        node = Node(proto.name or f"{proto.op_type}_{i}", proto.op_type, domain, 0, (), (), {}, proto)
        is_constant = all(value in constants for value in proto.input)  # folded, if it can be
        if not is_constant and not _is_supported(node):
            found.append(refused.get(proto.name) or _unknown(node))
    return tuple(found)


def cannot_load(problem: Unsupported) -> bool:
    """Whether nothing could be loaded with this operator, or the shapes behind it would be unknown."""
    known = not problem.domain and onnx.defs.has(problem.op)
    return not known or (problem.op in named(Kind.CONTROL) and not problem.domain)


def _is_supported(node: Node) -> bool:
    if node.domain == "":
        return node.op in KNOWN | FOLDED
    return is_a(node, ELEMENTWISE)


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


_DEEPEST = 4  # definitions made of operators that have definitions
_FOLDED = frozenset(("Range",))
"""Folded by ONNX Runtime where their inputs are constant: their definitions are loops."""
_NO_TYPE = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
_ALWAYS = frozenset(("CastLike", "Swish"))
"""Element-wise, but unknown to ONNX Runtime, or with a type that only another value tells."""


def expand_functions(model: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """The model with such operators expanded, and their names."""
    opset = opset_of(model)
    expanded: list[str] = []
    for _ in range(_DEEPEST):
        wanted = sorted({node.op_type for node in model.graph.node if _is_expandable(node, opset)})
        wanted = [op for op in wanted if op not in expanded]
        if not wanted:
            break
        for i, node in enumerate(model.graph.node):
            node.name = node.name or f"{node.op_type}_{i}"
        for op in wanted:
            model = _expanded(model, op)
        expanded += wanted
    left = {node.op_type for node in model.graph.node}
    return model, tuple(op for op in expanded if op not in left)


def _expanded(model: onnx.ModelProto, op: str) -> onnx.ModelProto:
    opset = opset_of(model)
    try:
        for node in model.graph.node:
            if node.op_type == op:
                _spell_defaults(node, onnx.defs.get_schema(op, opset))
        typed = _with_types(model)
        return onnx.inliner.inline_selected_functions(typed, [("", op)], inline_schema_functions=True)
    except Exception:  # no body for these types: the operator is refused by name later
        return model


def _spell_defaults(node: onnx.NodeProto, schema: onnx.defs.OpSchema) -> None:
    """The inliner does not look at default values of attributes."""
    given = {attribute.name for attribute in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.name:
            node.attribute.append(attribute.default_value)


def _with_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """The inliner picks a function body by the types of values, and does not look at initializers."""
    typed = onnx.shape_inference.infer_shapes(model)
    known = {value.name for value in (*typed.graph.input, *typed.graph.value_info, *typed.graph.output)}
    typed.graph.value_info.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in typed.graph.initializer
        if tensor.name not in known
    )
    # absent inputs in front of others need a type, too (Attention with past keys, without a mask)
    typed.graph.value_info.append(onnx.ValueInfoProto(name="", type=_NO_TYPE))
    return typed


def _is_expandable(node: onnx.NodeProto, opset: int) -> bool:
    if node.domain not in ("", "ai.onnx") or not onnx.defs.has(node.op_type) or node.op_type in _FOLDED:
        return False
    # statistics of a LayerNormalization beside its result: only the definition computes them
    statistics = node.op_type == "LayerNormalization" and len([v for v in node.output if v]) > 1
    # newer than what ONNX Runtime quantises: only the definition is in its opsets
    has_order = node.op_type == "SpaceToDepth" and any(a.name == "mode" for a in node.attribute)
    spelled = statistics or has_order or node.op_type in _ALWAYS
    if node.op_type in KNOWN and not spelled:
        return False
    try:
        schema = onnx.defs.get_schema(node.op_type, opset)
    except onnx.defs.SchemaError:  # of a later opset: ONNX Runtime writes LayerNormalization in any
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)  # type: ignore[attr-defined]
