"""Run pieces of an ONNX graph in ONNX Runtime.

Of a model whose weights are stored on disk each piece has a few nodes, and its weights are inputs: memory
holds the weights of one piece and the activations that later pieces read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from fadiff.converter.errors import ModelError, one_line
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.ir.stored import StoredWeights
from fadiff.converter.names import printable

_CODES = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : |/\S*/onnxruntime/\S*:\d+ |std::\S+\[.*?\]\S* ")
"""Words for its developers only: numbers of errors, lines of its sources, signatures."""
_REMEDIES = (
    (
        re.compile(r"indices|out of (data )?bounds", re.IGNORECASE),
        "indices are out of range: give calibration data and test inputs with indices that the model takes",
    ),
    (
        re.compile(r"implementation|NOT_IMPLEMENTED|not registered", re.IGNORECASE),
        "it has no such operator for these types: export the model with another opset, or in float32",
    ),
    (
        re.compile(r"alloc|memory", re.IGNORECASE),
        "it needs more memory than there is: give smaller --dim sizes",
    ),
    (
        re.compile(r"shape|dimension|broadcast|axis", re.IGNORECASE),
        "shapes do not go together: check --dim, or export the model with static shapes",
    ),
)
_REMEDY = "try the model in ONNX Runtime, and export it again"


def what_it_says(error: Exception) -> str:
    """An error of ONNX Runtime in one line."""
    return printable(_CODES.sub("", one_line(error)))


NOT_OPTIMISED = "ORT_DISABLE_ALL"
_IR_VERSION = 10


def session_options(level: str = "ORT_ENABLE_ALL") -> onnxruntime.SessionOptions:
    """Quiet and repeatable: errors only, one thread, sequential; `level` is that of graph optimisations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return options


