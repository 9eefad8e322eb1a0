"""LSTM, GRU and RNN unrolled over their (static) time steps.

The products with the inputs of all time steps are one matrix product; every step adds the product
with the state before it.  All steps of a direction read one copy of the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fadiff.converter.decompose.nodes import Decomposition, Nodes
from fadiff.converter.ir.program import Node, Program

_MOST_STEPS = 4096
"""Every step becomes nodes of its own."""
_PARAMETERS = {
    "HardSigmoid": (("alpha", 0.2), ("beta", 0.5)),
    "LeakyRelu": (("alpha", 0.01),),
    "Elu": (("alpha", 1.0),),
    "ThresholdedRelu": (("alpha", 1.0),),
}
_ACTIVATIONS = frozenset(("Sigmoid", "Tanh", "Relu", "Softplus", "Softsign", *_PARAMETERS))


def constant_weights(program: Program, node: Node) -> str | None:
    """Weights [D, gates H, I], recurrent weights [D, gates H, H] and biases [D, 2 gates H] are constant."""
    bad = [v for v in node.inputs[1:4] if v and v not in program.constants]
    if bad:
        return f"{bad[0]} is computed at run time"
    directions = 2 if node.attributes.get("direction") == "bidirectional" else 1
    hidden = program.constants[node.inputs[2]].shape[-1:]
    rows = _FORMS[node.op].gates * (hidden[0] if hidden else 0)
    wanted = ((directions, rows, program.shapes[node.inputs[0]][-1]), (directions, rows, *hidden))
    for value, shape in zip(node.inputs[1:4], (*wanted, (directions, 2 * rows)), strict=False):
        if value and program.constants[value].shape != shape:
            return f"{value} has shape {list(program.constants[value].shape)} instead of {list(shape)}"
    return None


def whole_sequences(program: Program, node: Node) -> str | None:
    """sequence_lens is absent, or constant and the full length for every sequence."""
    if not node.input(4):
        return None
    lengths = program.constant(node.input(4))
    steps = program.shapes[node.inputs[0]][1 if node.attributes.get("layout", 0) else 0]
    if lengths is not None and np.all(lengths == steps):
        return None
    return "sequence_lens shorten sequences; export the model without them"


def few_steps(program: Program, node: Node) -> str | None:
    """At most 4096 time steps."""
    steps = program.shapes[node.inputs[0]][1 if node.attributes.get("layout", 0) else 0]
    return None if steps <= _MOST_STEPS else f"{steps} time steps; run it on parts of the sequence"


def plain_cell(program: Program, node: Node) -> str | None:
    """No peepholes, no clip, no input_forget; activations are functions of one value."""
    if node.op == "LSTM" and node.input(7):
        return "peephole weights (input P)"
    if node.attributes.get("clip") is not None or node.attributes.get("input_forget", 0):
        return "clip or input_forget is set"
    names = {_spelled(name) for name in node.attributes.get("activations", ())}
    unknown = sorted(names - _ACTIVATIONS)
    return f"activation {unknown[0]}" if unknown else None


def _spelled(name: str) -> str:
    """ONNX compares names of activations without case."""
    return next((known for known in _ACTIVATIONS if known.lower() == name.lower()), name)


@dataclass(frozen=True)
class _Cell:
    """One direction of a recurrent node: constants in float, and its activation functions."""

    hidden: int
    weights: np.ndarray
    """Weights of the inputs, transposed: [I, gates * H]."""
    recurrent: np.ndarray
    """Weights of the state, transposed: [H, gates * H]."""
    input_bias: np.ndarray
    recurrent_bias: np.ndarray
    activations: tuple[Callable[[Nodes, str], str], ...]


@dataclass(frozen=True)
class _Form:
    """What tells LSTM, GRU and RNN apart."""

    gates: int
    activations: tuple[str, ...]
    """By default."""
    step: Callable[[Nodes, Node, _Cell, str, str, str, str], tuple[str, str]]
    """Product with the input, state, cell state and recurrent weights to both states."""


def unroll(nodes: Nodes, program: Program, node: Node) -> None:
    """LSTM, GRU or RNN as matrix products and element-wise operators, step by step."""
    batch_first = bool(node.attributes.get("layout", 0))
    x = nodes.transpose(node.inputs[0], (1, 0, 2)) if batch_first else node.inputs[0]
    shape = program.shapes[node.inputs[0]]
    steps, batch = (shape[1], shape[0]) if batch_first else (shape[0], shape[1])
    direction = node.attributes.get("direction", "forward")
    count = 2 if direction == "bidirectional" else 1
    everything, last_states, last_cells = [], [], []
    for number in range(count):
        cell = _cell(program, node, number, count)
        h = _initial(nodes, program, node.input(5), number, batch_first)
        c = _initial(nodes, program, node.input(6), number, batch_first) if node.op == "LSTM" else ""
        backwards = direction == "reverse" or number == 1
        order = range(steps - 1, -1, -1) if backwards else range(steps)
        states = dict.fromkeys(range(steps), "")
        inputs = nodes.op("MatMul", x, nodes.constant(cell.weights, "W"), label="inputs")
        inputs = nodes.op("Add", inputs, nodes.constant(_early_bias(node, cell), "bias"))
        recurrent = nodes.constant(cell.recurrent, "R")
        for t in order:
            now = nodes.pick(inputs, 0, t)
            h, c = _FORMS[node.op].step(nodes, node, cell, now, h, c, recurrent)
            states[t] = h
        stacked = [nodes.reshape(states[t], (1, 1, batch, cell.hidden)) for t in range(steps)]
        everything.append(nodes.op("Concat", *stacked, axis=0) if steps > 1 else stacked[0])
        last_states.append(nodes.reshape(h, (1, batch, cell.hidden)))
        if c:
            last_cells.append(nodes.reshape(c, (1, batch, cell.hidden)))
    outputs = ((everything, 1, (2, 0, 1, 3)), (last_states, 0, (1, 0, 2)), (last_cells, 0, (1, 0, 2)))
    for name, (values, axis, order_batch_first) in zip(node.outputs, outputs, strict=False):
        if name:
            value = nodes.op("Concat", *values, axis=axis) if len(values) > 1 else values[0]
            nodes.give(nodes.transpose(value, order_batch_first) if batch_first else value, name)


def _cell(program: Program, node: Node, number: int, count: int) -> _Cell:
    weights, recurrent = (program.constants[v][number] for v in node.inputs[1:3])
    hidden = recurrent.shape[-1]
    rows = _FORMS[node.op].gates * hidden
    bias = program.constant(node.input(3))
    both = np.zeros(2 * rows, np.float32) if bias is None else bias[number]
    return _Cell(hidden, weights.T, recurrent.T, both[:rows], both[rows:], _activations(node, number, count))


def _activations(node: Node, number: int, count: int) -> tuple[Callable[[Nodes, str], str], ...]:
    defaults = _FORMS[node.op].activations
    names = tuple(_spelled(n) for n in node.attributes.get("activations", ())) or defaults * count
    given = {key: list(node.attributes.get(f"activation_{key}", ())) for key in ("alpha", "beta")}
    functions = []
    for name in names:
        parameters = {
            key: given[key].pop(0) if given[key] else default for key, default in _PARAMETERS.get(name, ())
        }
        functions.append(_function(name, parameters))
    return tuple(functions[number * len(defaults) : (number + 1) * len(defaults)])


def _function(name: str, parameters: dict[str, float]) -> Callable[[Nodes, str], str]:
    return lambda nodes, value: nodes.op(name, value, label=name, **parameters)


def _initial(nodes: Nodes, program: Program, name: str, number: int, batch_first: bool) -> str:
    """The state before the first step, empty where it is zero."""
    array = program.constant(name)
    if not name or (array is not None and not array.any()):
        return ""
    return nodes.pick(name, 1 if batch_first else 0, number)


def _early_bias(node: Node, cell: _Cell) -> np.ndarray:
    """The bias that can be added to the products with the inputs already.

    A GRU that applies its reset gate after the product adds the bias of the hidden part there.
    """
    late = cell.recurrent_bias.copy()
    if node.op == "GRU" and node.attributes.get("linear_before_reset", 0):
        late[2 * cell.hidden :] = 0
    return np.asarray(cell.input_bias + late)


def _part(nodes: Nodes, cell: _Cell, value: str, first: int, last: int) -> str:
    """Gates first to last - 1 of a value [B, gates * H]."""
    return nodes.slice(value, 1, first * cell.hidden, last * cell.hidden)


def _with_state(nodes: Nodes, now: str, h: str, recurrent: str) -> str:
    """The products with input and state, added up."""
    return nodes.op("Add", now, nodes.op("MatMul", h, recurrent, label="state")) if h else now


def _lstm(nodes: Nodes, node: Node, cell: _Cell, now: str, h: str, c: str, recurrent: str) -> tuple[str, str]:
    """c' = f c + i g; h' = o act(c'); gates are stored i, o, f, g."""
    gate, new, squash = cell.activations
    gates = _with_state(nodes, now, h, recurrent)
    three = gate(nodes, _part(nodes, cell, gates, 0, 3))
    c_new = nodes.op("Mul", _part(nodes, cell, three, 0, 1), new(nodes, _part(nodes, cell, gates, 3, 4)))
    if c:
        c_new = nodes.op("Add", nodes.op("Mul", _part(nodes, cell, three, 2, 3), c), c_new)
    return nodes.op("Mul", _part(nodes, cell, three, 1, 2), squash(nodes, c_new)), c_new


def _gru(nodes: Nodes, node: Node, cell: _Cell, now: str, h: str, _: str, recurrent: str) -> tuple[str, str]:
    """h' = n + z (h - n); gates are stored z, r, n."""
    gate, new = cell.activations
    late = bool(node.attributes.get("linear_before_reset", 0))
    hidden = _part(nodes, cell, now, 2, 3)
    if not h:
        two = gate(nodes, _part(nodes, cell, now, 0, 2))
        if late:
            late_bias = nodes.constant(cell.recurrent_bias[2 * cell.hidden :], "late")
            hidden = nodes.op("Add", hidden, nodes.op("Mul", _part(nodes, cell, two, 1, 2), late_bias))
        candidate = new(nodes, hidden)
        kept = nodes.op("Sub", nodes.number(1), _part(nodes, cell, two, 0, 1))
        return nodes.op("Mul", kept, candidate), ""
    if late:
        late_part = cell.recurrent_bias.copy()
        late_part[: 2 * cell.hidden] = 0
        product = nodes.op("MatMul", h, recurrent, label="state")  # the sum becomes its bias
        product = nodes.op("Add", product, nodes.constant(late_part, "late"))
        two = gate(nodes, nodes.op("Add", _part(nodes, cell, now, 0, 2), _part(nodes, cell, product, 0, 2)))
        reset = nodes.op("Mul", _part(nodes, cell, two, 1, 2), _part(nodes, cell, product, 2, 3))
        hidden = nodes.op("Add", hidden, reset)
    else:
        first = nodes.constant(cell.recurrent[:, : 2 * cell.hidden], "R_zr")
        second = nodes.constant(cell.recurrent[:, 2 * cell.hidden :], "R_n")
        product = nodes.op("MatMul", h, first, label="state")
        two = gate(nodes, nodes.op("Add", _part(nodes, cell, now, 0, 2), product))
        reset = nodes.op("Mul", _part(nodes, cell, two, 1, 2), h)
        hidden = nodes.op("Add", hidden, nodes.op("MatMul", reset, second, label="state"))
    candidate = new(nodes, hidden)
    change = nodes.op("Mul", _part(nodes, cell, two, 0, 1), nodes.op("Sub", h, candidate))
    return nodes.op("Add", candidate, change), ""


def _rnn(nodes: Nodes, node: Node, cell: _Cell, now: str, h: str, _: str, recurrent: str) -> tuple[str, str]:
    """h' = act(W x + R h + b)."""
    return cell.activations[0](nodes, _with_state(nodes, now, h, recurrent)), ""


_FORMS = {
    "GRU": _Form(3, ("Sigmoid", "Tanh"), _gru),
    "LSTM": _Form(4, ("Sigmoid", "Tanh", "Tanh"), _lstm),
    "RNN": _Form(1, ("Tanh",), _rnn),
}


DECOMPOSITIONS = tuple(
    Decomposition(op, unroll, (constant_weights, few_steps, whole_sequences, plain_cell)) for op in _FORMS
)
