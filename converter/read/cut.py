"""Cut a model at tensors: keep what computes the wanted outputs from the wanted inputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from fadiff.converter.errors import ModelError
from fadiff.converter.names import did_you_mean, printable
from fadiff.converter.read.dimensions import check_names, dimension_names, pin_known
from fadiff.converter.read.validate import without_large_constants


@dataclass(frozen=True)
class Cut:
    """Tensors of the file's main graph; empty: as in the file."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.inputs or self.outputs)

    def __str__(self) -> str:
        """As options of the command line."""
        parts = (("--inputs", self.inputs), ("--outputs", self.outputs))
        return " ".join(f"{option} {','.join(names)}" for option, names in parts if names)


def cut_model(path: Path, model: onnx.ModelProto, cut: Cut, dims: Mapping[str, int]) -> dict[str, int]:
    """Make `cut` the inputs and outputs of a model, in place; nothing that they do not need stays.

    Args:
        path: for messages.
        model: just read, its shapes not yet pinned.
        cut: where; a tensor that becomes an input gets the shape that `dims` and shape inference give it.
        dims: as `--dim`.

    Returns:
        The `dims` that still have a meaning.

    Raises:
        ModelError: a tensor that is not there, outputs that need other inputs, an input without a shape.
    """
    graph = model.graph
    check_names(path, model, dims)
    constants = {tensor.name for tensor in graph.initializer}
    computed = {value for node in graph.node for value in node.output if value}
    given = {value.name for value in graph.input} - constants
    for option, names in (("--inputs", cut.inputs), ("--outputs", cut.outputs)):
        _check_tensors(path, option, names, computed | given)
    wanted = cut.outputs or tuple(value.name for value in graph.output)
    needed = needed_nodes(graph, wanted, cut.inputs)
    read = {value for node in needed for value in read_by(node)} | set(wanted)
    missing = (read & given) - set(cut.inputs) if cut.inputs else set()
    if missing:
        every = [*cut.inputs, *(value.name for value in graph.input if value.name in missing)]
        raise ModelError(
            f"{path}: --inputs {','.join(cut.inputs)}: the outputs also need {', '.join(sorted(missing))}; "
            f"cut behind it, or name it too: --inputs {','.join(every)}"
        )
    unused = sorted(set(cut.inputs) - read)
    if unused:
        raise ModelError(f"{path}: --inputs {','.join(unused)}: no output depends on it; leave it out")
    inputs = [_described(path, model, name, dims) for name in _new_inputs(cut, graph, read)]
    outputs = [_found(graph.output, name) or onnx.ValueInfoProto(name=name) for name in wanted]
    first = {node.output[0] for node in needed}
    _keep(graph.node, lambda node: node.output[0] in first)
    _keep(graph.initializer, lambda tensor: tensor.name in read)
    _keep(graph.input, lambda value: value.name in constants & read)
    graph.input.extend(inputs)
    del graph.output[:]
    graph.output.extend(outputs)
    known = dimension_names(model)
    return {name: size for name, size in dims.items() if name in known}


def needed_nodes(
    graph: onnx.GraphProto, outputs: Iterable[str], inputs: Collection[str] = ()
) -> list[onnx.NodeProto]:
    """The nodes that compute `outputs`, in order, without those before `inputs`."""
    producer = {value: i for i, node in enumerate(graph.node) for value in node.output if value}
    found: set[int] = set()
    pending = list(outputs)
    while pending:
        name = pending.pop()
        index = producer.get(name)
        if name not in inputs and index is not None and index not in found:
            found.add(index)
            pending.extend(read_by(graph.node[index]))
    return [graph.node[i] for i in sorted(found)]


def read_by(node: onnx.NodeProto) -> set[str]:
    """The values that a node reads, also from within its subgraphs."""
    names = {name for name in node.input if name}
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            inside = {value for inner in body.node for value in inner.output}
            inside |= {value.name for value in (*body.input, *body.initializer)}
            outside = {value for inner in body.node for value in read_by(inner)}
            names |= (outside | {value.name for value in body.output}) - inside
    return names


def _check_tensors(path: Path, option: str, names: Sequence[str], known: set[str]) -> None:
    for name in names:
        if name not in known:
            advice = printable(did_you_mean(name, known, most=3)) or "see inspect --cuts"
            raise ModelError(
                f"{path}: {option} {printable(name)}: the graph has no tensor of this name; {advice}"
            )
    if len(set(names)) != len(names):
        raise ModelError(f"{path}: {option} {','.join(names)}: a tensor is named twice; name it once")


def _new_inputs(cut: Cut, graph: onnx.GraphProto, read: set[str]) -> list[str]:
    constants = {tensor.name for tensor in graph.initializer}
    return list(cut.inputs) or [v.name for v in graph.input if v.name in read and v.name not in constants]


def _described(path: Path, model: onnx.ModelProto, name: str, dims: Mapping[str, int]) -> onnx.ValueInfoProto:
    """Type and shape of a value that is to be an input."""
    there = _found(model.graph.input, name)
    if there is not None:
        return there
    light = without_large_constants(model)
    pin_known(path, light, dims)
    declared = [*model.graph.value_info, *model.graph.output]
    for look in (_inferred(light, data_prop=False), _inferred(light, data_prop=True), declared):
        value = _found(look, name)
        if value is not None and value.type.tensor_type.HasField("shape"):
            return value
    raise ModelError(
        f"{path}: --inputs {name}: neither the file nor shape inference tells its shape; run ONNX shape "
        "inference on the model first, or cut at another tensor"
    )


def _found(values: Iterable[onnx.ValueInfoProto], name: str) -> onnx.ValueInfoProto | None:
    """A copy of the entry of this name: fields are emptied before they are filled again."""
    for value in values:
        if value.name == name:
            copy = onnx.ValueInfoProto()
            copy.CopyFrom(value)
            return copy
    return None


def _inferred(light: onnx.ModelProto, *, data_prop: bool) -> list[onnx.ValueInfoProto]:
    try:
        graph = onnx.shape_inference.infer_shapes(light, data_prop=data_prop).graph
    except Exception:  # the file may still say it
        return []
    return [*graph.value_info, *graph.output]


def _keep(field: Any, wanted: Callable[[Any], bool]) -> None:
    """Delete from a repeated field what is not wanted, without copying the rest."""
    for i in reversed(range(len(field))):
        if not wanted(field[i]):
            del field[i]
