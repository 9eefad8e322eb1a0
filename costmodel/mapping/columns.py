"""Many mappings of one layer in columns, for formulas that cost them all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

import numpy as np

from fadiff.converter.ir.loops import DIMS, Dims
from fadiff.costmodel.mapping.mapping import STREAM_ORDER, Issue, Mapping, Order
from fadiff.costmodel.mapping.numbers import Ints, Number

Extents = Sequence[Number] | Ints
"""One number per dimension; as an array [8, mappings]."""
Orders = tuple[Order, Order, Order]
"""Loop orders of L3, L2 and L1, outermost first."""
_values = attrgetter(*DIMS)


@dataclass(frozen=True)
class MappingColumns:
    """Tile extents and spatial factors by dimension (converter.ir.dims.DIMS), an integer or a column each.

    `order` indexes `orders`.  Columns may have any shapes that broadcast together: one row is a mapping.
    """

    l2: Extents
    l1: Extents
    l0: Extents
    rows: Extents
    cols: Extents
    orders: Sequence[Orders]
    order: Number = 0
    issue: Issue = "instructions"

    @classmethod
    def one(cls, mapping: Mapping) -> MappingColumns:
        """A mapping as integers."""
        m = mapping
        l2, l1, l0, rows, cols = map(_values, (m.tile_l2, m.tile_l1, m.tile_l0, m.rows, m.cols))
        return cls(l2, l1, l0, rows, cols, ((m.order_l3, m.order_l2, m.order_l1),), 0, m.issue)

    @classmethod
    def of(cls, mappings: Sequence[Mapping]) -> MappingColumns:
        """Stack mappings."""
        orders: dict[Orders, int] = {}
        index = [orders.setdefault((m.order_l3, m.order_l2, m.order_l1), len(orders)) for m in mappings]
        l2, l1, l0, rows, cols = (
            np.array([list(getattr(m, name)) for m in mappings], dtype=np.int64).reshape(-1, 8).T.copy()
            for name in ("tile_l2", "tile_l1", "tile_l0", "rows", "cols")
        )
        return cls(l2, l1, l0, rows, cols, tuple(orders), np.array(index, dtype=np.int64))

    @classmethod
    def folded(cls, mappings: Sequence[Mapping], issue: Issue = "instructions") -> MappingColumns:
        """Stack mappings; columns that say the same all along are integers, equal ones one object.

        Formulas then work once on what does not differ.
        """
        columns = cls.of(mappings)
        known: dict[bytes, Number] = {}

        def fold(tile: Extents) -> list[Number]:
            return [known.setdefault(row.tobytes(), _folded(row)) for row in np.asarray(tile)]

        l2, l1, l0, rows, cols = map(fold, (columns.l2, columns.l1, columns.l0, columns.rows, columns.cols))
        return cls(l2, l1, l0, rows, cols, columns.orders, columns.order, issue)

    @property
    def spatial(self) -> list[Number]:
        """Elements of every dimension that the array works on at once."""

        def both(a: Number, b: Number) -> Number:
            """A product that keeps columns that are the same the same: formulas then work once on both."""
            return a if isinstance(b, int) and b == 1 else b if isinstance(a, int) and a == 1 else a * b

        return [both(*factors) for factors in zip(self.rows, self.cols, strict=True)]

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Of the columns together."""
        return common_shape(*self.l2, *self.l1, *self.l0, *self.rows, *self.cols, self.order)

    def mapping(self, index: int) -> Mapping:
        """One row, counted through the columns' shape, as a Mapping."""
        place = np.unravel_index(index, self.shape)

        def at(column: Number) -> int:
            if isinstance(column, int):
                return column
            inner = zip(place[len(place) - column.ndim :], column.shape, strict=True)
            return int(column[tuple(0 if size == 1 else i for i, size in inner)])

        l2, l1, l0, rows, cols = (
            Dims(*map(at, tile)) for tile in (self.l2, self.l1, self.l0, self.rows, self.cols)
        )
        order_l3, order_l2, order_l1 = self.orders[at(self.order)]
        orders = (order_l3, order_l2, order_l1, STREAM_ORDER)
        return Mapping(l2, l1, l0, rows, cols, *orders, self.issue)


def _folded(column: Ints) -> Number:
    """A column, or the integer that it says all along."""
    return int(column[0]) if column.size and (column == column[0]).all() else column


def common_shape(*columns: Number) -> tuple[int, ...]:
    """Of columns and integers together."""
    return np.broadcast_shapes(*{column.shape for column in columns if isinstance(column, np.ndarray)})
