"""LOOP_WS features of newer hardware: chosen scratchpad rows, skipped parts, results kept on chip."""

from __future__ import annotations

import numpy as np

from tests.emulator.isa import Device, saturate, target

LOAD_A, LOAD_B, LOAD_D, PRODUCTS, STORE = (1 << bit for bit in range(3, 8))
INC_ACC, SPAD_ONLY = 1 << 8, 1 << 9


def device(**changes: object) -> Device:
    """8 x 8 blocks of 4 x 4: 128 scratchpad rows, 64 accumulator rows."""
    machine = Device(
        target(4, scratchpad_bytes=128 * 4, accumulator_bytes=64 * 16, max_bytes=4, **changes),
        check_regions=False,
    )
    machine.config_ex()
    for state in range(3):
        machine.config_ld(8, state=state, block_stride=4)
    machine.config_st(8, scale=0.01)
    return machine


def loop(
    machine: Device, a: np.ndarray, b: np.ndarray, c: np.ndarray, flags: int = 0, c_row: int = 0
) -> None:
    """2 x 2 x 2 blocks; all matrices are 8 x 8 int8."""
    machine.issue(9, 0, 2 << 32 | 2 << 16 | 2)
    machine.issue(10, a.ctypes.data, b.ctypes.data)
    machine.issue(11, 0, c.ctypes.data)
    machine.issue(12, 8, 8)
    machine.issue(13, 8, 8)
    machine.issue(8, 0, c_row << 32 | flags)


def matrices(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(count)
    return [rng.integers(-100, 100, (8, 8), np.int8) for _ in range(count)]


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return saturate((a.astype(np.int32) @ b.astype(np.int32)).astype(np.float32) * np.float32(0.01))


def test_chosen_rows_stay_for_every_second_call() -> None:
    a, b, c = matrices(3)
    machine = device()
    machine.issue(24, 40, 100)
    loop(machine, a, b, c)
    machine.fence()
    machine.check()
    np.testing.assert_array_equal(c, product(a, b))
    block = np.zeros((4, 4), np.int8)
    machine.config_st(4)
    machine.mvout(block, 40, 4, 4)
    np.testing.assert_array_equal(block, a[:4, :4])
    machine.mvout(block, 96, 4, 4)
    machine.check()
    np.testing.assert_array_equal(block, b[4:, 4:])


def test_loads_now_products_later() -> None:
    a, b, c = matrices(3)
    machine = device()
    machine.issue(24, 40, 100)
    loop(machine, a, b, c, LOAD_D | PRODUCTS | STORE)
    assert machine.counts().dram_read == a.nbytes + b.nbytes
    assert machine.counts().macs == 0
    machine.issue(24, 40, 100)
    nothing = np.zeros((8, 8), np.int8)
    loop(machine, nothing, nothing, c, LOAD_A | LOAD_B)
    machine.check()
    np.testing.assert_array_equal(c, product(a, b))
    assert machine.counts().dram_read == a.nbytes + b.nbytes


def test_results_kept_on_chip_feed_the_next_product() -> None:
    """C = (A B) E with the intermediate copied from the accumulator to scratchpad rows 0..15."""
    a, b, e, c = matrices(4)
    machine = device(use_tl_ext_mem=True)
    machine.issue(24, 64, 128)
    loop(machine, a, b, c, SPAD_ONLY | INC_ACC, c_row=0)
    machine.check()
    assert machine.counts().dram_written == 0
    machine.fence()
    machine.issue(24, 0, 48)
    loop(machine, a, e, c, LOAD_A)
    machine.check()
    np.testing.assert_array_equal(c, product(product(a, b), e))


def test_keeping_results_on_chip_needs_external_memory() -> None:
    a, b, c = matrices(3)
    machine = device()
    loop(machine, a, b, c, SPAD_ONLY)
    machine.expect_error("store_spad in loop_ws", "use_tl_ext_mem")


def test_a_b_matrix_before_the_first_row() -> None:
    a, b, c = matrices(3)
    machine = device()
    machine.issue(24, 40, 10)
    loop(machine, a, b, c)
    machine.expect_error("LOOP_WS: B takes 16 rows and ends at row 10")


def test_halves_alternate_unless_pinned() -> None:
    """A default operand of the second call lies in the other half; spad ids say where."""
    a, b, c = matrices(3)
    machine = device()
    loop(machine, a, b, c)
    machine.fence()
    block = np.zeros((4, 4), np.int8)
    machine.config_st(8, scale=0.01)
    loop(machine, b, a, c)
    machine.fence()
    machine.config_st(4)
    machine.mvout(block, 0, 4, 4)
    np.testing.assert_array_equal(block, a[:4, :4])
    machine.mvout(block, 64, 4, 4)
    machine.check()
    np.testing.assert_array_equal(block, b[:4, :4])
