"""Where a layer's tiles lie in scratchpad and accumulator, in rows.

Inputs from the bottom of the scratchpad, weights from the top (different banks, so that the array
reads both at once); a tile that is fetched more than once alternates between two places.
"""

from __future__ import annotations

from dataclasses import dataclass

from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.count.row_layout import input_rows, output_rows, weight_rows
from fadiff.costmodel.target.target import Target
from fadiff.emitters.gemmini.form import Form
from fadiff.emitters.gemmini.nest import Nest


@dataclass(frozen=True)
class LocalMemory:
    """First row of each place a tile uses: one, or two when it is double-buffered."""

    input: tuple[int, ...]
    weight: tuple[int, ...]
    output: tuple[int, ...]
    crosses_banks: bool = False
    """An output tile that is pooled as it is stored reaches into the second half of the accumulator: nothing
    but a fence orders the products there before the stores."""


def weight_tile_rows(form: Form, tile: Dims) -> int:
    """Scratchpad rows of a weight tile."""
    return int(
        weight_rows(
            tuple(tile), tuple(form.mapping.rows), tuple(form.mapping.cols), transposed=form.transposed
        )
    )


def plan_local_memory(
    form: Form,
    nest: Nest,
    target: Target,
    *,
    scratchpad: int,
    resident: int | None,
    pools: bool,
) -> LocalMemory:
    """Place the tiles of one layer.

    `scratchpad` rows at the top are taken; `resident` is the first row of its own weights if they stay.
    `pools`: its stores pool.
    """
    l2, l1 = form.mapping.tile_l2, form.mapping.tile_l1
    h = (l2.P - 1) * form.y.stride + (l2.R - 1) * form.y.dilation + 1
    w = (l2.Q - 1) * form.x.stride + (l2.S - 1) * form.x.dilation + 1
    rows, cols = tuple(form.mapping.rows), tuple(form.mapping.cols)
    inputs = [int(input_rows(tuple(l2), rows, cols, h * w))] * (2 if nest.fetch_position("I", "L2") else 1)
    weights: list[int] = []
    if resident is None:
        weights = [weight_tile_rows(form, l2)] * (2 if nest.fetch_position("W", "L2") else 1)
    output = int(output_rows(tuple(l1), cols))
    # Of a store that pools Gemmini locks its bank (one of two) from the first row on: one tile in each.
    second = target.accumulator_rows // 2 if pools else output
    outputs = (0, second) if nest.fetch_position("O", "L1") else (0,)
    assert outputs[-1] + output <= target.accumulator_rows, f"{form.layer.name}: accumulator"
    top = target.scratchpad_rows - scratchpad
    if form.repeats > 1 and form.mapping.issue == "instructions":  # the loop unit keeps tiles in halves
        places = _avoid_middle(form, inputs, weights, top, target.scratchpad_rows // 2)
    else:
        assert sum(inputs) + sum(weights) <= top, f"{form.layer.name}: scratchpad"
        places = _stack(inputs, 0) + _stack(weights, top - sum(weights))
    own = places[len(inputs) :] if resident is None else (resident,)
    crosses = pools and outputs[-1] < target.accumulator_rows // 2 < outputs[-1] + output
    return LocalMemory(places[: len(inputs)], own, outputs, crosses)


def _stack(sizes: list[int], start: int) -> tuple[int, ...]:
    return tuple(start + sum(sizes[:i]) for i in range(len(sizes)))


def _avoid_middle(
    form: Form, inputs: list[int], weights: list[int], top: int, middle: int
) -> tuple[int, ...]:
    """The places that packed_inputs_fit promises: every input tile lies in one half.

    The repeater also writes up to repeats - 1 rows before a tile.  Those may be the end of another
    input tile (where the extra pixels land is never read) or unused, and below the middle nothing
    is written from above.
    """
    size, guard = inputs[0], form.repeats - 1
    places: list[tuple[tuple[int, ...], int, int]] = []
    if sum(inputs) <= middle:
        places.append((_stack(inputs, 0), sum(inputs), top))
    if len(inputs) == 2 and size <= middle <= top - size:
        places.append(((0, top - size), size, top - size - guard))
        places.append(((0, middle), middle + size, top))
        places.append(((0, middle), size, middle))
    for starts, low, high in places:
        if sum(weights) <= high - low:
            return starts + _stack(weights, high - sum(weights))
    raise AssertionError(
        f"{form.layer.name}: fadiff.costmodel.count.row_layout.packed_inputs_fit let {inputs} pass"
    )
