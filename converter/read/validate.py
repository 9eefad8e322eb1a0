"""The door: what a file must hold before anything is computed from it, and whose fault a later failure is.

Files come from anywhere.  `check_model` walks through every part of a model once; what it lets pass may
still be no valid ONNX (an axis that is not there): `judged_by_onnx` asks ONNX and ONNX Runtime for that
when a step behind the door has failed, so that no step needs handlers of its own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import onnx
from google.protobuf.message import Message  # type: ignore[import-untyped]
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper

from fadiff.converter.errors import ModelError, UnsupportedError
from fadiff.converter.names import printable
from fadiff.converter.read.external_data import check_external_data
from fadiff.converter.read.opsets import opset_of
from fadiff.converter.read.runtime import NOT_OPTIMISED, open_session, session_options, what_it_says

MOST_ELEMENTS = 2**30
"""Most elements of one value: four gigabytes of floats, more than such accelerators are given."""
_AGAIN = "export the model again"
_STANDARD = ("", "ai.onnx")
_BITS = {
    **dict.fromkeys((TensorProto.UINT4, TensorProto.INT4, TensorProto.FLOAT4E2M1), 4),
    **{getattr(TensorProto, name): 2 for name in ("UINT2", "INT2") if hasattr(TensorProto, name)},
}
"""Element types of less than a byte."""
_PAIRS = (TensorProto.COMPLEX64, TensorProto.COMPLEX128)
_POSITIVE = ("dilations", "group", "kernel_shape", "strides")
"""Attributes whose integers are one or more, in every operator that has them."""
_FREE_TEXT = ("doc_string", "metadata_props")
_BODIES = {"If": ("then_branch", "else_branch"), "Loop": ("body",), "Scan": ("body",)}

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def check_model(path: Path, model: onnx.ModelProto) -> None:
    """Refuse a model whose parts contradict each other; names of nodes become printable.

    Checked are names and texts, element types, tensors against their data (external data is looked at,
    not read), and nodes against the schemas of their operators.

    Raises:
        ModelError: the first fault, with its place.
    """
    _Door(path, opset_of(model)).message(model, "the model")


def check_sizes(path: Path, model: onnx.ModelProto) -> None:
    """Refuse a model with a value that no memory holds.

    Shapes are inferred without the large constants.  What shape inference does not find is not checked.

    Raises:
        ModelError: the first such value.
    """
    graph = _inferred(model).graph
    for value in (*graph.input, *graph.value_info, *graph.output):
        sizes = [max(dim.dim_value, 1) for dim in value.type.tensor_type.shape.dim]
        if math.prod(sizes) > MOST_ELEMENTS:
            shape = " x ".join(map(str, sizes))
            raise ModelError(
                f"{path}: {value.name} has {shape} elements, more than memory can be asked to hold "
                f"(2^{MOST_ELEMENTS.bit_length() - 1}); give smaller --dim sizes, or export a smaller model"
            )


def judged_by_onnx(
    convert: Callable[Concatenate[str | Path, Parameters], Result],
) -> Callable[Concatenate[str | Path, Parameters], Result]:
    """A conversion that says so where it fails because the model in the file is not valid.

    An error that is no refusal is a bug of ours, unless ONNX and ONNX Runtime do not take the file either.
    """

    def judged(path: str | Path, /, *arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        try:
            return convert(path, *arguments, **options)
        except (MemoryError, OSError, UnsupportedError):
            raise
        except ModelError as error:
            if str(path) in str(error):
                raise
            raise ModelError(f"{path}: {error}") from error
        except Exception as error:
            fault = _fault(Path(path))
            if not fault:
                raise
            raise ModelError(f"{path}: the model is not valid: {fault}; {_AGAIN}") from error

    functools.update_wrapper(judged, convert)
    return judged


def _fault(path: Path) -> str:
    """The fault that ONNX or ONNX Runtime finds in a file, empty if both take it."""
    checks: Sequence[Callable[[], object]] = (
        lambda: open_session(path, session_options(NOT_OPTIMISED)),
        lambda: onnx.shape_inference.infer_shapes(
            onnx.load(path, load_external_data=False), check_type=True, strict_mode=True
        ),
    )
    for check in checks:
        try:
            check()
        except Exception as error:
            return what_it_says(error)
    return ""


def without_large_constants(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy to infer shapes with: its large constants are inputs."""
    light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    light.graph.CopyFrom(GraphProto(name="g", node=model.graph.node, input=model.graph.input))
    light.graph.output.extend(onnx.ValueInfoProto(name=value.name) for value in model.graph.output)
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= _SMALL:
            light.graph.initializer.append(tensor)
        else:
            light.graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    light.functions.extend(model.functions)
    return light


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    light = without_large_constants(model)
    try:
        return onnx.shape_inference.infer_shapes(light)  # (data_prop would compute what a Range says)
    except Exception:  # a model that it cannot work on is refused when it must
        return light


