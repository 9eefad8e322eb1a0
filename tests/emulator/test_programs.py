"""C programs that use the tiled functions of our gemmini.h, at three targets, against numpy."""

from __future__ import annotations

import ctypes
import platform
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fadiff.costmodel.target.target import Target, load_target
from fadiff.emulator.build import build_program
from fadiff.emulator.machine import Machine
from tests.emulator.isa import CPU, OS, PROGRAMS, SHARED, WS, call, pool, requantise, saturate

Run = Callable[..., None]


def convolve(
    x: np.ndarray, w: np.ndarray, stride: int, pads: tuple[int, int, int, int], dilation: int = 1
) -> np.ndarray:
    """N H W C by KH KW C O; pads are top, left, bottom, right."""
    top, left, bottom, right = pads
    x = np.pad(x.astype(np.int64), ((0, 0), (top, bottom), (left, right), (0, 0)))
    kh, kw = ((k - 1) * dilation + 1 for k in w.shape[:2])
    windows = np.lib.stride_tricks.sliding_window_view(x, (kh, kw), (1, 2))
    taps = windows[:, ::stride, ::stride, :, ::dilation, ::dilation]
    return np.einsum("npqcrs,rsck->npqk", taps, w.astype(np.int64))


@pytest.fixture(scope="module", params=["gemmini-large", "gemmini-default", "gemmini-small"])
def target(request: pytest.FixtureRequest) -> Target:
    return load_target(request.param)


