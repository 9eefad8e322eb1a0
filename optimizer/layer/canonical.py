"""Canonical mappings: loop orders that can be optimal, and what of a mapping follows from its tiles.

Each loop dimension is irrelevant to exactly one operand (P Q N to W, K to I, C R S to O), so at
most one operand can be stationary under the DRAM loops: the innermost non-unit loop decides, and
three orders cover all permutations (DOSA's WS, IS and OS).  G is relevant to every operand and
goes outermost.  Inside, only W is held below the accumulator, so pixels stream innermost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping as MappingABC
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeVar

import numpy as np

from fadiff.converter.ir.loops import DIMS
from fadiff.costmodel.mapping.columns import MappingColumns, common_shape
from fadiff.costmodel.mapping.mapping import (
    INPUT_STATIONARY,
    OUTPUT_STATIONARY,
    STREAM_ORDER,
    WEIGHT_STATIONARY,
    Mapping,
    Order,
)
from fadiff.costmodel.mapping.numbers import Number
from fadiff.optimizer.layer.space import Bools, Ints, LayerSpace

Stationary = Literal["WS", "IS", "OS"]
Column = TypeVar("Column", Ints, Bools)

STATIONARY: tuple[Stationary, ...] = ("WS", "IS", "OS")

L3_ORDERS: dict[Stationary, Order] = {
    "WS": WEIGHT_STATIONARY,
    "IS": INPUT_STATIONARY,
    "OS": OUTPUT_STATIONARY,
}
"""DRAM loops, outermost first."""

L2_ORDER: Order = OUTPUT_STATIONARY
"""Scratchpad loops walk output tiles; the reduction stays innermost, where it merges into L1."""

L1_ORDER: Order = STREAM_ORDER


def canonical_columns(
    space: LayerSpace,
    tile: MappingABC[str, Number],
    order: Number = 0,
    l3_orders: Sequence[Order] = tuple(L3_ORDERS.values()),
) -> MappingColumns:
    """Mappings of scratchpad tiles K C R S N P Q and accumulator tiles k n p q (as large where not given).

    `order` indexes `l3_orders`.
    """
    bounds, g = space.bounds, space.groups_at_once

    def extent(name: str) -> Number:
        return 1 if bounds[name.upper()] == 1 else tile[name]  # type: ignore[index]

    outer = {d: g if d == "G" else extent(d) for d in DIMS}
    inner = {d: extent(d.lower()) if d.lower() in tile else outer[d] for d in DIMS}
    rows: dict[str, Number] = {}
    cols: dict[str, Number] = {"G": g}
    if not space.shape.is_depthwise:
        rows = {"C": space.blocks(outer["C"]), "S": space.packed(outer["C"], outer["S"])}
        cols = {"K": space.blocks(inner["K"])}
    l0, row, col = (tuple(known.get(d, 1) for d in DIMS) for known in (rows | cols, rows, cols))
    orders = tuple((order_l3, L2_ORDER, L1_ORDER) for order_l3 in l3_orders)
    shape = common_shape(*tile.values(), order)
    order = np.broadcast_to(order, shape) if shape else order
    tiles = tuple(outer.values()), tuple(inner.values()), l0, row, col
    return MappingColumns(*tiles, orders, order)


def canonical_mapping(space: LayerSpace, tile: MappingABC[str, int], order_l3: Order) -> Mapping:
    """The Mapping of one tile."""
    return canonical_columns(space, tile, 0, (order_l3,)).mapping(0)


@dataclass(frozen=True)
class Points:
    """Canonical mappings of one space."""

    space: LayerSpace
    tile: dict[str, Ints]
    """Scratchpad-tile extents K C R S N P Q, accumulator-tile extents k n p q, in columns."""
    order: Ints
    """Index into STATIONARY: one per row, or [orders, 1] for every tile under several."""

    @cached_property
    def columns(self) -> MappingColumns:
        """Whole mappings."""
        return canonical_columns(self.space, self.tile, self.order)

    def every(self, column: Column) -> Column:
        """A column of tiles as one of points."""
        return np.broadcast_to(column, self.columns.shape).ravel()

    def select(self, index: Ints) -> Points:
        """The chosen points."""
        tile = {name: self.every(column)[index] for name, column in self.tile.items()}
        return Points(self.space, tile, self.every(self.order)[index])

    def __len__(self) -> int:
        return math.prod(self.columns.shape)

    def mapping(self, i: int) -> Mapping:
        """Point `i` as a Mapping."""
        return self.columns.mapping(i)
