"""Run a float model whose weights are stored on disk, a piece of it at a time.

Each piece is a model of a few nodes, its weights are inputs of it: memory holds the weights of one
piece and the activations that later pieces read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from fadiff.converter.ir.stored import StoredWeights
from fadiff.converter.read.runtime import run_nodes, session_options

_PIECE_BYTES = 2**27


def run_model(
    model: onnx.ModelProto,
    weights: StoredWeights,
    samples: Sequence[Mapping[str, np.ndarray]],
    wanted: Collection[str],
) -> Iterator[tuple[str, list[np.ndarray]]]:
    """The wanted values of every sample, one value after the other, in order of computation.

    Args:
        model: normalised, every value with a type.
        weights: the inputs of the graph that are stored.
        samples: the other inputs by name.
        wanted: inputs, constants or computed values.
    """
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if t.name in wanted}
    states: list[dict[str, np.ndarray]] = [constants | dict(sample) for sample in samples]
    for name in wanted:
        if all(name in state for state in states):
            yield name, [state[name] for state in states]
    pieces = _pieces(model, weights)
    for number, nodes in enumerate(pieces):
        later = {name for piece in pieces[number + 1 :] for node in piece for name in node.input}
        made = [name for node in nodes for name in node.output if name]
        outputs = [name for name in made if name in later or name in wanted]
        if outputs:
            _run_piece(model, weights, nodes, states, outputs)
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
