"""Read an ONNX file into memory and pin its shapes: everything that can be wrong with the file."""

from __future__ import annotations

import ast
import graphlib
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

import onnx
import onnx.inliner
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx.external_data_helper import load_external_data_for_model

from fadiff.converter.errors import ModelError
from fadiff.converter.ir.recurrence import State
from fadiff.converter.ir.stored import StoredWeights, store_weights
from fadiff.converter.names import free_name, printable
from fadiff.converter.read.cut import Cut, cut_model, read_by
from fadiff.converter.read.dimensions import check_names, pin_dimensions
from fadiff.converter.read.external_data import slim_content
from fadiff.converter.read.growing import fix_caches
from fadiff.converter.read.opsets import declare_opset
from fadiff.converter.read.validate import check_model, check_sizes
from fadiff.converter.read.workloads import draw_weights

_SCOPES = "pkg.torch.onnx.name_scopes"  # written by torch.onnx: module paths, outermost first
_IR_VERSION_TAG = 0x08  # first byte of every serialised ModelProto: field 1 (ir_version), varint


_WHOLE = Cut()


def load_model(
    path: Path,
    dims: Mapping[str, int],
    cut: Cut = _WHOLE,
    given: Collection[str] = (),
    context: int | None = None,
) -> tuple[onnx.ModelProto, StoredWeights, tuple[State, ...]]:
    """The model with its external data inlined and every input dimension a number.

    Large weights of a large model stay where they are: these are inputs of the graph, and come second; third
    are caches that `context` gave a fixed size.

    Args:
        path: the .onnx file.
        dims: sizes of symbolic dimensions, by dim_param, or by `input.axis` where it has no name; values
            of integer inputs with one element (a sampling rate that an If asks for), by input.
        cut: tensors that become inputs and outputs.
        given: inputs that there is data for: no weights (converter/read/workloads.py).
        context: rows of caches that grow in the file (converter/read/growing.py).

    Raises:
        ModelError: unreadable, truncated or non-ONNX file, parts that contradict each other, external data
            that is missing or lies elsewhere, a cut where there is no tensor, a symbolic dimension that
            `dims` does not bind, or a value that no memory holds.
    """
    model = named_model(path, given)
    if cut:
        dims = cut_model(path, model, cut, dims)
    weights = store_weights(path, model)
    _load_external_data(path, model)
    caches: tuple[State, ...] = ()
    if context is not None:
        check_names(path, model, dims)
        model, dims, caches = fix_caches(path, model, dims, context, compare=not weights)
    pin_dimensions(path, model, dims)
    model = onnx.inliner.inline_local_functions(model) if model.functions else model
    declare_opset(model)
    check_sizes(path, model)
    return model, weights, caches


def named_model(path: Path, given: Collection[str] = ()) -> onnx.ModelProto:
    """The model in a file, without external data; every node has a name of its own.

    Raises:
        ModelError: unreadable, truncated or non-ONNX file, parts that contradict each other.
    """
    model = _parse(path)
    draw_weights(path, model, given)
    check_model(path, model)
    for opset in model.opset_import:
        opset.domain = "" if opset.domain == "ai.onnx" else opset.domain
    _drop_repeated_constants(path, model)
    _sort_nodes(path, model)
    _name_by_module(model)
    _name_the_rest(model)
    return model


def _parse(path: Path) -> onnx.ModelProto:
    try:
        content = slim_content(path) or path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot read the model: {error.strerror}; check the path") from error
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        if content[:1] == bytes([_IR_VERSION_TAG]):
            raise ModelError(
                f"{path}: the ONNX file is truncated or damaged after {len(content)} bytes; "
                "copy or export it again"
            ) from error
        raise ModelError(f"{path}: not an ONNX file; export the model to ONNX first") from error
    if not model.ir_version or not model.HasField("graph"):
        raise ModelError(f"{path}: not an ONNX model (no graph in it); export the model to ONNX first")
    if not model.graph.output:
        raise ModelError(f"{path}: the graph has no outputs; export the model again with its outputs")
    return model


def _drop_repeated_constants(path: Path, model: onnx.ModelProto) -> None:
    """Leave out Constant nodes that say again what an earlier one of the same output says.

    Raises:
        ModelError: a value that two nodes compute.
    """
    made: dict[str, onnx.NodeProto] = {}
    kept = []
    for node in model.graph.node:
        before = next((made[value] for value in node.output if value in made), None)
        if before is None:
            kept.append(node)
            made.update((value, node) for value in node.output if value)
        elif (before.op_type, list(before.attribute)) != ("Constant", list(node.attribute)):
            value = next(value for value in node.output if value in made)
            raise ModelError(
                f"{path}: two nodes compute {printable(value)} ({before.op_type} {before.name} and another "
                f"{node.op_type}); export the model again"
            )
    del model.graph.node[:]
    model.graph.node.extend(kept)


def _sort_nodes(path: Path, model: onnx.ModelProto) -> None:
    """Put the nodes of the main graph in topological order, where a file has them in another.

    Raises:
        ModelError: nodes that need each other's results.
    """
    nodes = list(model.graph.node)
    makers = {value: i for i, node in enumerate(nodes) for value in node.output if value}
    needs = {i: {makers[v] for v in read_by(node) if v in makers} for i, node in enumerate(nodes)}
    if all(before < i for i, needed in needs.items() for before in needed):
        return
    try:
        order = list(graphlib.TopologicalSorter(needs).static_order())
    except graphlib.CycleError as error:
        named = ", ".join(dict.fromkeys(nodes[i].name or nodes[i].op_type for i in error.args[1]))
        raise ModelError(
            f"{path}: nodes {named} need each other's results; export the model again"
        ) from error
    del model.graph.node[:]
    model.graph.node.extend(nodes[i] for i in order)


def _name_by_module(model: onnx.ModelProto) -> None:
    """Name nodes after the PyTorch module they came from (`layer1.0.conv1.Conv`), where the file says so."""
    taken = {node.name for node in model.graph.node}
    for node in model.graph.node:
        scopes = next((p.value for p in node.metadata_props if p.key == _SCOPES), "")
        try:
            path = [scope for scope in ast.literal_eval(scopes)[:-1] if scope] if scopes else []
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            path = []
        if not path:
            continue
        node.name = free_name(printable(f"{path[-1]}.{node.op_type}"), taken)
        taken.add(node.name)


def _name_the_rest(model: onnx.ModelProto) -> None:
    """Nodes without a name, or of another's name, are called after what they do."""
    taken = {node.name for node in model.graph.node}
    seen: set[str] = set()
    numbers: Counter[str] = Counter()
    for node in model.graph.node:
        wanted = name = node.name or printable(node.op_type)
        while name in seen or (name != node.name and name in taken):
            numbers[wanted] += 1
            name = f"{wanted}_{numbers[wanted]}"
        seen.add(name)
        node.name = name


def _load_external_data(path: Path, model: onnx.ModelProto) -> None:
    try:
        load_external_data_for_model(model, str(path.parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(f"{path}: cannot read external data: {' '.join(str(error).split())}") from error
