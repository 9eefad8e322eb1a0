"""On-chip space that a layer's tiles take, for one mapping or columns of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fadiff.converter.ir.loops import C, G, K, N, P, Q, R, S
from fadiff.costmodel.count.row_layout import input_rows, output_rows, weight_rows
from fadiff.costmodel.mapping.columns import Extents, MappingColumns
from fadiff.costmodel.mapping.counting import COUNTING, Profile
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.mapping.numbers import Number
from fadiff.costmodel.mapping.shape import LayerShape, Region, bounds_of, whole
from fadiff.costmodel.mapping.tiling import box_rows, spanned_rows
from fadiff.costmodel.target.target import Target


class Occupancy(NamedTuple):
    """What one member holds on chip, in rows (profile dosa: bytes, and words of the fullest column).

    Double-buffered tiles (`..._twice`) count twice.  `resident_weights` is the whole weight tensor, of the
    groups or channels of a group tile; it replaces `weights` when the group keeps it.
    """

    weights: Number
    inputs: Number
    outputs: Number
    resident_weights: Number
    inputs_twice: Number = False
    weights_twice: Number = False
    outputs_twice: Number = False


def occupancy(
    shape: LayerShape,
    mapping: Mapping | MappingColumns,
    target: Target,
    profile: Profile,
    region: Region | None = None,
) -> Occupancy:
    """Scratchpad and accumulator space of one layer's tiles; `region` is what it computes, if not all."""
    m = MappingColumns.one(mapping) if isinstance(mapping, Mapping) else mapping
    bounds = bounds_of(shape, whole(shape.dims) if region is None else region)
    l2, l1 = m.l2, m.l1
    outputs = output_rows(l1, m.cols)
    if not COUNTING[profile].in_rows:
        e = target.element_bytes
        box = spanned_rows(shape.height, l2[P], l2[R]) * spanned_rows(shape.width, l2[Q], l2[S])
        return Occupancy(
            e * l2[G] * l2[K] * l2[C] * l2[R] * l2[S],
            e * l2[G] * l2[N] * l2[C] * box,
            outputs,
            e * bounds[G] * bounds[K] * bounds[C] * bounds[R] * bounds[S],
        )
    box = box_rows(shape.height, l2[P], l2[R]) * box_rows(shape.width, l2[Q], l2[S])
    transposed = shape.has_transposed_weights
    kernel = _several(l2, bounds, (G, C, R, S))
    weights_twice = kernel | _several(l2, bounds, (K,))
    inputs_twice = kernel | _several(l2, bounds, (N, P, Q))
    outputs_twice = _several(l1, bounds, (G, N, K, P, Q))
    return Occupancy(
        (1 + weights_twice) * weight_rows(l2, m.rows, m.cols, transposed=transposed),
        (1 + inputs_twice) * input_rows(l2, m.rows, m.cols, box),
        (1 + outputs_twice) * outputs,
        weight_rows(bounds, m.rows, m.cols, transposed=transposed),
        inputs_twice,
        weights_twice,
        outputs_twice,
    )


def _several(tile: Extents, bounds: Sequence[int], dims: Sequence[int]) -> Number:
    """Whether tiles split any of `dims`, so that the next can load while this one is used."""
    found: Number = False
    for d in dims:
        found = found | (tile[d] < bounds[d])
    return found
