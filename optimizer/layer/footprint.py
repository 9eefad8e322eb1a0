"""On-chip space of mappings in columns: the rules of costmodel.group.legality in a layer's map-space."""

from __future__ import annotations

import numpy as np

from fadiff.converter.ir.loops import S
from fadiff.costmodel.count.capacity import occupancy
from fadiff.costmodel.count.row_layout import packed_inputs_fit
from fadiff.costmodel.mapping.columns import MappingColumns
from fadiff.optimizer.layer.space import Bools, Ints, LayerSpace


class Footprint:
    """What mappings of a layer take on chip; columns may have any shapes that broadcast together."""

    def __init__(self, space: LayerSpace, columns: MappingColumns) -> None:
        self.space, self.columns = space, columns
        rules = space.rules
        self.used = occupancy(space.shape, columns, rules.target, rules.profile, space.region)

    def fits_scratchpad(self) -> Bools:
        """Whether W and I tiles, double-buffered where refetched, fit beside what is reserved."""
        space, used = self.space, self.used
        weights = 0 if space.placement.weights_are_resident else used.weights
        room = space.scratchpad_limit - space.reserved
        fits = weights + (0 if space.holds_input else used.inputs) <= room
        taps = self.columns.rows[S]
        if space.rules.counting.in_rows and np.max(taps, initial=1) > 1:
            inputs, twice = used.inputs // (1 + used.inputs_twice), used.inputs_twice
            fits &= (taps == 1) | packed_inputs_fit(
                inputs, twice, weights, room, space.scratchpad_limit, taps
            )
        return np.broadcast_to(fits, self.columns.shape)

    def accumulator_need(self) -> Ints:
        """Rows (profile dosa: words of the fullest column) of O tiles, twice where there are several."""
        return np.broadcast_to(self.used.outputs, self.columns.shape)
