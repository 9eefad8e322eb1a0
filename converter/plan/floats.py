"""Mixed precision: steps that stay in float32, on the core, while the array computes in int8.

What lies between two of them joins them, so that they hand floats to each other: operators that only move
elements, and arithmetic that C and the reference can do to the bit (no exponentials).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from converter.errors import ModelError
from converter.ir.builder import plain_name
from converter.ir.operators import is_square, keeps_scale
from converter.ir.program import Node, Program
from converter.plan.plan import Step

PRODUCTS = frozenset(("Conv", "Gemm", "MatMul"))
EXACT_FUNCTIONS = frozenset(
    [
        "Abs",
        "Add",
        "Ceil",
        "Clip",
        "Div",
        "Dropout",
        "Floor",
        "HardSigmoid",
        "HardSwish",
        "Identity",
        "LeakyRelu",
        "Max",
        "Min",
        "Mul",
        "Neg",
        "PRelu",
        "Reciprocal",
        "Relu",
        "Softsign",
        "Sqrt",
        "Sub",
        "ThresholdedRelu",
    ]
)
"""Element-wise nodes whose every step one float32 operation rounds; so does a square (`is_square`)."""
ARITHMETIC = frozenset(("Add", "BatchNormalization", "Sub", "Mul", "Div", "Max", "Min"))
MOVES = frozenset(
    [
        "Concat",
        "DepthToSpace",
        "Flatten",
        "Identity",
        "MaxPool",
        "Reshape",
        "Resize",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    ]
)
"""They give elements that they read (a Resize: to the nearest)."""


def keep_float(
    file: str, program: Program, steps: Sequence[Step], names: Collection[str]
) -> tuple[Step, ...]:
    """The steps, of which those named (by step or by one of their nodes) are kept in float32, and what joins
    them.  `file` is for messages.

    Raises:
        ModelError: there is no such step, or it has no float form.
    """
    chosen = set()
    for name in dict.fromkeys(names):
        found = next((s for s in steps if name in (s.name, plain_name(s.name), *s.onnx_nodes)), None)
        if found is None:
            raise ModelError(f"{file}: --keep-float {name}: no such layer; `fadiff inspect` lists them")
        if not can_be_float(program, found):
            raise ModelError(
                f"{file}: --keep-float {name}: {found.head.op} has no float32 form beside int8; "
                "keep the products (Conv, Gemm, MatMul) around it, or compile for a float32 target"
            )
        chosen.add(found.name)
    kept = _joined(program, steps, chosen)
    return tuple(replace(step, is_float=step.name in kept) for step in steps)


def can_be_float(program: Program, step: Step) -> bool:
    """Whether a step may be named."""
    if not _holds_floats(program, step) or step.mask:
        return False
    if step.kind == "lookup":
        return all(node.op in EXACT_FUNCTIONS or is_square(program, node) for node in step.nodes)
    return step.kind == "node" and step.head.op in PRODUCTS | ARITHMETIC


def only_in_float(program: Program, steps: Sequence[Step]) -> frozenset[str]:
    """Values that are never int8: float steps hand them to float steps."""
    kept = {node for step in steps if step.is_float for node in step.onnx_nodes}
    return frozenset(
        value
        for step in steps
        if step.is_float
        for value in outputs_of(step)
        if value not in program.outputs and all(node.name in kept for node in program.consumers(value))
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
    return kept


def _joins(program: Program, step: Step) -> bool:
    return moves(program, step) or (can_be_float(program, step) and step.head.op not in PRODUCTS)


def moves(program: Program, step: Step) -> bool:
    """Whether a step only moves or chooses elements, and may join steps in float."""
    head = step.head
    exact = head.op in MOVES and (head.op != "Resize" or keeps_scale(head))
    return step.kind == "node" and exact and _holds_floats(program, step)


def _holds_floats(program: Program, step: Step) -> bool:
    values = (v for node in step.nodes for v in (*program.activations(node), *node.outputs) if v)
    return all(program.is_float(value) for value in values)
