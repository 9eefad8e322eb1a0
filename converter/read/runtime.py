"""Run pieces of an ONNX graph in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import helper


def session_options() -> onnxruntime.SessionOptions:
    """Quiet and repeatable: errors only, one thread, sequential."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return options


def run_nodes(
    nodes: Iterable[onnx.NodeProto],
    feeds: Sequence[Mapping[str, np.ndarray]],
    outputs: Sequence[str],
    constants: Iterable[onnx.TensorProto] = (),
    *,
    like: onnx.ModelProto,
    options: onnxruntime.SessionOptions | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Values that some nodes compute, by name, one set after the other for every set of inputs.

    Args:
        nodes: in topological order.
        feeds: inputs by name, in every set of the same shapes and types.
        outputs: the values wanted.
        constants: initializers; those that no node reads may be among them.
        like: a model with the operator sets and functions that the nodes refer to.
        options: of the session, `session_options()` by default.

    Raises:
        Exception: what ONNX Runtime raises when it cannot run them.
    """
    nodes = list(nodes)
    read = {name for node in nodes for name in node.input}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds[0].items()
    ]
    graph = helper.make_graph(
        nodes,
        "piece",
        inputs,
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [tensor for tensor in constants if tensor.name in read],
    )
    model = helper.make_model(
        graph, opset_imports=like.opset_import, ir_version=like.ir_version, functions=like.functions
    )
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options or session_options(), providers=["CPUExecutionProvider"]
    )
    for feed in feeds:
        yield dict(zip(outputs, session.run(list(outputs), dict(feed)), strict=True))
