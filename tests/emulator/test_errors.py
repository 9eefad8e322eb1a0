"""Limits and rules of single instructions, broken on purpose: what the model says names the place."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.isa import (
    ACC,
    ACCUMULATE,
    FULL,
    GARBAGE,
    IGELU,
    LAYERNORM,
    OS,
    ROWS,
    WORDS,
    WS,
    Device,
    bits,
    load_operands,
    local,
    target,
)


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


def test_compute_rules(device: Device) -> None:
    load_operands(device)
    device.compute(0, GARBAGE, (4, 4), (4, 4))
    device.expect_error("COMPUTE without a PRELOAD")
    device.reset()
    device.config_ex()
    device.config_ld(4)
    device.config_ld(16, state=2)
    load_operands(device)
    device.preload(4, ACC, (4, 4), (4, 4))
    device.preload(4, ACC, (4, 4), (4, 4))
    device.expect_error("a PRELOAD already waits")


def test_keeping_a_matrix_that_is_not_there(device: Device) -> None:
    load_operands(device)
    device.preload(GARBAGE, ACC, (4, 4), (4, 4))
    device.compute(0, GARBAGE, (4, 4), (4, 4), flip=False)
    device.expect_error("before any COMPUTE_PRELOADED")


def test_preloaded_matrix_must_be_used(device: Device) -> None:
    load_operands(device)
    device.preload(4, ACC, (4, 4), (4, 4))
    device.compute(0, GARBAGE, (4, 4), (4, 4), flip=False)
    device.expect_error("the preloaded matrix is never used")


def test_compute_reads_only_what_is_there(device: Device) -> None:
    load_operands(device)
    device.preload(6, ACC, (4, 4), (4, 4))
    device.expect_error("preload BD=spad[6] 4x4", "scratchpad row 8 is read")


def test_operand_sizes(device: Device) -> None:
    load_operands(device)
    device.preload(4, ACC, (5, 4), (4, 4))
    device.expect_error("operand B has 5 rows and 4 columns")


def test_accumulator_operands_need_the_feature() -> None:
    machine = Device(target(ex_read_from_acc=False), check_regions=False)
    machine.config_ex()
    machine.config_ld(4)
    machine.config_ld(16, state=2)
    load_operands(machine)
    machine.preload(4, ACC, (4, 4), (4, 4))
    machine.compute(ACC, GARBAGE, (4, 4), (4, 4))
    machine.expect_error("operand A is in the accumulator", "ex_read_from_acc")


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
        (3, "CONFIG_NORM needs a Gemmini with HAS_NORMALIZATIONS"),
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


def test_the_norm_unit() -> None:
    """Hardware without it; what is not modelled of it; constants that nobody gave."""
    plain = Device(target(), check_regions=False)
    plain.config_st(4, act=IGELU)
    plain.expect_error("I-GELU needs a Gemmini with HAS_NORMALIZATIONS")

    def machine() -> Device:
        device = Device(target(has_normalizations=True), check_regions=False)
        device.config_st(4)
        return device

    device = machine()
    device.config_norm(-3, -9, softmax=True)
    device.expect_error("softmax in the accumulator's read path is not modelled")
    device = machine()
    device.config_st(4, act=LAYERNORM)
    device.expect_error("layer norm in the accumulator's read path is not modelled")
    device = machine()
    device.config_st(4, act=IGELU)
    device.mvout(ROWS.copy(), ACC, 4, 1)
    device.expect_error("I-GELU without a CONFIG_NORM")


def test_row_packing_limits() -> None:
    machine = Device(target(has_row_packing=False), check_regions=False)
    machine.config_ld(4, pixels=2)
    machine.expect_error("HAS_FIRST_LAYER_OPTIMIZATIONS")
    machine = Device(target(), check_regions=False)
    machine.config_ld(4, pixels=2)
    machine.mvin(ROWS, 0, 3, 4)
    machine.expect_error("pixel_repeats 2 of 3 columns do not fit a row of 4")


def test_scratchpad_copy_needs_external_memory(device: Device) -> None:
    load_operands(device)
    device.issue(23, 1 << 32 | 8, local(ACC, 4, 4))
    device.expect_error("STORE_SPAD needs a Gemmini with use_tl_ext_mem")


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
