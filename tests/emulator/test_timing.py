"""The cycle estimate by hand: full queues hold the core up, hardware loops get past them.

Side 16, 16 bytes a cycle over the bus, nothing that the cache lacks.  A load of 16 rows of 16 bytes takes
16 requests of 16 / 16 + 0.1 cycles, 17.6, and is over 20 cycles later; the next but one starts no sooner:
16 / side + 1 = 2 are under way.  A store reads 16 rows in 1.7 cycles each, 27.2 (16 on the bus),
and is over 40 later; a product of 16 rows takes 16 cycles and is over 2 x 16 later, the core 4 cycles per
instruction.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.emulator.isa import ACC, GARBAGE, Device, target

SIDE = 16
ISSUE, LOAD, LATENCY, PRODUCT, ARRAY = 4, 17.6, 20, 16, 32
STORE_ROWS, STORE_LATENCY = 27.2, 40
ELSEWHERE = 1024
"""First row of another scratchpad bank: loads into that of the operands hold products up."""
CORE = {"command": ISSUE, "loop": 8 * ISSUE}
PRODUCTS = 80
TILE = (SIDE, SIDE)
DRAM = np.ones((256, SIDE), np.int8)
"""One request per row."""


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


def landed(count: int) -> float:
    """When so many loads are over, from the start of the first.

    The third starts when the first is over, at LOAD + LATENCY, the fourth when the second is, LOAD later:
    a pair every LOAD + LATENCY.
    """
    pairs, one_more = divmod(count - 1, 2)
    return (pairs + 1) * (LOAD + LATENCY) + one_more * LOAD


def now(machine: Device) -> float:
    return machine.counts().cycles


def elapsed(machine: Device, since: float) -> object:
    machine.check()
    return pytest.approx(now(machine) - since)


def test_loads_that_fit_their_queue_hold_nothing_up(device: Device) -> None:
    since = now(device)
    load(device, 8)
    multiply(device)
    assert elapsed(device, since) == (8 + 2) * ISSUE + PRODUCTS * PRODUCT + ARRAY


def test_products_wait_behind_loads_without_an_entry(device: Device) -> None:
    """The twelfth load enters when the fourth is over; the products, which need none of them, come after."""
    since = now(device)
    load(device, 12)
    multiply(device)
    assert elapsed(device, since) == ISSUE + landed(4) + PRODUCTS * PRODUCT + ARRAY


def test_core_is_ten_instructions_ahead_of_a_full_queue(device: Device) -> None:
    """The twelfth load waits for the fourth; the core waits with the tenth instruction after it."""
    since = now(device)
    load(device, 12)
    flush(device, 200)
    assert elapsed(device, since) == ISSUE + landed(4) + (200 - 10) * ISSUE


def test_preload_and_compute_take_an_entry_each(device: Device) -> None:
    """The preload of product 40 enters when product 32 is over, and only then the eight loads behind it.

    They are over 168 cycles later, product 40 itself 128.
    """
    since = now(device)
    multiply(device, 40)
    load(device, 8)
    assert elapsed(device, since) == 2 * ISSUE + 32 * PRODUCT + ARRAY + landed(8)


def test_config_of_loads_gives_its_entry_back_at_once(device: Device) -> None:
    since = now(device)
    for tile in range(8):
        device.config_ld(SIDE, block_stride=SIDE)
        device.mvin(DRAM, ELSEWHERE + 16 * tile, *TILE)
    multiply(device)
    assert elapsed(device, since) == (16 + 2) * ISSUE + PRODUCTS * PRODUCT + ARRAY


def test_config_of_stores_keeps_its_entry_until_those_before_it_are_over(device: Device) -> None:
    """It and three stores take the four entries: the next store waits for the first, products behind it."""
    multiply(device, 1)
    device.fence()
    since = now(device)
    out = np.zeros(TILE, np.int8)
    for _ in range(3):
        device.mvout(out, ACC, *TILE)
    device.config_st(SIDE)
    device.mvout(out, ACC, *TILE)
    multiply(device, to=ACC + SIDE)
    assert elapsed(device, since) == ISSUE + STORE_ROWS + STORE_LATENCY + PRODUCTS * PRODUCT + ARRAY


def test_zero_fill_frees_its_entry_before_earlier_loads(device: Device) -> None:
    """The third starts when the first is over; 16 cycles later, no latency, the tenth takes its entry.

    The second is over 17.6 cycles after the first.
    """
    since = now(device)
    for tile in range(10):
        device.mvin(None if tile == 2 else DRAM, ELSEWHERE + 16 * tile, *TILE)
    multiply(device)
    assert elapsed(device, since) == ISSUE + landed(1) + 16 + PRODUCTS * PRODUCT + ARRAY


def test_double_buffering_overlaps_loads_with_products() -> None:
    """Alternating two halves, loads are only waited for once; in one, they wait for the products before."""

    def cycles(slots: int) -> float:
        device = Device(target(16, scratchpad_bytes=256 * 16, core=CORE), check_regions=False)
        tile = np.ones((16, 16), np.int8)
        device.config_ex()
        device.config_ld(16)
        for step in range(12):
            at = 128 * (step % slots)
            device.mvin(tile, at, 16, 16)
            device.mvin(tile, at + 64, 16, 16)  # another bank
            for _ in range(8):
                device.preload(at + 64, ACC, (16, 16), (16, 16))
                device.compute(at, GARBAGE, (16, 16), (16, 16))
        device.check()
        return device.counts().cycles

    loads, products = landed(2), 8 * PRODUCT
    assert cycles(1) == pytest.approx(3 * ISSUE + 12 * (loads + products) + ARRAY)
    assert cycles(2) == pytest.approx(3 * ISSUE + loads + 12 * products + ARRAY)


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
    since = now(loaded)
    loads_only(loaded, 12)
    products_only(loaded)
    assert elapsed(loaded, since) == 12 * ISSUE + 56 * PRODUCT + ARRAY


def test_third_loop_waits_until_the_first_has_sent_everything(loaded: Device) -> None:
    since = now(loaded)
    loads_only(loaded, 30)
    loop_ws(loaded, 1, 1, 1, LOAD_A | LOAD_B | MULTIPLY)  # sends nothing
    products_only(loaded)
    assert elapsed(loaded, since) == 6 * ISSUE + landed(22) + 56 * PRODUCT + ARRAY


def test_single_instructions_wait_until_a_loop_has_sent_everything(loaded: Device) -> None:
    since = now(loaded)
    loads_only(loaded, 12)
    multiply(loaded, at=ELSEWHERE)
    assert elapsed(loaded, since) == 6 * ISSUE + landed(4) + PRODUCTS * PRODUCT + ARRAY


def test_products_of_a_convolution_wait_until_its_loads_are_sent(device: Device) -> None:
    """4 rows of 16 pixels, 12 blocks of channels in, one out, 1 x 1: 4 zero fills, 48 + 12 loads.

    The last load enters when the eighth before it is over, the 52nd after the zero fills of 16 cycles each.
    Then the products run.  The first one's weights are in the bank that the last eight loads fill: of each
    pair's 37.6 cycles the port is free in 2.4, then in 1.6 while the 16 rows of either come in 17.6.  It has
    2.4 + 2 (2 x 1.6 + 2.4) + 1.6 = 15.2 of its 16 reads after 2.4 + 2 x 37.6 + 17.6 = 95.2 cycles, the rest
    after 0.8 x 17.6 / 1.6 = 8.8 more: 104.  The next weights are wanted after all loads (104 + 48 > 150.4).
    The last four blocks of channels share the weights' bank, whose port then takes twice 16 cycles for both.
    """
    pixels, channels = np.ones((64, 12 * SIDE), np.int8), 12 * SIDE
    weights = np.ones((channels, SIDE), np.int8)
    since = now(device)
    device.issue(16, SIDE << 48 | channels << 32 | 4 << 16 | 1, 1 << 48 | 16 << 32 | 4 << 16 | 4)
    device.issue(17, 1 << 48 | 16 << 32 | 1 << 16 | 1 << 8, 1 << 48 | 4 << 32 | 16 << 16 | SIDE)
    device.issue(18, 1 << 48 | 1 << 32 | channels << 16, 16)
    device.issue(19, 4 << 48 | 1, channels << 48 | SIDE << 32 | SIDE << 16 | 16)
    device.issue(20, weights.ctypes.data, 0)
    device.issue(21, 1, pixels.ctypes.data)
    device.issue(15, 1, 1)
    loads = 4 * 16 + landed(52)
    conflicts = (104 - 16) + 4 * 16
    assert elapsed(device, since) == 7 * ISSUE + loads + 48 * PRODUCT + conflicts + ARRAY


def test_a_load_into_the_bank_that_products_read_takes_a_cycle_of_theirs_per_row(device: Device) -> None:
    """16 rows come in 17.6 cycles; reads get what is left."""
    times = []
    for row in (32, ELSEWHERE):
        device.fence()
        since = now(device)
        device.mvin(DRAM, row, *TILE)
        multiply(device)
        device.check()
        times.append(now(device) - since)
    assert times == pytest.approx([3 * ISSUE + rows + PRODUCTS * PRODUCT + ARRAY for rows in (16, 0)])


def test_requests_are_whole_beats_of_a_line(device: Device) -> None:
    """16 bytes inside a line: one request; across two lines: two.  Packed pixels: a row per copy."""
    memory = np.zeros(4096, np.int8)
    line = memory[-memory.ctypes.data % 64 :]

    def load(first: int, columns: int, pixels: int = 1) -> float:
        device.config_ld(64, block_stride=SIDE, pixels=pixels)
        device.fence()
        since = now(device)
        device.mvin(line[first:], ELSEWHERE + 16, columns, SIDE)
        device.check()
        return now(device) - since - ISSUE - LATENCY

    assert load(0, 16) == pytest.approx(LOAD)
    assert load(48, 16) == pytest.approx(LOAD)
    assert load(56, 16) == pytest.approx(2 * LOAD)
    assert load(0, 2) == pytest.approx(LOAD)
    assert load(0, 2, pixels=8) == 8 * 16


def test_new_weights_take_as_long_as_the_array_is_high(device: Device) -> None:
    """Strips of 4 rows: 16 cycles with weights of their own, else 4, less than the core's 8 for a pair."""
    for new in (True, False):
        device.fence()
        since = now(device)
        for pair in range(20):
            device.preload(512 if new or not pair else GARBAGE, ACC, TILE, (4, SIDE))
            device.compute(0, GARBAGE, (4, SIDE), TILE, flip=new or not pair)
        busy = 2 * ISSUE + 20 * 16 if new else 20 * 2 * ISSUE + 4
        assert elapsed(device, since) == busy + ARRAY


