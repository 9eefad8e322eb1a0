"""Mappings as Timeloop factors and back."""

from __future__ import annotations

import pytest

from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.emitters.timeloop.nest import LOOPS, Factor, NoTimeloopForm, mapping_of, nest_of


def test_a_ragged_tile_becomes_an_imperfect_factor() -> None:
    # 100 rows in tiles of 13: eight tiles, the last of 9; written P=8 outside and P=13,9 inside.
    bounds = Dims(P=100)
    tile = Dims(P=13)
    mapping = Mapping(tile, tile, Dims())
    nest = nest_of(mapping, bounds)
    assert [str(nest.factors[loops]["P"]) for loops in LOOPS] == ["1", "1", "13,9", "1", "1", "8"]
    assert not nest.is_perfect
    assert mapping_of(nest, bounds) == mapping


def test_blocks_that_nothing_repeats_are_made_equal() -> None:
    # 16 + 14 channels: Timeloop stops at K=16,15 columns with no loop of K outside; 15 + 15 is the same work.
    bounds, columns = Dims(K=30), Dims(K=16)
    nest = nest_of(Mapping(bounds, bounds, columns, cols=columns), bounds)
    assert [str(nest.factors[loops]["K"]) for loops in LOOPS] == ["1", "1", "2", "15", "1", "1"]
    assert nest.is_perfect
    written = mapping_of(nest, bounds)
    assert (written.tile_l1.K, written.tile_l0.K, written.cols.K) == (30, 15, 15)
    assert nest_of(written, bounds) == nest


def test_tiles_that_do_not_nest_by_multiples_have_no_timeloop_form() -> None:
    mapping = Mapping(Dims(P=13), Dims(P=5), Dims())
    with pytest.raises(NoTimeloopForm, match="P: the L2 tile 13 is no multiple of the L1 tile 5"):
        nest_of(mapping, Dims(P=100))


def test_idle_iterations_are_refused() -> None:
    nest = nest_of(Mapping(Dims(P=4), Dims(P=4), Dims()), Dims(P=8))
    dram = LOOPS[-1]
    factors = {**nest.factors, dram: {**nest.factors[dram], "P": Factor(5, 2)}}
    with pytest.raises(ValueError, match=r"P: factor 5,2 at DRAM temporal leaves idle iterations"):
        mapping_of(type(nest)(factors, nest.orders), Dims(P=8))