@pytest.fixture(scope="module")
def library(target: Target, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    output = tmp_path_factory.mktemp(target.name) / f"tiled-{target.name}.so"
    build_program([PROGRAMS / "tiled.c"], target, output, SHARED)
    return ctypes.CDLL(str(output))


@pytest.fixture
def machine(target: Target) -> Machine:
    return Machine(target, check_regions=False)


@pytest.fixture
def run(library: ctypes.CDLL, machine: Machine) -> Run:
    return partial(call, library, machine)


def rng(*shape: int, low: int = -128, high: int = 128, dtype: type = np.int8) -> np.ndarray:
    return np.random.default_rng(shape).integers(low, high, shape, dtype)


@pytest.mark.parametrize("shape", [(5, 7, 3), (70, 33, 100), (96, 64, 200)])
@pytest.mark.parametrize("transpose", ["none", "A", "B"])
def test_matmul(run: Run, shape: tuple[int, int, int], transpose: str) -> None:
    i, j, k = shape
    a, b = rng(i, k), rng(k, j, low=-127)
    bias = rng(j, low=-5000, high=5000, dtype=np.int32)
    out = np.zeros((i, j), np.int8)
    left = np.ascontiguousarray(a.T) if transpose == "A" else a
    right = np.ascontiguousarray(b.T) if transpose == "B" else b
    run(
        "run_matmul",
        i,
        j,
        k,
        left,
        right,
        bias,
        out,
        transpose == "A",
        transpose == "B",
        0,
        0,
        1,
        1,
        0.003,
        1.0,
        WS,
    )
    sums = a.astype(np.int64) @ b.astype(np.int64) + bias
    np.testing.assert_array_equal(out, requantise(sums, 0.003, relu=True))


def test_matmul_full_width_result(run: Run) -> None:
    a, b, out = rng(40, 50), rng(50, 36, low=-127), np.zeros((40, 36), np.int32)
    run("run_matmul", 40, 36, 50, a, b, None, out, 0, 0, 1, 0, 0, 0, 1.0, 1.0, WS)
    np.testing.assert_array_equal(out, a.astype(np.int32) @ b.astype(np.int32))


def test_matmul_int8_bias_matrix(run: Run) -> None:
    a, b, d, out = rng(40, 50), rng(50, 36, low=-127), rng(40, 36), np.zeros((40, 36), np.int8)
    run("run_matmul", 40, 36, 50, a, b, d, out, 0, 0, 0, 1, 0, 0, 0.01, 1.0, WS)
    np.testing.assert_array_equal(out, requantise(a.astype(np.int64) @ b.astype(np.int64) + d, 0.01))


def test_matmul_scales_an_operand_on_the_way_in(run: Run) -> None:
    a, b, out = rng(20, 20), rng(20, 20, low=-127), np.zeros((20, 20), np.int8)
    run("run_matmul", 20, 20, 20, a, b, None, out, 0, 0, 0, 0, 0, 0, 0.02, 0.3, WS)
    scaled = saturate(a.astype(np.float32) * np.float32(0.3))
    np.testing.assert_array_equal(out, requantise(scaled.astype(np.int64) @ b.astype(np.int64), 0.02))


def test_matmul_output_stationary(run: Run) -> None:
    a, b = rng(50, 40, low=-20, high=20), rng(40, 45, low=-20, high=20)
    bias, out = rng(45, low=-500, high=500, dtype=np.int32), np.zeros((50, 45), np.int8)
    run("run_matmul", 50, 45, 40, a, b, bias, out, 0, 0, 0, 0, 1, 1, 0.05, 1.0, OS)
    np.testing.assert_array_equal(
        out, requantise(a.astype(np.int64) @ b.astype(np.int64) + bias, 0.05, relu=True)
    )


def test_matmul_given_tiles(run: Run, machine: Machine, target: Target) -> None:
    """Tiles of one block: A is read once per block column of C."""
    i, j, k = (3 * target.side - 1,) * 3
    a, b, bias = rng(i, k), rng(k, j, low=-127), rng(j, low=-99, high=99, dtype=np.int32)
    out = np.zeros((i, j), np.int8)
    run("run_matmul_tiles", i, j, k, a, b, bias, out, 1, 1, 1, 0.002)
    np.testing.assert_array_equal(out, requantise(a.astype(np.int64) @ b.astype(np.int64) + bias, 0.002))
    assert machine.counts().dram_read == 3 * a.nbytes + 3 * b.nbytes + 3 * bias.nbytes
    assert machine.counts().dram_written == out.nbytes


CONVOLUTIONS = {
    "3x3": (2, 9, 9, 18, 21, 3, 1, 1, 1, 0, 0, 0),
    "strided": (1, 13, 13, 5, 40, 3, 2, 1, 1, 0, 0, 0),
    "first layer, packed rows": (1, 20, 20, 3, 16, 7, 2, 3, 1, 0, 0, 0),
    "pointwise": (1, 8, 8, 70, 35, 1, 1, 0, 1, 0, 0, 0),
    "pointwise, every second pixel": (1, 12, 12, 33, 20, 1, 2, 0, 1, 0, 0, 0),
    "dilated": (1, 12, 12, 8, 8, 3, 1, 2, 2, 0, 0, 0),
    "pooled": (1, 12, 12, 6, 20, 3, 1, 1, 1, 2, 2, 0),
    "pooled with overlap and padding": (1, 11, 11, 3, 9, 3, 1, 1, 1, 3, 2, 1),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("where", [WS, CPU])
def test_convolution(run: Run, case: str, where: int) -> None:
    n, h, w, ci, co, k, stride, pad, dilation, psize, pstride, ppad = CONVOLUTIONS[case]
    x, weights, bias = (
        rng(n, h, w, ci),
        rng(k, k, ci, co, low=-127),
        rng(co, low=-9999, high=9999, dtype=np.int32),
    )
    sums = convolve(x, weights, stride, (pad,) * 4, dilation) + bias
    expected = requantise(sums, 0.002, relu=True)
    if pstride:
        expected = pool(expected, psize, pstride, ppad)
    out = np.zeros(expected.shape, np.int8)
    oh, ow = sums.shape[1:3]
    shape = (n, h, w, ci, co, oh, ow, stride, 1, dilation, pad, k, 0, 0, 0, 0, 0)
    run("run_conv", *shape, x, weights, bias, out, 1, 0.002, psize, pstride, ppad, where)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("layout", ["output", "input", "weight 1203", "weight 0132", "rotated"])
def test_convolution_layouts(run: Run, layout: str) -> None:
    n, h, ci, co, k = 3, 7, 10, 18, 3
    x, weights, bias = (
        rng(n, h, h, ci),
        rng(k, k, ci, co, low=-127),
        rng(co, low=-99, high=99, dtype=np.int32),
    )
    expected = requantise(convolve(x, weights, 1, (1,) * 4) + bias, 0.003)
    given_x, given_w, back = x, weights, (0, 1, 2, 3)
    if layout == "output":
        expected, back = expected.transpose(1, 2, 0, 3), (0, 1, 2, 3)
    elif layout == "input":
        given_x = x.transpose(3, 1, 2, 0)
    elif layout == "weight 1203":
        given_w = weights.transpose(2, 0, 1, 3)
    elif layout == "weight 0132":
        given_w = weights.transpose(0, 1, 3, 2)
    else:
        given_w = weights[::-1, ::-1]
    out = np.zeros(expected.transpose(back).shape, np.int8)
    flags = [layout == flag for flag in ("rotated", "output", "input", "weight 1203", "weight 0132")]
    given_x, given_w = np.ascontiguousarray(given_x), np.ascontiguousarray(given_w)
    shape = (n, h, h, ci, co, h, h, 1, 1, 1, 1, k)
    run("run_conv", *shape, *flags, given_x, given_w, bias, out, 0, 0.003, 0, 0, 0, WS)
    np.testing.assert_array_equal(out, expected)


def test_transposed_convolution(run: Run) -> None:
    x, weights, bias = rng(1, 6, 6, 9), rng(3, 3, 9, 12, low=-127), rng(12, low=-99, high=99, dtype=np.int32)
    spread = np.zeros((1, 11, 11, 9), np.int8)
    spread[:, ::2, ::2] = x
    expected = requantise(convolve(spread, weights, 1, (1,) * 4) + bias, 0.003)
    out = np.zeros(expected.shape, np.int8)
    shape = (1, 6, 6, 9, 12, 11, 11, 1, 2, 1, 1, 3, 0, 0, 0, 0, 0)
    run("run_conv", *shape, x, weights, bias, out, 0, 0.003, 0, 0, 0, WS)
    np.testing.assert_array_equal(out, expected)


def test_grouped_convolution_by_strides(run: Run) -> None:
    groups, ci, co = 3, 5, 7
    x, bias = rng(1, 6, 8, groups * ci), rng(groups * co, low=-99, high=99, dtype=np.int32)
    weights = rng(3, 3, ci, groups * co, low=-127)
    out = np.zeros((1, 6, 8, groups * co), np.int8)
    run("run_conv_groups", 6, 8, groups, ci, co, 3, 1, x, weights, bias, out, 0.004)
    for g in range(groups):
        own = slice(g * co, (g + 1) * co)
        sums = convolve(x[..., g * ci : (g + 1) * ci], weights[..., own], 1, (1,) * 4) + bias[own]
        np.testing.assert_array_equal(out[..., own], requantise(sums, 0.004, relu=True))


@pytest.mark.parametrize("where", [WS, CPU])
def test_depthwise_convolution(run: Run, where: int) -> None:
    x, weights, bias = rng(1, 9, 9, 6), rng(6, 3, 3, low=-127), rng(6, low=-99, high=99, dtype=np.int32)
    sums = np.stack(
        [convolve(x[..., c : c + 1], weights[c][..., None, None], 2, (1,) * 4)[..., 0] for c in range(6)], -1
    )
    expected = requantise(sums + bias, 0.01, relu=True)
    out = np.zeros(expected.shape, np.int8)
    run("run_conv_dw", 1, 9, 9, 6, *expected.shape[1:3], 2, 1, 3, x, weights, bias, out, 1, 0.01, where)
    np.testing.assert_array_equal(out, expected)


def test_downsampling_as_products(run: Run) -> None:
    x, weights, bias = rng(1, 8, 8, 20), rng(20, 30, low=-127), rng(30, low=-99, high=99, dtype=np.int32)
    out = np.zeros((1, 4, 4, 30), np.int8)
    run("run_conv_downsample", 8, 20, 30, x, weights, bias, out, 0.01)
    np.testing.assert_array_equal(out, requantise(convolve(x, weights[None, None], 2, (0,) * 4) + bias, 0.01))


@pytest.mark.parametrize("where", [WS, CPU])
def test_residual_addition(run: Run, where: int, machine: Machine) -> None:
    a, b, out = rng(77, 50), rng(77, 50, low=-100), np.zeros((77, 50), np.int8)
    run("run_resadd", 77, 50, 0.75, 1.0, 0.9, a, b, out, 1, where)
    sums = saturate(a.astype(np.float32) * np.float32(0.75)).astype(np.int64) + b
    np.testing.assert_array_equal(out, requantise(sums, 0.9, relu=True))
    if where == WS:
        assert machine.counts().dram_bytes == 3 * out.nbytes


@pytest.mark.parametrize("where", [WS, CPU])
def test_global_average(run: Run, where: int) -> None:
    x, out = rng(1, 7, 7, 100), np.zeros((1, 100), np.int8)
    run("run_global_average", 1, 100, 7, x, out, where)
    expected = requantise(x.astype(np.int64).sum((1, 2)), float(np.float32(1 / 49)))
    np.testing.assert_array_equal(out, expected)


def test_rectangular_kernel_and_uneven_pads(run: Run) -> None:
    x, weights, bias = rng(1, 5, 7, 9), rng(3, 2, 9, 14, low=-127), rng(14, low=-99, high=99, dtype=np.int32)
    pads = (1, 0, 1, 1)
    expected = requantise(convolve(x, weights, 1, pads) + bias, 0.004, relu=True)
    out = np.zeros(expected.shape, np.int8)
    run("run_loop_conv", 5, 7, 9, 14, 3, 2, *pads, *expected.shape[1:3], x, weights, bias, out, 0.004)
    np.testing.assert_array_equal(out, expected)


def test_partial_sums_spill_at_full_width(run: Run, target: Target, machine: Machine) -> None:
    side, k = target.side, 2 * target.side + 5
    a, b = rng(side, k), rng(k, side, low=-127)
    partial, out = np.zeros((side, side), np.int32), np.zeros((side, side), np.int8)
    run("run_spilled_matmul", k, a, b, partial, out, 0.003)
    np.testing.assert_array_equal(out, requantise(a.astype(np.int64) @ b.astype(np.int64), 0.003))
    assert machine.counts().dram_read == a.nbytes + b.nbytes + 2 * partial.nbytes
    assert machine.counts().dram_written == 2 * partial.nbytes + out.nbytes


def test_a_program_runs_on_its_own(target: Target, tmp_path: Path) -> None:
    """An executable configures the machine from its gemmini_params.h, and stops at the first error."""
    source = tmp_path / "main.c"
    source.write_text(
        '#include "include/gemmini.h"\n'
        "int main(void) {\n"
        "  static elem_t in[DIM][DIM], out[DIM][DIM];\n"
        "  for (int i = 0; i < DIM; i++) in[i][i] = 7;\n"
        "  gemmini_flush(0); gemmini_config_ld(DIM); gemmini_config_st(DIM);\n"
        "  gemmini_mvin(in, 0); gemmini_mvout(out, 0); gemmini_fence();\n"
        "  for (int i = 0; i < DIM; i++) if (out[i][i] != 7) return 1;\n"
        '  puts("same"); fflush(stdout);\n'
        "  gemmini_mvin(in, BANK_NUM * BANK_ROWS); return 0;\n"
        "}\n"
    )
    build_program([source], target, tmp_path / "main")
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=False)
    assert done.stdout == "same\n"
    assert done.returncode == 1
    assert f"scratchpad row {target.scratchpad_rows + target.side - 1} is beyond" in done.stderr


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the program checks x86-64 registers")
@pytest.mark.parametrize("flags", [("-O0",), ("-O2", "-fno-plt"), ("-O2", "-Wl,-z,lazy")])
def test_fences_written_as_assembly_keep_registers(flags: tuple[str, ...], tmp_path: Path) -> None:
    build_program([PROGRAMS / "fence.c"], load_target("gemmini-default"), tmp_path / "fence", flags)
    done = subprocess.run([tmp_path / "fence"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
