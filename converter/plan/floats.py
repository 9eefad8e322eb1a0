"""Mixed precision: steps that stay in float32, on the core, while the array computes in int8.

What lies between two of them joins them, so that they hand floats to each other: operators that only move
elements, and arithmetic that C and the reference can do to the bit (no exponentials).  A state that float
steps write and read, perhaps moved, is float32 from one run to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from fadiff.converter.errors import ModelError
from fadiff.converter.ir.builder import plain_name
from fadiff.converter.ir.kinds import MOVE, STRIDED, Kind, named
from fadiff.converter.ir.operators import is_a, is_square, keeps_scale
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.ir.recurrence import State
from fadiff.converter.names import did_you_mean
from fadiff.converter.plan.inputs import input_chains
from fadiff.converter.plan.plan import Step

ARITHMETIC = (named(Kind.BINARY) & named(Kind.EXACT)) | {"BatchNormalization"}
"""Nodes of several values that may be named."""
MOVES = named(MOVE | STRIDED | Kind.JOIN) | {"Gather", "MaxPool", "Resize"}
"""They give elements that they read (a Resize: to the nearest; a Gather: at constant places)."""


def keep_float(
    file: str, program: Program, steps: Sequence[Step], names: Collection[str], wide: Collection[str] = ()
) -> tuple[Step, ...]:
    """The steps, of which those named (by step, by one of their nodes, or by the state that they compute) are
    kept in float32, and what joins them; so are the `wide` ones.  `file` is for messages.

    Raises:
        ModelError: there is no such step, or it has no float form.
    """
    if not (names or wide or program.float_inputs):
        return tuple(steps)
    chosen = set[str]()
    for name in dict.fromkeys((*names, *wide)):
        state = next((s for s in program.states if name in (s.input, s.output)), None)
        if state is not None:
            cell = cell_of(program, steps, state)
            if not cell:
                raise ModelError(
                    f"{file}: --keep-float {name}: no arithmetic on single elements leads from this state to "
                    "its next value, so float32 would gain nothing; keep the layers that read it"
                )
            chosen |= cell
            continue
        found = next((s for s in steps if name in (s.name, plain_name(s.name), *s.onnx_nodes)), None)
        if found is None:
            states = (end for state in program.states for end in (state.input, state.output))
            advice = did_you_mean(name, {*(plain_name(s.name) for s in steps), *states})
            raise ModelError(
                f"{file}: --{'keep-float' if name in names else 'wide'} {name}: no such layer or state; "
                f"{advice}{' ' if advice else ''}"
                "`fadiff inspect` lists them"
            )
        if not can_be_float(program, found):
            raise ModelError(
                f"{file}: --keep-float {name}: {found.head.op} has no float32 form beside int8; "
                "keep the products (Conv, Gemm, MatMul) around it, or compile for a float32 target"
            )
        chosen.add(found.name)
    chosen |= normalisers(program, steps)
    kept = _joined(program, steps, chosen)
    return tuple(replace(step, is_float=step.name in kept) for step in steps)


def normalisers(program: Program, steps: Sequence[Step]) -> set[str]:
    """Steps of affine functions of inputs that come in float32: rounding follows them."""
    chains = [nodes for value, nodes in input_chains(program) if value in program.float_inputs]
    names = {node.name for nodes in chains for node in nodes}
    return {step.name for step in steps if names.issuperset(step.onnx_nodes)}


def widened(steps: Sequence[Step], names: Collection[str] | None = None) -> tuple[Step, ...]:
    """The steps, of which products among those named (None: all) are the array's where they are kept in
    float, and functions between them may be."""
    if names is not None and not names:
        return tuple(steps)

    def is_wide(step: Step) -> bool:
        named = names is None or step.name in names or not set(step.onnx_nodes).isdisjoint(names)
        return step.kind == "lookup" or (named and is_a(step.head, Kind.PRODUCT))

    return tuple(replace(step, is_wide=is_wide(step)) for step in steps)


def can_be_float(program: Program, step: Step) -> bool:
    """Whether a step may be named."""
    if not _holds_floats(program, step) or step.mask:
        return False
    if step.kind == "lookup":
        known = Kind.EXACT | (Kind.EXPONENTIAL if step.is_wide else Kind.EXACT)
        return all(is_a(node, known) or is_square(program, node) for node in step.nodes)
    return step.kind == "node" and (is_a(step.head, Kind.PRODUCT) or step.head.op in ARITHMETIC)


def cell_of(program: Program, steps: Sequence[Step], state: State) -> frozenset[str]:
    """The arithmetic on single elements that leads to a state's next value, back to products and tables; none
    where none of it reads the state."""
    before = _before(program, steps, state.output, lambda step: _joins(program, step))
    found = {s.name for s in before if can_be_float(program, s) and not is_a(s.head, Kind.PRODUCT)}
    read = {s.name for s in _behind(program, steps, state.input)}
    return frozenset(found) if read & found else frozenset()


def float_states(program: Program, steps: Sequence[Step]) -> tuple[State, ...]:
    """The states that are float32 between runs: float steps write them, and one reads them."""
    kept = {node for step in steps if step.is_float for node in step.onnx_nodes}

    def is_kept(state: State) -> bool:
        writer = program.producer.get(state.output)
        readers = program.consumers(state.input)
        return writer is not None and writer.name in kept and any(node.name in kept for node in readers)

    return tuple(state for state in program.states if is_kept(state))


def only_in_float(program: Program, steps: Sequence[Step]) -> frozenset[str]:
    """Values that are never int8: float steps hand them to float steps, in this run or the next."""
    kept = {node for step in steps if step.is_float for node in step.onnx_nodes}
    states = float_states(program, steps)
    written = {value for step in steps if step.is_float for value in outputs_of(step)}
    handed_out = set(program.outputs) - {state.output for state in states}
    return frozenset(
        value
        for value in (written | program.float_inputs | {state.input for state in states}) - handed_out
        if all(node.name in kept for node in program.consumers(value))
    )


def outputs_of(step: Step) -> tuple[str, ...]:
    """The values that a step stores."""
    return (step.output,) if len(step.nodes) > 1 else tuple(v for v in step.head.outputs if v)


def _joined(program: Program, steps: Sequence[Step], chosen: Collection[str]) -> set[str]:
    step_of = {node: step.name for step in steps for node in step.onnx_nodes}

    def readers(step: Step) -> list[Node]:
        return [node for value in outputs_of(step) for node in program.consumers(value)]

    leads = set(chosen)
    """Named, or read by such steps only."""
    for step in reversed(steps):
        inner = not set(outputs_of(step)) & set(program.outputs)
        if inner and _joins(program, step) and all(step_of[node.name] in leads for node in readers(step)):
            leads.add(step.name)
    kept = set(chosen)
    for step in steps:
        sources = (program.producer.get(value) for node in step.nodes for value in node.inputs)
        if step.name in leads and any(node is not None and step_of[node.name] in kept for node in sources):
            kept.add(step.name)
    for state in program.states:
        before = _before(program, steps, state.output, lambda step: moves(program, step))
        behind = _behind(program, steps, state.input)
        if all(any(step.name in kept for step in found) for found in (before, behind)):
            kept.update(step.name for step in (*before, *behind) if moves(program, step))
    return kept


def _before(program: Program, steps: Sequence[Step], value: str, joins: Callable[[Step], bool]) -> list[Step]:
    """The writer of a value and, as long as they join, those of what it reads."""
    found, wanted = list[Step](), {value}
    for step in reversed(steps):
        if wanted & set(outputs_of(step)):
            found.append(step)
            wanted.update(v for node in step.nodes for v in program.activations(node) if joins(step))
    return found


def _behind(program: Program, steps: Sequence[Step], value: str) -> list[Step]:
    """The readers of a value, moved or as it is."""
    found, moved = list[Step](), {value}
    for step in steps:
        if any(moved & set(program.activations(node)) for node in step.nodes):
            found.append(step)
            moved.update(outputs_of(step) if moves(program, step) else ())
    return found


def _joins(program: Program, step: Step) -> bool:
    return moves(program, step) or (can_be_float(program, step) and not is_a(step.head, Kind.PRODUCT))


def moves(program: Program, step: Step) -> bool:
    """Whether a step only moves or chooses elements, and may join steps in float."""
    head = step.head
    exact = head.op in MOVES and (head.op != "Resize" or keeps_scale(head))
    if head.op == "Gather":
        exact = head.inputs[0] not in program.constants and head.inputs[1] in program.constants
    return step.kind == "node" and exact and _holds_floats(program, step)


def _holds_floats(program: Program, step: Step) -> bool:
    values = (v for node in step.nodes for v in (*program.activations(node), *node.outputs) if v)
    return all(program.is_float(value) for value in values)