def open_session(
    model: onnx.ModelProto | Path,
    options: onnxruntime.SessionOptions | None = None,
    disabled: Sequence[str] = (),
) -> onnxruntime.InferenceSession:
    """A model, or that of a file, in ONNX Runtime on this processor, without the optimisers `disabled`."""
    content = str(model) if isinstance(model, Path) else model.SerializeToString()
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(
        content, options or session_options(), providers=providers, disabled_optimizers=list(disabled)
    )


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
        ModelError: ONNX Runtime cannot run them on these inputs.
    """
    session = session_of(nodes, feeds[0], outputs, constants, like=like, options=options)
    yield from run_session(session, feeds, outputs)


def run_part(
    program: Program,
    nodes: Sequence[Node],
    feeds: Sequence[Mapping[str, np.ndarray]],
    output: str,
    *,
    scalars: bool = False,
) -> list[np.ndarray]:
    """A value that some nodes compute, for every set of inputs; of `scalars` constants have no axes either.

    Raises:
        ModelError: ONNX Runtime cannot run them on these inputs.
    """
    read = dict.fromkeys(name for node in nodes for name in node.inputs if name in program.constants)
    arrays = {name: np.asarray(program.constants[name]) for name in read}
    constants = [numpy_helper.from_array(a.reshape(()) if scalars else a, n) for n, a in arrays.items()]
    like = _model_of({node.domain: node.version for node in nodes})
    protos = [node.proto for node in nodes]
    return [found[output] for found in run_nodes(protos, feeds, [output], constants, like=like)]


def run_operator(
    op: str, version: int, operands: Sequence[np.ndarray | None], attributes: Mapping[str, Any]
) -> np.ndarray:
    """The first result of a standard operator of an opset, on arrays (None: an absent input)."""
    feed = {f"x{i}": array for i, array in enumerate(operands) if array is not None}
    names = [f"x{i}" if f"x{i}" in feed else "" for i in range(len(operands))]
    node = helper.make_node(op, names, ["y"], **attributes)
    (found,) = run_nodes([node], [feed], ["y"], like=_model_of({"": version}))
    return found["y"]


def _model_of(opsets: Mapping[str, int]) -> onnx.ModelProto:
    """An empty model of these operator sets."""
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(onnx.GraphProto(), opset_imports=imports, ir_version=_IR_VERSION)


def session_of(
    nodes: Iterable[onnx.NodeProto],
    feed: Mapping[str, np.ndarray],
    outputs: Sequence[str],
    constants: Iterable[onnx.TensorProto] = (),
    *,
    like: onnx.ModelProto,
    options: onnxruntime.SessionOptions | None = None,
) -> onnxruntime.InferenceSession:
    """A session that computes what `run_nodes` does, for inputs of the shapes and types of `feed`.

    Raises:
        ModelError: ONNX Runtime does not take the nodes.
    """
    nodes = list(nodes)
    read = {*outputs, *(name for node in nodes for name in node.input)}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feed.items()
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
    with explaining():
        return open_session(model, options)


def run_session(
    session: onnxruntime.InferenceSession, feeds: Sequence[Mapping[str, np.ndarray]], outputs: Sequence[str]
) -> Iterator[dict[str, np.ndarray]]:
    """Some outputs by name, one set after the other for every set of inputs.

    Raises:
        ModelError: ONNX Runtime cannot run it on these inputs.
    """
    bound: dict[str, np.ndarray] = {}
    with explaining():  # (what `session.run` checks first takes time quadratic in the number of inputs)
        binding = session.io_binding()
        for name in outputs:
            binding.bind_output(name)
    for feed in feeds:
        with explaining():
            for name, array in feed.items():
                if bound.get(name) is not array:
                    bound[name] = array
                    binding.bind_cpu_input(name, np.asarray(array, order="C"))
            session.run_with_iobinding(binding)
            found = binding.copy_outputs_to_cpu()
        yield dict(zip(outputs, found, strict=True))


@contextmanager
def explaining() -> Iterator[None]:
    """ONNX Runtime's reason when it cannot run a model, in one line, with the remedy.

    Raises:
        ModelError: whatever went wrong in the block.
    """
    try:
        yield
    except Exception as error:
        said = what_it_says(error)
        remedy = next((text for what, text in _REMEDIES if what.search(said)), _REMEDY)
        raise ModelError(f"ONNX Runtime cannot run it: {said}; {remedy}") from error


_PIECE_BYTES = 2**27


def run_model(
    program: Program, samples: Sequence[Mapping[str, np.ndarray]], wanted: Collection[str]
) -> Iterator[tuple[str, list[np.ndarray]]]:
    """The wanted values of every sample, one value after the other, in order of computation.

    Args:
        program: the model.
        samples: the other inputs by name.
        wanted: inputs, constants or computed values.
    """
    constants = {name: program.constants[name] for name in wanted if name in program.constants}
    states: list[dict[str, np.ndarray]] = [constants | dict(sample) for sample in samples]
    for name in wanted:
        if all(name in state for state in states):
            yield name, [state[name] for state in states]
    pieces = _pieces(program.model, program.weights)
    for number, nodes in enumerate(pieces):
        later = {name for piece in pieces[number + 1 :] for node in piece for name in node.input}
        made = [name for node in nodes for name in node.output if name]
        outputs = [name for name in made if name in later or name in wanted]
        if outputs:
            _run_piece(program.model, program.weights, nodes, states, outputs)
        for name in outputs:
            if name in wanted:
                yield name, [state[name] for state in states]
        for state in states:
            for name in [name for name in state if name not in later]:
                del state[name]


def _pieces(model: onnx.ModelProto, weights: StoredWeights) -> list[list[onnx.NodeProto]]:
    """Nodes in order, cut before the stored weights of a piece exceed the limit."""
    if not weights:
        return [list(model.graph.node)]
    pieces: list[list[onnx.NodeProto]] = [[]]
    size = 0
    for node in model.graph.node:
        needed = 4 * sum(int(np.prod(weights.places[n].shape)) for n in node.input if n in weights)
        if needed and size + needed > _PIECE_BYTES and pieces[-1]:
            pieces.append([])
            size = 0
        size += needed
        pieces[-1].append(node)
    return pieces


def _run_piece(
    model: onnx.ModelProto,
    weights: StoredWeights,
    nodes: Sequence[onnx.NodeProto],
    states: Sequence[dict[str, np.ndarray]],
    outputs: Sequence[str],
) -> None:
    """Add the outputs of these nodes to every state."""
    graph = model.graph
    made = {name for node in nodes for name in node.output}
    read = list(dict.fromkeys(name for node in nodes for name in node.input if name and name not in made))
    options = session_options()
    options.intra_op_num_threads = 0  # (all cores: nothing here has to repeat to the bit)
    options.enable_cpu_mem_arena = False  # memory goes back after every piece
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # (a third of its time)
    stored = {name: weights[name] for name in read if name in weights}
    feeds = [{name: state[name] for name in read if name in state} | stored for state in states]
    found = run_nodes(nodes, feeds, outputs, graph.initializer, like=model, options=options)
    for state, values in zip(states, found, strict=True):
        state.update(values)
