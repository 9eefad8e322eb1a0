"""What the hardware does not order by itself: which instructions need a fence between them, which not."""

from __future__ import annotations

import numpy as np

from tests.emulator.isa import ACC, GARBAGE, ROWS, Device, load_operands, local, target


def test_missing_fence_between_store_and_load(device: Device) -> None:
    buffer = np.zeros((4, 4), np.int8)
    device.mvin(ROWS, 0, 4, 4)
    device.mvout(buffer, 0, 4, 4)
    device.fence()
    device.mvin(buffer, 8, 4, 4)
    assert device.error is None
    device.mvout(buffer, 0, 4, 4)
    device.mvin(buffer[2:], 12, 4, 1)
    device.expect_error("earlier mvout wrote, without a fence")


def test_neighbouring_bytes_need_no_fence(device: Device) -> None:
    buffer = np.zeros((8, 4), np.int8)
    device.mvin(ROWS, 0, 4, 4)
    device.mvout(buffer, 0, 4, 4)
    device.mvin(buffer[4:], 8, 4, 4)
    assert device.error is None


def test_the_core_reads_after_a_fence(device: Device) -> None:
    buffer = np.zeros((4, 4), np.int8)
    device.mvin(ROWS, 0, 4, 4)
    device.mvout(buffer, 0, 4, 4)
    device.require_fence("layer softmax")
    device.expect_error("layer softmax reads memory that Gemmini stored to since the last fence")


def test_overlapping_loads_in_flight(device: Device) -> None:
    device.mvin(None, 0, 4, 4)
    device.mvin(ROWS, 3, 4, 1)
    device.expect_error("scratchpad row 3 is loaded again while an earlier mvin of it may be in flight")


def test_loads_apart_or_fenced_or_consumed(device: Device) -> None:
    device.mvin(None, 0, 4, 4)
    device.mvin(ROWS, 4, 4, 4)  # disjoint
    device.fence()
    device.mvin(ROWS, 0, 4, 4)  # fenced
    device.mvout(np.zeros((4, 4), np.int8), 0, 4, 1)
    device.mvin(ROWS, 0, 4, 4)  # a store waited for all of the earlier load
    assert device.error is None


def test_offset_read_of_a_fresh_result(device: Device) -> None:
    """The hardware compares start rows only: a result read from its second row on is not protected."""
    load_operands(device)
    device.mvin(None, ACC | 8, 4, 4, state=2)
    device.preload(4, ACC, (4, 4), (4, 4))
    device.compute(0, GARBAGE, (4, 4), (4, 4))
    device.preload(4, ACC | 8, (4, 4), (3, 4))
    device.compute(ACC | 1, GARBAGE, (3, 4), (4, 4))
    device.expect_error("without a fence: the hardware only tracks equal start rows")
    device.reset()
    device.config_ex()
    device.config_ld(4)
    device.config_ld(16, state=2)
    load_operands(device)
    device.mvin(None, ACC | 8, 4, 4, state=2)
    device.preload(4, ACC, (4, 4), (4, 4))
    device.compute(0, GARBAGE, (4, 4), (4, 4))
    device.fence()
    device.preload(4, ACC | 8, (4, 4), (3, 4))
    device.compute(ACC | 1, GARBAGE, (3, 4), (4, 4))
    assert device.error is None


def copied_to_scratchpad(stride: int) -> Device:
    """After STORE_SPAD of a 4 x 4 tile to rows `stride` apart from row 8 on."""
    machine = Device(target(use_tl_ext_mem=True), check_regions=False)
    machine.config_ex()
    machine.config_ld(4)
    machine.config_ld(16, state=2)
    machine.config_st(4)
    load_operands(machine)
    machine.issue(23, stride << 32 | 8, local(ACC, 4, 4))
    return machine


def test_scratchpad_copy_source_is_not_protected() -> None:
    machine = copied_to_scratchpad(stride=1)
    machine.preload(4, ACC, (4, 4), (4, 4))
    machine.compute(0, GARBAGE, (4, 4), (4, 4))
    machine.expect_error("overwritten while STORE_SPAD may still read it")


