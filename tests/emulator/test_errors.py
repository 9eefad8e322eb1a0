"""Every rule the functional model enforces, broken on purpose: what it says names the place."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.isa import ACC, ACCUMULATE, FULL, GARBAGE, OS, WS, Device, bits, local, target


@pytest.fixture
def device() -> Device:
    machine = Device(target(), check_regions=False)
    machine.config_ex()
    machine.config_ld(4)
    machine.config_ld(16, state=2)
    machine.config_st(4)
    return machine


ROWS = np.arange(64, dtype=np.int8).reshape(16, 4)
WORDS = np.arange(64, dtype=np.int32).reshape(16, 4)


def test_instruction_number_and_layer_are_named(device: Device) -> None:
    device.enter_layer(3, "conv7")
    device.mvin(ROWS, 0, 4, 4)
    device.mvin(ROWS, 62, 4, 4)
    device.expect_error(
        "instruction 6", "mvin", "spad[62] 4x4", "layer conv7", "row 65 is beyond its 64 rows"
    )


def test_a_machine_with_an_error_ignores_the_rest(device: Device) -> None:
    device.mvin(ROWS, 64, 4, 1)
    first = device.error
    device.mvin(ROWS, 99, 4, 1)
    assert device.error == first
    device.reset()
    assert device.error is None


@pytest.mark.parametrize(
    ("cols", "rows", "address", "words"),
    [
        (4, 5, 0, "5 rows: one mvin moves 1 to DIM=4"),
        (4, 0, 0, "0 rows"),
        (17, 1, 0, "17 columns: one mvin moves 1 to 16"),
        (5, 1, ACC, "5 columns: one mvin moves 1 to 4 here (MAX_BLOCK_LEN_ACC"),
        (4, 4, ACC | 30, "accumulator row 33 is beyond its 32 rows"),
        (4, 1, GARBAGE, "garbage"),
        (4, 1, ACC | 1 << 26, "normalisation"),
    ],
)
def test_load_limits(device: Device, cols: int, rows: int, address: int, words: str) -> None:
    device.mvin(WORDS, address, cols, rows)
    device.expect_error(words)


def test_block_stride_holds_all_rows(device: Device) -> None:
    device.config_ld(4, block_stride=3)
    device.mvin(ROWS, 0, 4, 4)
    device.expect_error("block_stride 3 is less than the 4 rows")


def test_load_needs_a_configuration() -> None:
    machine = Device(target(), check_regions=False)
    machine.mvin(ROWS, 0, 4, 4)
    machine.expect_error("no config_ld for load state 0")


@pytest.mark.parametrize(
    ("cols", "rows", "address", "words"),
    [
        (4, 5, 0, "5 rows: one mvout moves 1 to DIM=4"),
        (17, 1, 0, "17 columns"),
        (5, 1, ACC | FULL, "full width: one block"),
    ],
)
def test_store_limits(device: Device, cols: int, rows: int, address: int, words: str) -> None:
    device.mvout(ROWS.copy(), address, cols, rows)
    device.expect_error(words)


def test_full_width_needs_the_feature() -> None:
    machine = Device(target(has_full_width_read=False), check_regions=False)
    machine.config_st(16)
    machine.mvout(WORDS.copy(), ACC | FULL, 4, 1)
    machine.expect_error("ACC_READ_FULL_WIDTH")


def test_uninitialised_rows_and_columns(device: Device) -> None:
    device.mvin(ROWS, 0, 3, 4)
    device.mvout(ROWS.copy(), 0, 4, 4)
    device.expect_error("scratchpad row 0 is read (columns 0..3) before anything wrote all of them")
    device.reset()
    device.config_st(4)
    device.mvout(ROWS.copy(), ACC | 5, 4, 1)
    device.expect_error("accumulator row 5 is read", "before anything wrote it")


def test_accumulating_onto_nothing(device: Device) -> None:
    device.mvin(WORDS, ACC | ACCUMULATE | 2, 4, 1, state=2)
    device.expect_error("accumulator row 2 is accumulated onto before anything wrote it")


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


def test_dram_outside_every_region() -> None:
    machine = Device(target())
    machine.add_region(0, "input", ROWS.ctypes.data, 16, "I", "dram")
    machine.enter_layer(0, "conv1")
    machine.config_ld(4)
    machine.mvin(ROWS, 0, 4, 4)
    assert machine.error is None
    machine.mvin(ROWS[1:], 8, 4, 4)
    machine.expect_error("mvin dram=input+4", "outside every DRAM region of the layer", "layer conv1")


def test_store_into_a_constant() -> None:
    machine = Device(target())
    weights = ROWS.copy()
    machine.add_region(0, "weights", weights.ctypes.data, weights.nbytes, "W", "dram")
    machine.enter_layer(0, "conv1")
    machine.config_ld(4)
    machine.config_st(4)
    machine.mvin(weights, 0, 4, 4)
    machine.mvout(weights, 0, 4, 4)
    machine.expect_error("stores into weights, which the layer only reads")


def test_regions_belong_to_their_layer() -> None:
    machine = Device(target())
    machine.add_region(0, "input", ROWS.ctypes.data, ROWS.nbytes, "I", "dram")
    machine.enter_layer(1, "conv2")
    machine.config_ld(4)
    machine.mvin(ROWS, 0, 4, 4)
    machine.expect_error("outside every DRAM region", "layer conv2")


def loaded(device: Device) -> None:
    """A in rows 0..3, B in rows 4..7, zeros in accumulator rows 0..3."""
    device.mvin(ROWS, 0, 4, 4)
    device.mvin(ROWS[4:], 4, 4, 4)
    device.mvin(None, ACC, 4, 4, state=2)


def test_compute_rules(device: Device) -> None:
    loaded(device)
    device.compute(0, GARBAGE, (4, 4), (4, 4))
    device.expect_error("COMPUTE without a PRELOAD")
    device.reset()
    device.config_ex()
    device.config_ld(4)
    device.config_ld(16, state=2)
    loaded(device)
    device.preload(4, ACC, (4, 4), (4, 4))
    device.preload(4, ACC, (4, 4), (4, 4))
    device.expect_error("a PRELOAD already waits")


def test_keeping_a_matrix_that_is_not_there(device: Device) -> None:
    loaded(device)
    device.preload(GARBAGE, ACC, (4, 4), (4, 4))
    device.compute(0, GARBAGE, (4, 4), (4, 4), flip=False)
    device.expect_error("before any COMPUTE_PRELOADED")


def test_preloaded_matrix_must_be_used(device: Device) -> None:
    loaded(device)
    device.preload(4, ACC, (4, 4), (4, 4))
    device.compute(0, GARBAGE, (4, 4), (4, 4), flip=False)
    device.expect_error("the preloaded matrix is never used")


def test_compute_reads_only_what_is_there(device: Device) -> None:
    loaded(device)
    device.preload(6, ACC, (4, 4), (4, 4))
    device.expect_error("preload BD=spad[6] 4x4", "scratchpad row 8 is read")


def test_operand_sizes(device: Device) -> None:
    loaded(device)
    device.preload(4, ACC, (5, 4), (4, 4))
    device.expect_error("operand B has 5 rows and 4 columns")


def test_accumulator_operands_need_the_feature() -> None:
    machine = Device(target(ex_read_from_acc=False), check_regions=False)
    machine.config_ex()
    machine.config_ld(4)
    machine.config_ld(16, state=2)
    loaded(machine)
    machine.preload(4, ACC, (4, 4), (4, 4))
    machine.compute(ACC, GARBAGE, (4, 4), (4, 4))
    machine.expect_error("operand A is in the accumulator", "ex_read_from_acc")


def test_offset_read_of_a_fresh_result(device: Device) -> None:
    """The hardware compares start rows only: a result read from its second row on is not protected."""
    loaded(device)
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
    loaded(device)
    device.mvin(None, ACC | 8, 4, 4, state=2)
    device.preload(4, ACC, (4, 4), (4, 4))
    device.compute(0, GARBAGE, (4, 4), (4, 4))
    device.fence()
    device.preload(4, ACC | 8, (4, 4), (3, 4))
    device.compute(ACC | 1, GARBAGE, (3, 4), (4, 4))
    assert device.error is None


def test_twenty_bit_sums() -> None:
    machine = Device(target(32), check_regions=False)
    machine.config_ex()
    machine.config_ld(32)
    ones = np.full((32, 32), -128, np.int8)
    machine.mvin(ones, 0, 32, 32)
    machine.mvin(ones, 32, 32, 32)
    machine.preload(32, ACC, (32, 32), (32, 32))
    machine.compute(0, GARBAGE, (32, 32), (32, 32))
    machine.expect_error("524288", "20 bits")


def test_output_stationary_saturation() -> None:
    machine = Device(target(16), check_regions=False)
    machine.config_ex(OS)
    machine.config_ld(16)
    big = np.full((16, 16), 127, np.int8)
    machine.mvin(big, 0, 16, 16)
    for step in range(3):
        machine.preload(GARBAGE, ACC if step == 2 else GARBAGE, (16, 16), (16, 16))
        machine.compute(0, 0, (16, 16), (16, 16), flip=step == 0)
    machine.expect_error("saturates it to 20 bits")


@pytest.mark.parametrize(
    ("rs1", "words"),
    [
        (3, "CONFIG_NORM"),
        (bits(1.0) << 32 | 2 << 3 | WS << 2, "activation 2 is not modelled"),
        (bits(1.0) << 32 | WS << 2 | 3 << 8, "cannot transpose both A and B"),
        (bits(1.0) << 32 | 2 << 8, "cannot transpose B alone"),
        (3 << 3 | 1, "load state 3"),
        (1 << 6 | 2, "pool_size 1 with pool_stride 0"),
        (bits(float("nan")) << 32 | 1, "not a finite float"),
    ],
)
def test_configurations(device: Device, rs1: int, words: str) -> None:
    device.issue(0, rs1, 0)
    device.expect_error(words)


def test_row_packing_limits() -> None:
    machine = Device(target(has_row_packing=False), check_regions=False)
    machine.config_ld(4, pixels=2)
    machine.expect_error("HAS_FIRST_LAYER_OPTIMIZATIONS")
    machine = Device(target(), check_regions=False)
    machine.config_ld(4, pixels=2)
    machine.mvin(ROWS, 0, 3, 4)
    machine.expect_error("pixel_repeats 2 of 3 columns do not fit a row of 4")


def test_scratchpad_copy_needs_external_memory(device: Device) -> None:
    loaded(device)
    device.issue(23, 1 << 32 | 8, local(ACC, 4, 4))
    device.expect_error("STORE_SPAD needs a Gemmini with use_tl_ext_mem")


def copied_to_scratchpad(stride: int) -> Device:
    """After STORE_SPAD of a 4 x 4 tile to rows `stride` apart from row 8 on."""
    machine = Device(target(use_tl_ext_mem=True), check_regions=False)
    machine.config_ex()
    machine.config_ld(4)
    machine.config_ld(16, state=2)
    machine.config_st(4)
    loaded(machine)
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


def test_unknown_instructions(device: Device) -> None:
    device.issue(77, 0, 0)
    device.expect_error("no instruction has funct 77")


def test_hardware_loops_use_half_of_each_memory(device: Device) -> None:
    device.issue(9, 0, 4 << 32 | 1 << 16 | 5)  # K=4, J=1, I=5 blocks
    device.issue(8, 0, 0)
    device.expect_error("loop_ws", "A and B take 96 rows, half the scratchpad is 32")
    device.reset()
    device.issue(9, 0, 1 << 32 | 2 << 16 | 3)
    device.issue(8, 0, 0)
    device.expect_error("C takes 24 rows, half the accumulator is 16")


def computed_in_both_banks(machine: Device) -> None:
    """Rows 12 to 19 of 32: four in each half of the accumulator."""
    loaded(machine)
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


def test_pooling_counts_its_taps(device: Device) -> None:
    out = np.zeros((20, 4), np.int8)
    device.config_st(4, pool=(1, 2, 5, 4, 5, 5, 6, 0, 0))
    device.mvout(out, ACC, 4, 0)
    device.expect_error("pooling 80 taps in one mvout: the store controller counts up to 64")


def test_pooling_needs_the_feature() -> None:
    machine = Device(target(has_max_pool=False), check_regions=False)
    machine.config_ld(16)
    machine.mvin(WORDS, ACC, 4, 4)
    machine.config_st(4, pool=(2, 2, 1, 1, 1, 2, 2, 0, 0))
    machine.mvout(ROWS.copy(), ACC, 4, 0)
    machine.expect_error("pooling needs a Gemmini with max pooling")


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