_SMALL = 64
"""Elements of constants that may be shapes."""


class _Door:
    """Walks through all parts of a model; what it was told last tells people where."""

    def __init__(self, path: Path, opset: int) -> None:
        self.path = path
        self.opset = opset
        self.scopes: list[set[str]] = []
        """Values by name of the graphs around, outermost first."""

    def message(self, message: Message, place: str) -> None:
        """One part and all parts of it."""
        if isinstance(message, TensorProto):
            self.tensor(message, place)
            return
        if isinstance(message, GraphProto):
            self.defined(message)
            self.scopes.append(_values(message))
        if isinstance(message, NodeProto):
            self.named(message.name, "the name of a node")
            message.name = printable(message.name)
            place = f"node {message.name or printable(message.op_type)}"
        for field, content in message.ListFields():
            parts = [content] if isinstance(content, Message | str | bytes) else content
            if field.type == field.TYPE_STRING:
                for text in parts:
                    self.text(text, field.name, place, label=isinstance(message, NodeProto))
            elif field.type == field.TYPE_MESSAGE and field.name not in _FREE_TEXT:
                for part in parts:
                    self.message(part, place)
        if isinstance(message, GraphProto):
            self.scopes.pop()
        elif isinstance(message, NodeProto) and message.domain in _STANDARD:
            self.node(message, place)
        elif isinstance(message, onnx.TypeProto.Tensor) and message.elem_type not in _TYPES:
            self.refuse(place, f"element type {message.elem_type} is none of ONNX")

    def defined(self, graph: GraphProto) -> None:
        """Every value that is read is an input, a constant or computed, here or in a graph around."""
        known = _values(graph).union(*self.scopes)
        for node in graph.node:
            for value in node.input:
                if value and value not in known:
                    named = node.name or node.op_type
                    self.refuse(f"node {printable(str(named))}", f"nothing computes {printable(str(value))}")

    def text(self, text: str | bytes, field: str, place: str, *, label: bool) -> None:
        """A name; those of nodes were made printable, and free text is shown to nobody."""
        self.named(text, f"a text ({field})", place)
        if field not in _FREE_TEXT and not (label and field == "name") and printable(str(text)) != text:
            self.refuse(
                place, f"the name {printable(str(text))} has characters that rule terminals; rename it"
            )

    def named(self, text: str | bytes, what: str, place: str = "the model") -> None:
        """protobuf leaves text that is not UTF-8 as bytes."""
        if isinstance(text, bytes):
            self.refuse(place, f"{what} is not UTF-8")

    def tensor(self, tensor: TensorProto, place: str) -> None:
        """A constant: its type, its sizes, and as much data as these say."""
        self.named(tensor.name, "the name of a constant", place)
        what = f"initializer {printable(tensor.name)}" if tensor.name else f"a constant of {place}"
        if tensor.data_type not in _TYPES or tensor.data_type == TensorProto.UNDEFINED:
            self.refuse(what, f"element type {tensor.data_type} is none of ONNX")
        if any(size < 0 for size in tensor.dims):
            self.refuse(what, f"has a negative size ({list(tensor.dims)})")
        if tensor.HasField("segment"):
            self.refuse(what, "is stored in segments")
        elements = math.prod(tensor.dims)
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        bits = _BITS.get(tensor.data_type, 8 * dtype.itemsize)
        nbytes = -(-elements * bits // 8)
        if tensor.data_location == TensorProto.EXTERNAL:
            check_external_data(self.path, tensor, nbytes)
            return
        if tensor.HasField("raw_data"):
            needed, found, unit = nbytes, len(tensor.raw_data), "bytes"
        else:
            entries = -(-elements * bits // 8) if bits < 8 else elements * (1 + (tensor.data_type in _PAIRS))
            data = getattr(tensor, helper.tensor_dtype_to_field(tensor.data_type))
            needed, found, unit = entries, len(data), "numbers"
        if found != needed:
            self.refuse(what, f"has {found} {unit}, its sizes {list(tensor.dims)} need {needed}")
        for text in tensor.string_data:
            self.utf8(text, what)

    def node(self, node: NodeProto, place: str) -> None:
        """A standard operator with the inputs and attributes that its schema asks for."""
        for attribute in node.attribute:
            if attribute.type not in _ATTRIBUTES:
                self.refuse(place, f"attribute {printable(attribute.name)} has no type")
            if attribute.name in _POSITIVE and any(n < 1 for n in (*attribute.ints, *_single(attribute))):
                self.refuse(place, f"{attribute.name} of {node.op_type} is less than one")
            for text in (attribute.s, *attribute.strings):
                self.utf8(text, place)
        if node.op_type == "Constant" and len(node.attribute) != 1:
            self.refuse(place, "a Constant has one attribute, its value")
        try:
            schema = onnx.defs.get_schema(node.op_type, self.opset)
        except onnx.defs.SchemaError:
            return  # refused by name, where nothing expands it
        if len(node.input) < schema.min_input or len(node.output) < schema.min_output:
            self.refuse(
                place,
                f"{node.op_type} needs {schema.min_input} inputs and {schema.min_output} outputs, "
                f"it has {len(node.input)} and {len(node.output)}",
            )
        for value, formal in zip(node.input, schema.inputs, strict=False):
            if not value and formal.option == onnx.defs.OpSchema.FormalParameterOption.Single:
                self.refuse(place, f"{node.op_type} needs its input {formal.name}")
        given = {attribute.name: attribute for attribute in node.attribute}
        for name, wanted in schema.attributes.items():
            if name not in given and wanted.required:
                self.refuse(place, f"{node.op_type} needs an attribute {name}")
            kind = int(wanted.type)  # type: ignore[call-overload]
            if name in given and given[name].type != kind:
                self.refuse(place, f"attribute {name} of {node.op_type} has another type than ONNX gives it")
        counted = given.get("num_outputs") if "num_outputs" in schema.attributes else None
        if counted is not None and counted.i != len(node.output):  # (shape inference of onnx aborts on it)
            self.refuse(place, f"num_outputs is {counted.i}, but it has {len(node.output)} outputs")
        if node.op_type in _BODIES:
            self.bodies(node, given, place)

    def bodies(self, node: NodeProto, given: dict[str, AttributeProto], place: str) -> None:
        """Control flow: as many values go in and come out as the node has."""
        inputs, outputs = len(node.input), len(node.output)
        for name in _BODIES[node.op_type]:
            body = given[name].g
            if node.op_type == "If":
                fits = len(body.output) == outputs
            elif node.op_type == "Loop":
                states = inputs - 2
                fits = len(body.input) == 2 + states and len(body.output) == 1 + outputs
                fits = fits and outputs >= states
            else:
                scanned = given["num_scan_inputs"].i
                fits = 0 < scanned <= inputs == len(body.input) and len(body.output) == outputs
                fits = fits and outputs >= inputs - scanned
            if not fits:
                self.refuse(place, f"{node.op_type} and its {name} have not the same values in and out")

    def utf8(self, text: bytes, place: str) -> None:
        """A byte string that ONNX says is text."""
        try:
            text.decode()
        except UnicodeDecodeError:
            self.refuse(place, "a text is not UTF-8")

    def refuse(self, place: str, what: str) -> Any:
        """The one way out."""
        raise ModelError(f"{self.path}: {place}: {what}; {_AGAIN}")


def _values(graph: GraphProto) -> set[str]:
    """Names of inputs, constants and computed values of a graph."""
    sparse = (tensor.values for tensor in graph.sparse_initializer)
    return {
        *(value.name for value in graph.input),
        *(tensor.name for tensor in (*graph.initializer, *sparse)),
        *(value for node in graph.node for value in node.output),
    }


def _single(attribute: AttributeProto) -> tuple[int, ...]:
    return (attribute.i,) if attribute.type == AttributeProto.INT else ()


_TYPES = frozenset(TensorProto.DataType.values())
_ATTRIBUTES = frozenset(AttributeProto.AttributeType.values()) - {AttributeProto.UNDEFINED}