def test_scratchpad_copies_with_a_stride_are_tracked_as_if_adjacent() -> None:
    row = np.ones((1, 4), np.int8)
    adjacent = copied_to_scratchpad(1)
    adjacent.mvin(row, 11, 4, 1)
    assert adjacent.error is None
    near = copied_to_scratchpad(2)
    near.mvin(row, 10, 4, 1)  # the fourth row that the hardware tracks is 11
    assert near.error is None
    near.mvin(row, 12, 4, 1)
    near.expect_error("row 12 was written by a STORE_SPAD with a destination stride above 1")
    product = copied_to_scratchpad(2)
    product.preload(4, ACC | 8, (4, 4), (1, 4))
    product.compute(14, GARBAGE, (4, 1), (4, 1))
    product.expect_error("row 14 was written by a STORE_SPAD")
    stores = copied_to_scratchpad(2)
    stores.mvout(np.zeros((1, 4), np.int8), 14, 4, 1)  # issued after the copy is over
    stores.fence()
    stores.mvin(row, 12, 4, 1)
    assert stores.error is None


def computed_in_both_banks(machine: Device) -> None:
    """Rows 12 to 19 of 32: four in each half of the accumulator."""
    load_operands(machine)
    for row in (12, 16):
        machine.preload(4, ACC | row, (4, 4), (4, 4))
        machine.compute(0, GARBAGE, (4, 4), (4, 4))


def test_pooling_waits_for_the_bank_of_its_first_row_only(device: Device) -> None:
    out = np.zeros((2, 4), np.int8)
    computed_in_both_banks(device)
    device.config_st(4, pool=(2, 2, 2, 1, 2, 2, 4, 0, 0))
    device.mvout(out, ACC | 12, 4, 0)
    device.expect_error("accumulator row 16 is pooled from row 12 on", "without a fence")


def test_rows_pooled_across_the_middle_are_not_protected(device: Device) -> None:
    out = np.zeros((2, 4), np.int8)
    computed_in_both_banks(device)
    device.fence()
    device.config_st(4, pool=(2, 2, 2, 1, 2, 2, 4, 0, 0))
    device.mvout(out, ACC | 12, 4, 0)
    assert device.error is None
    device.preload(4, ACC | 16, (4, 4), (4, 4))
    device.compute(0, GARBAGE, (4, 4), (4, 4))
    device.expect_error("accumulator row 16 is overwritten", "pools across the middle")


def test_pooling_inside_one_bank_needs_no_fence(device: Device) -> None:
    out = np.zeros((1, 4), np.int8)
    computed_in_both_banks(device)
    device.config_st(4, pool=(2, 2, 1, 1, 1, 2, 2, 0, 0))
    device.mvout(out, ACC | 16, 4, 0)
    device.preload(4, ACC | 16, (4, 4), (4, 4))
    device.compute(0, GARBAGE, (4, 4), (4, 4))
    assert device.error is None


def test_last_rows_of_a_packed_load_are_not_tracked() -> None:
    """The reservation station's range of a packed mvin ends pixel_repeats - 1 rows early."""
    pixels = np.ones((16, 3), np.int8)
    out = np.zeros((8, 6), np.int8)

    def machine() -> Device:
        device = Device(target(8, scratchpad_bytes=128 * 8, max_bytes=32), check_regions=False)
        device.config_ld(3, pixels=2)
        device.config_st(6)
        device.mvin(pixels, 8, 3, 8)
        device.mvin(pixels[8:], 16, 3, 8)
        return device

    alone = machine()
    alone.mvout(out, 15, 6, 8)
    alone.expect_error("row 15 is among the last pixel_repeats - 1 rows of an mvin that may be in flight")
    after_its_first_rows = machine()
    after_its_first_rows.mvout(out, 8, 6, 4)
    after_its_first_rows.mvout(out, 15, 6, 8)
    assert after_its_first_rows.error is None
    fenced = machine()
    fenced.fence()
    fenced.mvout(out, 15, 6, 8)
    assert fenced.error is None


def test_what_the_core_stores_is_there_after_a_fence(device: Device) -> None:
    """RISC-V's memory model lets the core's stores become visible after a later custom instruction."""
    buffer = np.zeros((8, 4), np.int8)
    device.core_stored(buffer.ctypes.data, 16)
    device.mvin(buffer[4:], 8, 4, 4)  # beside it
    device.fence()
    device.mvin(buffer, 0, 4, 4)
    device.fence()
    assert device.error is None
    device.core_stored(buffer[3:].ctypes.data, 1)
    device.mvin(buffer, 4, 4, 4)
    device.expect_error("loads", "that the core wrote, without a fence between")


def test_stores_over_what_the_core_wrote_need_a_fence(device: Device) -> None:
    """The core's store may come after Gemmini's."""
    buffer = np.zeros((4, 4), np.int8)
    device.mvin(ROWS, 0, 4, 4)
    device.core_stored(buffer.ctypes.data, 4)
    device.mvout(buffer, 0, 4, 4)
    device.expect_error("stores to", "that the core wrote, without a fence between")
