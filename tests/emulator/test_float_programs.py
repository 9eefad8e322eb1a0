"""The tiled functions of our gemmini.h on a float32 Gemmini, against numpy."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from fadiff.costmodel.target.target import Target
from fadiff.emulator.build import build_program
from fadiff.emulator.machine import Machine
from tests.emulator.isa import CPU, OS, PROGRAMS, SHARED, WS, call, pool

TARGET = Target(
    name="gemmini-float",
    side=4,
    element_type="float32",
    element_bytes=4,
    scratchpad_bytes=64 * 1024,
    accumulator_bytes=16 * 1024,
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    output = tmp_path_factory.mktemp("float") / "tiled.so"
    build_program([PROGRAMS / "tiled.c"], TARGET, output, SHARED)
    return ctypes.CDLL(str(output))


@pytest.fixture
def run(library: ctypes.CDLL) -> Callable[..., None]:
    return partial(call, library, Machine(TARGET, check_regions=False))


def rng(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def close(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("transpose", ["none", "A", "B"])
def test_matmul(run: Callable[..., None], transpose: str) -> None:
    i, j, k = 50, 33, 40
    a, b, bias, out = rng(i, k), rng(k, j), rng(j), np.zeros((i, j), np.float32)
    left = np.ascontiguousarray(a.T) if transpose == "A" else a
    right = np.ascontiguousarray(b.T) if transpose == "B" else b
    flags = (transpose == "A", transpose == "B", 0, 0, 1, 1)
    run("run_matmul", i, j, k, left, right, bias, out, *flags, 0.5, 1.0, WS)
    close(out, np.maximum(a @ b + bias, 0) * np.float32(0.5))


def test_matmul_output_stationary(run: Callable[..., None]) -> None:
    a, b, bias, out = rng(20, 30), rng(30, 25), rng(25), np.zeros((20, 25), np.float32)
    run("run_matmul", 20, 25, 30, a, b, bias, out, 0, 0, 0, 0, 1, 0, 1.0, 2.0, OS)
    close(out, 2 * a @ b + bias)


@pytest.mark.parametrize(("size", "stride"), [(0, 0), (2, 2)])
@pytest.mark.parametrize("where", [WS, CPU])
def test_convolution(run: Callable[..., None], size: int, stride: int, where: int) -> None:
    x, w, bias = rng(1, 10, 10, 6), rng(3, 3, 6, 9), rng(9)
    expected = np.einsum(
        "npqcrs,rsck->npqk",
        np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))), (3, 3), (1, 2)),
        w,
    )
    expected = np.maximum(expected + bias, 0)
    expected = pool(expected, size, stride, 0) if stride else expected
    out = np.zeros(expected.shape, np.float32)
    shape = (1, 10, 10, 6, 9, 10, 10, 1, 1, 1, 1, 3, 0, 0, 0, 0, 0)
    run("run_conv", *shape, x, w, bias, out, 1, 1.0, size, stride, 0, where)
    close(out, expected)


def test_residual_addition(run: Callable[..., None]) -> None:
    a, b, out = rng(30, 22), rng(22, 30).T.copy(), np.zeros((30, 22), np.float32)
    run("run_resadd", 30, 22, 0.5, 2.0, 1.0, a, b, out, 1, WS)
    close(out, np.maximum(0.5 * a + 2 * b, 0))


def test_partial_sums_spill_at_full_width(run: Callable[..., None]) -> None:
    a, b = rng(4, 11), rng(11, 4)
    partial, out = np.zeros((4, 4), np.float32), np.zeros((4, 4), np.float32)
    run("run_spilled_matmul", 11, a, b, partial, out, 3.0)
    close(out, 3 * (a @ b))
