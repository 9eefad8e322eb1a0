"""The cycle estimate by hand: full queues hold the core up, hardware loops get past them.

A load of 16 rows takes 16 requests of 3 cycles and is over 20 cycles later, a store as many and is over 45
later, a product of 16 rows 16 cycles and is over 16 later, the core 4 cycles per instruction.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.isa import ACC, GARBAGE, Device, target

SIDE = 16
ISSUE, LOAD, LATENCY, PRODUCT, ARRAY = 4, 48, 20, 16, 16
STORE_LATENCY = 45
ELSEWHERE = 1024
"""First row of another scratchpad bank: loads into that of the operands hold products up."""
CORE = {"command": ISSUE, "loop": 8 * ISSUE}
PRODUCTS = 80
TILE = (SIDE, SIDE)
DRAM = np.ones((256, SIDE), np.int8)
"""A quarter of a DMA request per row, whole rows."""


@pytest.fixture
def device() -> Device:
    """Operands at rows 0 (A) and 512 (B, another bank), nothing in flight."""
    machine = Device(
        target(
            SIDE, scratchpad_bytes=2048 * SIDE, accumulator_bytes=256 * SIDE * 4, max_bytes=SIDE, core=CORE
        ),
        check_regions=False,
    )
    machine.config_ex()
    for state in range(3):
        machine.config_ld(SIDE, state=state, block_stride=SIDE)
    machine.config_st(SIDE)
    machine.mvin(DRAM, 0, *TILE)
    machine.mvin(DRAM, 512, *TILE)
    machine.fence()
    return machine


def load(machine: Device, count: int) -> None:
    for tile in range(count):
        machine.mvin(DRAM, ELSEWHERE + 16 * tile, *TILE)


def multiply(machine: Device, count: int = PRODUCTS, to: int = ACC, at: int = 0) -> None:
    for product in range(count):
        machine.preload(GARBAGE if product else at + 512, to, TILE, TILE)
        machine.compute(at, GARBAGE, TILE, TILE, flip=product == 0)


def flush(machine: Device, count: int) -> None:
    """Instructions that take no entry."""
    for _ in range(count):
        machine.issue(7, 0, 0)


def elapsed(machine: Device, since: int) -> int:
    machine.check()
    return machine.cycles() - since


def test_loads_that_fit_their_queue_hold_nothing_up(device: Device) -> None:
    since = device.cycles()
    load(device, 8)
    multiply(device)
    assert elapsed(device, since) == (8 + 2) * ISSUE + PRODUCTS * PRODUCT + ARRAY


def test_products_wait_behind_loads_without_an_entry(device: Device) -> None:
    """The twelfth load enters when the fourth is over; the products, which need none of them, come after."""
    since = device.cycles()
    load(device, 12)
    multiply(device)
    assert elapsed(device, since) == ISSUE + 4 * LOAD + LATENCY + PRODUCTS * PRODUCT + ARRAY


def test_core_is_ten_instructions_ahead_of_a_full_queue(device: Device) -> None:
    """The twelfth load waits for the fourth; the core waits with the tenth instruction after it."""
    since = device.cycles()
    load(device, 12)
    flush(device, 200)
    assert elapsed(device, since) == ISSUE + 4 * LOAD + LATENCY + (200 - 10) * ISSUE


def test_preload_and_compute_take_an_entry_each(device: Device) -> None:
    """The preload of product 40 enters when product 32 is over, and only then the four loads behind it."""
    since = device.cycles()
    multiply(device, 40)
    load(device, 4)
    assert elapsed(device, since) == 2 * ISSUE + 32 * PRODUCT + ARRAY + 4 * LOAD + LATENCY


def test_config_of_loads_gives_its_entry_back_at_once(device: Device) -> None:
    since = device.cycles()
    for tile in range(8):
        device.config_ld(SIDE, block_stride=SIDE)
        device.mvin(DRAM, ELSEWHERE + 16 * tile, *TILE)
    multiply(device)
    assert elapsed(device, since) == (16 + 2) * ISSUE + PRODUCTS * PRODUCT + ARRAY


def test_config_of_stores_keeps_its_entry_until_those_before_it_are_over(device: Device) -> None:
    """It and three stores take the four entries: the next store waits for the first, products behind it."""
    multiply(device, 1)
    device.fence()
    since = device.cycles()
    out = np.zeros(TILE, np.int8)
    for _ in range(3):
        device.mvout(out, ACC, *TILE)
    device.config_st(SIDE)
    device.mvout(out, ACC, *TILE)
    multiply(device, to=ACC + SIDE)
    assert elapsed(device, since) == ISSUE + LOAD + STORE_LATENCY + PRODUCTS * PRODUCT + ARRAY


def test_zero_fill_frees_its_entry_before_earlier_loads(device: Device) -> None:
    """Sixteen cycles after its start, no latency: the ninth load takes the entry of the second."""
    since = device.cycles()
    device.mvin(DRAM, ELSEWHERE, *TILE)
    device.mvin(None, ELSEWHERE + 16, *TILE)
    for tile in range(7):
        device.mvin(DRAM, ELSEWHERE + 32 + 16 * tile, *TILE)
    multiply(device)
    assert elapsed(device, since) == ISSUE + LOAD + 16 + PRODUCTS * PRODUCT + ARRAY


def test_double_buffering_overlaps_loads_with_products() -> None:
    """The estimate: alternating two halves takes less time than one buffer that each load must wait for."""

    def cycles(slots: int) -> float:
        device = Device(target(16, scratchpad_bytes=256 * 16), check_regions=False)
        tile = np.ones((16, 16), np.int8)
        device.config_ex()
        device.config_ld(16)
        for step in range(12):
            at = 32 * (step % slots)
            device.mvin(tile, at, 16, 16)
            device.mvin(tile, at + 16, 16, 16)
            for _ in range(8):
                device.preload(at + 16, ACC, (16, 16), (16, 16))
                device.compute(at, GARBAGE, (16, 16), (16, 16))
        device.check()
        return device.counts().cycles

    assert cycles(2) < 0.8 * cycles(1)


LOAD_A, LOAD_B, LOAD_D, MULTIPLY, STORE = (1 << bit for bit in range(3, 8))


def loop_ws(machine: Device, rows: int, depth: int, half: int, skip: int) -> None:
    """rows x depth blocks of A times depth blocks of B in a half of the scratchpad; six instructions."""
    machine.issue(9, 0, depth << 32 | 1 << 16 | rows)
    machine.issue(10, DRAM.ctypes.data, DRAM.ctypes.data)
    machine.issue(11, 0, 0)
    machine.issue(12, 0, 0)
    machine.issue(13, 0, 0)
    machine.issue(8, half << 18 | half << 16, skip | LOAD_D | STORE)


@pytest.fixture
def loaded(device: Device) -> Device:
    """8 x 7 blocks of A and 7 of B in the second half."""
    loop_ws(device, 8, 7, 2, MULTIPLY)
    device.fence()
    return device


def loads_only(machine: Device, count: int) -> None:
    loop_ws(machine, 1, count, 1, LOAD_B | MULTIPLY)


def products_only(machine: Device) -> None:
    loop_ws(machine, 8, 7, 2, LOAD_A | LOAD_B)


def test_products_of_a_loop_pass_the_loads_of_the_one_before(loaded: Device) -> None:
    since = loaded.cycles()
    loads_only(loaded, 12)
    products_only(loaded)
    assert elapsed(loaded, since) == 12 * ISSUE + 56 * PRODUCT + ARRAY


def test_third_loop_waits_until_the_first_has_sent_everything(loaded: Device) -> None:
    since = loaded.cycles()
    loads_only(loaded, 30)
    loop_ws(loaded, 1, 1, 1, LOAD_A | LOAD_B | MULTIPLY)  # sends nothing
    products_only(loaded)
    assert elapsed(loaded, since) == 6 * ISSUE + 22 * LOAD + LATENCY + 56 * PRODUCT + ARRAY


def test_single_instructions_wait_until_a_loop_has_sent_everything(loaded: Device) -> None:
    since = loaded.cycles()
    loads_only(loaded, 12)
    multiply(loaded, at=ELSEWHERE)
    assert elapsed(loaded, since) == 6 * ISSUE + 4 * LOAD + LATENCY + PRODUCTS * PRODUCT + ARRAY


def test_products_of_a_convolution_wait_until_its_loads_are_sent(device: Device) -> None:
    """4 rows of 16 pixels, 12 blocks of channels in, one out, 1 x 1: 4 zero fills, 48 + 12 loads.

    The last load enters when the eighth before it is over; then the 48 products run without a pause.
    """
    pixels, channels = np.ones((64, 12 * SIDE), np.int8), 12 * SIDE
    weights = np.ones((channels, SIDE), np.int8)
    since = device.cycles()
    device.issue(16, SIDE << 48 | channels << 32 | 4 << 16 | 1, 1 << 48 | 16 << 32 | 4 << 16 | 4)
    device.issue(17, 1 << 48 | 16 << 32 | 1 << 16 | 1 << 8, 1 << 48 | 4 << 32 | 16 << 16 | SIDE)
    device.issue(18, 1 << 48 | 1 << 32 | channels << 16, 16)
    device.issue(19, 4 << 48 | 1, channels << 48 | SIDE << 32 | SIDE << 16 | 16)
    device.issue(20, weights.ctypes.data, 0)
    device.issue(21, 1, pixels.ctypes.data)
    device.issue(15, 1, 1)
    loads = 4 * 16 + 52 * LOAD + LATENCY
    without_conflicts = 7 * ISSUE + loads + 48 * PRODUCT + ARRAY
    last_weights = 8 * 16  # rows that may be written into a bank as products read it
    assert without_conflicts <= elapsed(device, since) <= without_conflicts + last_weights


def test_a_load_into_the_bank_that_products_read_takes_a_cycle_of_theirs_per_row(device: Device) -> None:
    times = []
    for row in (32, ELSEWHERE):
        device.fence()
        since = device.cycles()
        device.mvin(DRAM, row, *TILE)
        multiply(device)
        times.append(elapsed(device, since))
    assert times[0] - times[1] in (15, 16)  # whole cycles of both


def test_requests_are_whole_beats_of_a_line(device: Device) -> None:
    """16 bytes inside a line: one request; across two lines: two.  Packed pixels: a row per copy."""
    memory = np.zeros(4096, np.int8)
    line = memory[-memory.ctypes.data % 64 :]

    def load(first: int, columns: int, pixels: int = 1) -> int:
        device.config_ld(64, block_stride=SIDE, pixels=pixels)
        device.fence()
        since = device.cycles()
        device.mvin(line[first:], ELSEWHERE + 16, columns, SIDE)
        device.fence()
        return elapsed(device, since)

    assert load(48, 16) - load(0, 16) == 0
    assert load(56, 16) - load(0, 16) == LOAD
    assert load(0, 2, pixels=8) - load(0, 2) == 8 * 16 - LOAD
