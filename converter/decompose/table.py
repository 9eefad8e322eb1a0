"""The table of decompositions: which operators are written as others, and under which conditions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fadiff.converter.decompose import (
    integers,
    norms,
    padding,
    picking,
    products,
    recurrent,
    resampling,
    shapes,
    softmax,
    volumes,
)
from fadiff.converter.decompose.nodes import Nodes
from fadiff.converter.ir.program import Node, Program

Constraint = Callable[[Program, Node], str | None]


def always(program: Program, node: Node) -> bool:
    """Always."""
    return True


@dataclass(frozen=True)
class Decomposition:
    """One operator that is written as others where it `applies` and the constraints hold.

    The docstrings of both are the rules in docs/SUPPORTED_OPS.md.
    """

    op: str
    write: Callable[[Nodes, Program, Node], None]
    constraints: tuple[Constraint, ...] = ()
    applies: Callable[[Program, Node], bool] = always


_RECURRENT = (
    recurrent.constant_weights,
    recurrent.few_steps,
    recurrent.whole_sequences,
    recurrent.plain_cell,
)
_SCATTER = (picking.constant_indices, picking.no_reduction)

DECOMPOSITIONS: tuple[Decomposition, ...] = (
    Decomposition("Abs", integers.magnitude, applies=integers.on_integers),
    Decomposition("AveragePool", volumes.pool, applies=volumes.is_volume),
    Decomposition(
        "BitwiseNot", integers.inverted, (integers.signed_or_16_bits,), applies=integers.on_integers
    ),
    Decomposition("Clip", integers.clipped, applies=integers.on_integers),
    Decomposition("Compress", picking.compress, (picking.constant_indices,)),
    Decomposition("Concat", shapes.without_empty, applies=shapes.has_empty_operands),
    Decomposition("Conv", products.convolution, applies=products.has_computed_bias),
    Decomposition("Conv", volumes.convolution, (volumes.constant_kernel,), applies=volumes.is_volume),
    Decomposition("ConvTranspose", products.convolution, applies=products.has_computed_bias),
    Decomposition("CumSum", products.running_sum, (products.constant_axis,)),
    Decomposition("Div", softmax.softmax, applies=softmax.over_their_sum),
    Decomposition("Einsum", products.einsum, (products.one_or_two_operands,)),
    Decomposition("EyeLike", shapes.eye),
    Decomposition("GRU", recurrent.unroll, _RECURRENT),
    Decomposition("GatherElements", picking.gather_elements, applies=picking.at_constant_places),
    Decomposition("GatherElements", picking.gather_computed_elements),
    Decomposition("GatherND", picking.gather_nd, applies=picking.at_constant_places),
    Decomposition("GatherND", picking.gather_computed_nd),
    Decomposition("Gemm", products.gemm, applies=products.has_no_plain_operands),
    *(
        Decomposition(op, volumes.global_pool, applies=volumes.is_volume)
        for op in ("GlobalAveragePool", "GlobalMaxPool")
    ),
    Decomposition("GlobalLpPool", norms.lp_pool, (norms.two_axes,)),
    Decomposition("GroupNormalization", norms.group_normalization, (norms.constant_affine,)),
    Decomposition("Hardmax", integers.hardmax, (integers.one_axis,)),
    Decomposition("LRN", norms.local_response, (norms.two_axes,)),
    Decomposition("LSTM", recurrent.unroll, _RECURRENT),
    Decomposition("LpNormalization", norms.lp_normalization, (norms.first_or_second_norm,)),
    Decomposition("LpPool", norms.lp_pool, (norms.undilated,)),
    Decomposition("MaxPool", padding.max_pool, applies=padding.behind_lowest),
    Decomposition("MaxPool", volumes.pool, (volumes.no_indices,), applies=volumes.is_volume),
    Decomposition("Mean", norms.mean, applies=norms.several_inputs),
    Decomposition("MeanVarianceNormalization", norms.mean_variance),
    Decomposition("Mul", softmax.softmax, applies=softmax.over_their_sum),
    Decomposition("Neg", integers.negated, applies=integers.on_integers),
    Decomposition("OneHot", integers.one_hot, (integers.constant_depth,)),
    Decomposition("RNN", recurrent.unroll, _RECURRENT),
    *(
        Decomposition(f"Reduce{name}", norms.reduction, (norms.floats_over_known_axes,))
        for name in ("L1", "L2", "LogSum", "LogSumExp", "SumSquare")
    ),
    Decomposition("ReduceSum", integers.total, applies=integers.on_integers_of_known_axes),
    Decomposition(
        "Resize", resampling.resize, (resampling.constant_size,), applies=resampling.written_otherwise
    ),
    Decomposition("ReverseSequence", picking.reverse_sequence, (picking.constant_indices,)),
    Decomposition("Scatter", picking.scatter_elements, _SCATTER),
    Decomposition("ScatterElements", picking.scatter_elements, _SCATTER, applies=picking.at_constant_places),
    Decomposition("ScatterND", picking.scatter_nd, _SCATTER, applies=picking.at_constant_places),
    Decomposition("Shape", shapes.shape_of),
    Decomposition("Size", shapes.shape_of),
    Decomposition("Sub", softmax.log_softmax, applies=softmax.less_their_logarithm),
    Decomposition("Sum", norms.total, applies=norms.more_than_two_inputs),
    Decomposition("TensorScatter", picking.tensor_scatter, (picking.one_sequence,)),
    Decomposition("TopK", picking.top_k, (picking.few_picks,)),
    Decomposition("Trilu", picking.triangle, (picking.constant_diagonal,)),
)


def find(program: Program, node: Node) -> Decomposition | None:
    """The entry that writes a node as others, None where there is none or a constraint is broken."""
    fits = (e for e in _entries(node) if reason(program, node) is None and e.applies(program, node))
    return next((e for e in fits if all(c(program, node) is None for c in e.constraints)), None)


def reason(program: Program, node: Node) -> str | None:
    """Why a node that has entries is not written as others; None when it is (or has none)."""
    entries = _entries(node)
    unknown = next((v for v in node.inputs if entries and v and v not in program.shapes), None)
    if unknown is not None:
        return f"the shape of {unknown} is not static"
    fits = [entry for entry in entries if entry.applies(program, node)]
    return next(
        (why for e in fits or entries for c in e.constraints if (why := c(program, node)) is not None), None
    )


def _entries(node: Node) -> tuple[Decomposition, ...]:
    return tuple(entry for entry in DECOMPOSITIONS if entry.op == node.op and node.domain == "")
