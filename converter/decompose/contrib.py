"""ONNX Runtime's own operators (com.microsoft) replaced by their bodies; why, where that is not possible.

What its exporters, quantisers and optimisers leave in files; pages of their families end with the records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import onnx
from onnx import NodeProto, numpy_helper

from fadiff.converter.decompose import attention, foreign, grouped, learned, norms, quantised
from fadiff.converter.decompose.nodes import LEARNING, MICROSOFT, Function, Nodes
from fadiff.converter.errors import Unsupported
from fadiff.converter.ir.edit import Editor
from fadiff.converter.ir.program import Node, Program, program_of, static_shapes
from fadiff.converter.read.fold import constant_tensors, fold_sizes
from fadiff.converter.read.opsets import opset_of
from fadiff.converter.read.runtime import open_session, session_options

_PAGES = (attention, foreign, grouped, learned, norms, quantised)
FUNCTIONS: tuple[Function, ...] = tuple(record for page in _PAGES for record in page.FUNCTIONS)
"""Every operator with a body, each on its family's page."""

_LAID_OUT = (
    "is laid out for one kind of processor",
    "save the model with graph_optimization_level ORT_ENABLE_EXTENDED, or before optimising",
)
_TRAINING = ("is for training", "export the model for inference")
_PROCESSING = ("reads or writes files, or works on text or sound", "do this step outside of the model")
_GENERATES = (
    "generates a sequence by a search",
    "convert the decoder model in its attribute, with the weights that it reads from outside, on its own",
)

REFUSED: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("NhwcConv", "NhwcFusedConv", "NhwcMaxPool", "QLinearConv"), _LAID_OUT),
    **dict.fromkeys(("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"), _GENERATES),
    **dict.fromkeys(("ConcatTraining", "Recv", "Send", "SoftmaxCrossEntropyLossGrad"), _TRAINING),
    "DecoderMaskedMultiHeadAttention": (
        "reads and writes a cache at a place that is computed at run time",
        "export the model with MultiHeadAttention or GroupQueryAttention",
    ),
    "ZipMap": ("makes dictionaries", "leave it out: skl2onnx's options={'zipmap': False}"),
}
"""Operators that are refused on purpose: why, and what the user can do about it."""

REFUSED_DOMAINS: Mapping[str, tuple[str, str]] = {
    "com.microsoft.nchwc": _LAID_OUT,
    "com.ms.internal.nhwc": _LAID_OUT,
    LEARNING: (
        "is no neural network operator",
        "do this step outside of the model",
    ),
    "ai.onnx.contrib": _PROCESSING,
    "com.microsoft.extensions": _PROCESSING,
    "ai.onnx.training": _TRAINING,
    "ai.onnx.preview.training": _TRAINING,
}
"""The same, of whole domains."""

_BY_NAME = {(entry.domain, entry.op): entry for entry in FUNCTIONS}
_REMEDY = "save the model before ONNX Runtime's optimiser, or without this fusion"


@dataclass(frozen=True)
class Expansion:
    """Operators that were written as standard ones, and nodes that were not, with the reason."""

    done: tuple[str, ...] = ()
    refused: Mapping[str, Unsupported] = field(default_factory=dict)
    """By the name of the node."""


def is_contrib(node: NodeProto) -> bool:
    """Whether a node is of another domain than ONNX's, or was once."""
    return bool(_domain(node)) or ("", node.op_type) in _BY_NAME


def expand_contrib(model: onnx.ModelProto) -> tuple[onnx.ModelProto, Expansion]:
    """The model with contrib operators of the main graph replaced."""
    graph = model.graph
    calls = [node for node in graph.node if (_domain(node), node.op_type) in _BY_NAME]
    shapes = _shapes(model, [*calls, *(node for node in graph.node if node.op_type == "Shape")])
    fold_sizes(model, shapes)  # total_sequence_length is what its mask has of them
    names: set[str] = set()
    for node in graph.node:
        if is_contrib(node) and (not node.name or node.name in names):
            node.name = f"{node.op_type}.{node.output[0]}"
        names.add(node.name)
    constants = {name: numpy_helper.to_array(tensor) for name, tensor in constant_tensors(graph).items()}
    program = replace(program_of(model), constants=constants, shapes=shapes)
    edit, done, refused = Editor(model), set[str](), dict[str, Unsupported]()
    for node in program.nodes:
        entry = _BY_NAME.get((node.domain, node.op))
        problem = _refusal(entry, program, node)
        if problem is not None:
            refused[node.name] = problem
        elif entry is not None:
            place = edit.node(node)
            entry.write(Nodes(edit, place, opset_of(model)), program, node)
            edit.remove(place)
            done.add(entry.op)
    return edit.model(), Expansion(tuple(sorted(done)), refused)


def _refusal(entry: Function | None, program: Program, node: Node) -> Unsupported | None:
    if entry is not None:
        why = entry.refuses(program, node)
        return Unsupported(node.name, node.op, node.domain, why, _REMEDY) if why else None
    of_op = REFUSED.get(node.op) if node.domain in (MICROSOFT, LEARNING) else None
    reason = of_op or REFUSED_DOMAINS.get(node.domain)
    return Unsupported(node.name, node.op, node.domain, *reason) if reason else None


def _domain(node: NodeProto) -> str:
    return "" if node.domain == "ai.onnx" else str(node.domain)


def _shapes(model: onnx.ModelProto, calls: Iterable[NodeProto]) -> dict[str, tuple[int, ...]]:
    """Static shapes of what contrib operators read, as ONNX Runtime infers them: it knows these operators."""
    found = static_shapes(model.graph, model.graph.input)
    computed = {value for node in model.graph.node for value in node.output if value}
    wanted = {value for node in calls for value in node.input if value in computed}
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC"):  # (folded, more shapes are known; but it may fail)
        wanted -= found.keys()
        found |= _shapes_of(model, wanted, level) if wanted else {}
    return found


def _shapes_of(model: onnx.ModelProto, wanted: Collection[str], level: str) -> dict[str, tuple[int, ...]]:
    """Static shapes of some computed values in ONNX Runtime, at a level of its optimiser.

    It gives a scalar the shape [], and a value of which it knows no rank, too: neither is told here.
    """
    asked = onnx.ModelProto()
    asked.CopyFrom(model)
    given = {value.name for value in asked.graph.output}
    asked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(set(wanted) - given))
    try:
        session = open_session(asked, session_options(level))
    except Exception:  # what it cannot load either: operators that need shapes say so
        return {}
    return {
        value.name: tuple(value.shape)
        for value in session.get_outputs()
        if value.name in wanted and value.shape and all(isinstance(size, int) for size in value.shape)
    }