def test_five_results_are_under_way_in_the_mesh() -> None:
    """Strips of 8 rows at side 32: each sixth waits for a result 8 + 2 x 32 cycles after the first started.

    Until then the core's 8 cycles for a pair are as many as the rows.
    """
    device = Device(target(32, scratchpad_bytes=1024 * 32, core=CORE), check_regions=False)
    device.config_ex()
    device.config_ld(32)
    tile, strip = (32, 32), (8, 32)
    device.mvin(np.ones(tile, np.int8), 0, *tile)
    device.mvin(np.ones(tile, np.int8), 512, *tile)
    device.preload(512, ACC, tile, strip)
    device.compute(0, GARBAGE, strip, tile, flip=True)
    device.fence()
    since = now(device)
    for _ in range(25):
        device.preload(GARBAGE, ACC, tile, strip)
        device.compute(0, GARBAGE, strip, tile, flip=False)
    assert elapsed(device, since) == 2 * ISSUE + 4 * 8 + 4 * (8 + 64) + 8 + 64


def test_array_of_side_32_has_one_load_under_way() -> None:
    """16 / 32 + 1 = 1: the next waits for the end of each.

    A row of 32 bytes is 2.1 cycles; 32 bias rows of 128 bytes, read once, are written in two parts each; the
    rows of a store are 2 cycles of the bus each, more than the 1.7 in which they are read.
    """
    device = Device(
        target(32, scratchpad_bytes=1024 * 32, accumulator_bytes=256 * 128, max_bytes=64, core=CORE),
        check_regions=False,
    )
    memory = np.ones(4096, np.int8)
    line = memory[-memory.ctypes.data % 64 :]

    def since_fence(count: int, instruction: Callable[[int], None]) -> float:
        device.fence()
        since = now(device)
        for tile in range(count):
            instruction(32 * tile)
        device.check()
        return now(device) - since - ISSUE

    device.config_ld(32, block_stride=32)
    device.config_st(32)
    loads = since_fence(5, lambda row: device.mvin(line, row, 32, 32))
    assert loads == pytest.approx(5 * (32 * 2.1 + LATENCY))
    device.config_ld(0, block_stride=32)
    assert since_fence(5, lambda row: device.mvin(line, ACC + row, 32, 32)) == 5 * (32 * 2 + LATENCY)
    stores = since_fence(5, lambda row: device.mvout(line, ACC + row, 32, 32))
    assert stores == 5 * 32 * 2 + STORE_LATENCY


def test_fence_takes_the_core_60_cycles(device: Device) -> None:
    since = now(device)
    flush(device, 1)
    device.fence()
    flush(device, 1)
    assert elapsed(device, since) == ISSUE + 60 + ISSUE
