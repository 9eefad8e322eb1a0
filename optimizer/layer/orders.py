"""Loop orders that can be optimal, and what the others are equivalent to.

Each loop dimension is irrelevant to exactly one operand (P Q N to W, K to I, C R S to O), so at
most one operand can be stationary under the DRAM loops: the innermost non-unit loop decides, and
three orders cover all permutations (DOSA's WS, IS and OS).  G is relevant to every operand and
goes outermost.  Inside, only W is held below the accumulator, so pixels stream innermost.
"""

from __future__ import annotations

from typing import Literal

from costmodel.mapping.mapping import (
    INPUT_STATIONARY,
    OUTPUT_STATIONARY,
    STREAM_ORDER,
    WEIGHT_STATIONARY,
    Order,
)

Stationary = Literal["WS", "IS", "OS"]

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
L0_ORDER: Order = STREAM_ORDER
