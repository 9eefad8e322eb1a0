"""Instructions against numpy: random programs, rounding, pooling, packing, copies, both dataflows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emulator.isa import (
    ACC,
    ACCUMULATE,
    FULL,
    GARBAGE,
    IGELU,
    OS,
    RELU,
    WS,
    Device,
    local,
    requantise,
    saturate,
    target,
)

SIDE, SPAD, ACCUMULATOR = 4, 64, 32


class Model:
    """Local memories as numpy arrays; what each instruction means, in its simplest form."""

    def __init__(self) -> None:
        self.spad = np.zeros((SPAD, SIDE), np.int8)
        self.acc = np.zeros((ACCUMULATOR, SIDE), np.int32)
        self.weights = np.zeros((SIDE, SIDE), np.int64)
        self.sums = np.zeros((SIDE, SIDE), np.int64)

    def operand(
        self, address: int, rows: int, cols: int, stride: int, scale: float, relu: bool
    ) -> np.ndarray:
        """Elements as the array reads them, padded with zeros to SIDE x SIDE."""
        padded = np.zeros((SIDE, SIDE), np.int64)
        if address == GARBAGE:
            return padded
        at = (address & 0xFFFF) + stride * np.arange(rows)
        if address & ACC:
            padded[:rows, :cols] = requantise(self.acc[at, :cols], scale, relu)
        else:
            padded[:rows, :cols] = self.spad[at, :cols]
        return padded

    def write(self, address: int, rows: int, cols: int, stride: int, values: np.ndarray, relu: bool) -> None:
        at = (address & 0xFFFF) + stride * np.arange(rows)
        if not address & ACC:
            active = np.maximum(values, 0) if relu else values
            self.spad[at, :cols] = np.clip(active[:rows, :cols], -128, 127)
            return
        for i, row in enumerate(at):
            old = self.acc[row, :cols].astype(np.int64) if address & ACCUMULATE else 0
            self.acc[row, :cols] = (old + values[i, :cols]).astype(np.int32)


SCALES = st.sampled_from([1.0, 0.5, 0.125, 1.7, 3.0])


@st.composite
def product(draw: st.DrawFn) -> dict[str, object]:
    """One preload and compute, legal by construction."""
    dataflow = draw(st.sampled_from([WS, OS]))
    rows, cols, depth = (draw(st.integers(1, SIDE)) for _ in range(3))
    transposes = [(False, False), (True, False), (False, True) if dataflow == WS else (True, True)]
    a_transpose, b_transpose = draw(st.sampled_from(transposes))
    a_stride = draw(st.integers(1, 3))
    c_stride = draw(st.integers(1, 3))
    a_rows = (depth if a_transpose else rows) * a_stride
    return {
        "dataflow": dataflow, "rows": rows, "cols": cols, "depth": depth, "a_transpose": a_transpose,
        "b_transpose": b_transpose, "a_stride": a_stride, "c_stride": c_stride,
        "act": draw(st.sampled_from([0, RELU])), "scale": draw(SCALES), "shift": draw(st.integers(0, 9)),
        "a": draw(st.integers(0, SPAD - a_rows) | st.integers(ACC, ACC | (ACCUMULATOR - a_rows))),
        "b": draw(st.integers(0, SPAD - SIDE)),
        "d": draw(st.sampled_from([GARBAGE, 8, ACC | 4])),
        "c": draw(st.sampled_from([ACC, ACC | ACCUMULATE, 0])) | draw(st.integers(0, 32 - rows * c_stride)),
        "fresh": draw(st.booleans()),
    }  # fmt: skip


def execute(device: Device, model: Model, p: dict[str, object]) -> None:
    """The same product on both."""
    rows, cols, depth = int(p["rows"]), int(p["cols"]), int(p["depth"])  # type: ignore[call-overload]
    ws, a_transpose, b_transpose = p["dataflow"] == WS, bool(p["a_transpose"]), bool(p["b_transpose"])
    a, b, c, d = (int(p[k]) for k in "abcd")  # type: ignore[call-overload]
    scale, relu = float(p["scale"]), p["act"] == RELU  # type: ignore[arg-type]
    shift = 0 if ws else int(p["shift"])  # type: ignore[call-overload]
    a_stride, c_stride = int(p["a_stride"]), int(p["c_stride"])  # type: ignore[call-overload]
    device.config_ex(
        WS if ws else OS, act=RELU if relu else 0, shift=shift, scale=scale, a_stride=a_stride,
        c_stride=c_stride, a_transpose=a_transpose, b_transpose=b_transpose,
    )  # fmt: skip
    fresh = bool(p["fresh"])
    stationary = (b if fresh else GARBAGE) if ws else (d if fresh else GARBAGE)
    shape = (depth, cols) if ws else (rows, cols)
    device.preload(stationary, c, shape, (rows, cols))
    streamed, streamed_shape = (d, (rows, cols)) if ws else (b, (depth, cols))
    device.compute(a, streamed, (rows, depth), streamed_shape, flip=fresh)
    device.fence()

    def read(address: int, r: int, k: int, transposed: bool, stride: int = 1) -> np.ndarray:
        if transposed:
            return model.operand(address, k, r, stride, scale, relu).T
        return model.operand(address, r, k, stride, scale, relu)

    left = read(a, rows, depth, a_transpose, a_stride)
    right = read(b, depth, cols, b_transpose)
    start = read(d, rows, cols, False)
    if ws:
        if fresh:
            model.weights = right
        result = start + left @ model.weights
    else:
        if fresh:
            model.sums = start
        model.sums = model.sums + left @ right
        result = np.rint(model.sums / 2.0**shift).astype(np.int64)
    model.write(c, rows, cols, c_stride, result, relu)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), steps=st.lists(product(), min_size=1, max_size=12))
def test_random_products(seed: int, steps: list[dict[str, object]]) -> None:
    rng = np.random.default_rng(seed)
    device, model = Device(target(), check_regions=False), Model()
    model.spad = rng.integers(-128, 128, model.spad.shape, np.int8)
    model.acc = rng.integers(-1000, 1000, model.acc.shape, np.int32)
    device.config_ld(4)
    device.config_ld(16, state=1)
    for row in range(0, SPAD, SIDE):
        device.mvin(model.spad[row:], row, SIDE, SIDE)
    for row in range(0, ACCUMULATOR, SIDE):
        device.mvin(model.acc[row:], ACC | row, SIDE, SIDE, state=1)
    device.fence()
    held: object = None
    for step in steps:
        if not step["fresh"] and held != step["dataflow"]:
            step = {**step, "fresh": True}
        held = step["dataflow"]
        execute(device, model, step)
    spad, acc = np.zeros_like(model.spad), np.zeros_like(model.acc)
    device.config_st(4)
    for row in range(0, SPAD, SIDE):
        device.mvout(spad[row:], row, SIDE, SIDE)
    device.config_st(16)
    for row in range(0, ACCUMULATOR, SIDE):
        device.mvout(acc[row:], ACC | FULL | row, SIDE, SIDE)
    device.check()
    np.testing.assert_array_equal(spad, model.spad)
    np.testing.assert_array_equal(acc, model.acc)


@settings(max_examples=60, deadline=None)
@given(
    sums=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=4, max_size=4),
    scale=st.floats(2.0**-30, 4.0, width=32),
    relu=st.booleans(),
)
def test_store_rounds_half_to_even_and_saturates(sums: list[int], scale: float, relu: bool) -> None:
    device = Device(target(), check_regions=False)
    words, out = np.array([sums], np.int32), np.zeros((1, 4), np.int8)
    device.config_ld(16)
    device.config_st(4, act=RELU if relu else 0, scale=scale)
    device.mvin(words, ACC, 4, 1)
    device.mvout(out, ACC, 4, 1)
    device.check()
    np.testing.assert_array_equal(out, requantise(words, scale, relu))


def chisel_igelu(q: int, qb: int, qc: int) -> int:
    """AccumulatorScale.igelu of Gemmini's generator, every signal of its 32 bits."""

    def word(value: int) -> int:
        return (value + 2**31) % 2**32 - 2**31

    size = word(-q) if q < 0 else q
    clipped = word(-qb) if size > word(-qb) else size
    below = word(clipped + qb)
    polynomial = word(qc + below * below)
    signed = word((-1 if q < 0 else 1) * polynomial)
    return word(q * word(signed + qc))


_WORDS = st.integers(-(2**31), 2**31 - 1)


@settings(max_examples=150, deadline=None)
@given(
    sums=st.lists(_WORDS | st.integers(-300, 300), min_size=4, max_size=4),
    qb=_WORDS | st.integers(-500, 0),
    qc=_WORDS | st.integers(-100_000, 0),
    scale=st.floats(-1.0, 1.0, width=32).filter(lambda scale: abs(scale) > 2.0**-40),
)
def test_stores_through_igelu_are_those_of_the_generator(
    sums: list[int], qb: int, qc: int, scale: float
) -> None:
    device = Device(target(has_normalizations=True), check_regions=False)
    words, out = np.array([sums], np.int32), np.zeros((1, 4), np.int8)
    device.config_ld(16)
    device.config_norm(qb, qc)
    device.config_st(4, act=IGELU, scale=scale)
    device.mvin(words, ACC, 4, 1)
    device.mvout(out, ACC, 4, 1)
    device.check()
    expected = np.array([[chisel_igelu(q, qb, qc) for q in sums]], np.int32)
    np.testing.assert_array_equal(out, requantise(expected, scale))


def test_ties_go_to_even() -> None:
    device = Device(target(), check_regions=False)
    words, out = np.array([[1, 3, 5, -3]], np.int32), np.zeros((1, 4), np.int8)
    device.config_ld(16)
    device.config_st(4, scale=0.5)
    device.mvin(words, ACC, 4, 1)
    device.mvout(out, ACC, 4, 1)
    assert out.tolist() == [[0, 2, 2, -2]]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 4), cols=st.integers(1, 16), block_stride=st.integers(4, 12), gap=st.integers(0, 5),
    scale=SCALES, into=st.sampled_from(["spad", "acc", "acc words"]), accumulate=st.booleans(),
    seed=st.integers(0, 999),
)  # fmt: skip
def test_moves_of_several_blocks(
    rows: int, cols: int, block_stride: int, gap: int, scale: float, into: str, accumulate: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    words = into == "acc words"
    cols = min(cols, 4) if words else cols
    dtype = np.int32 if words else np.int8
    source = rng.integers(-128, 128, (rows, cols + gap), dtype)
    device = Device(target(), check_regions=False)
    blocks = -(-cols // SIDE)
    if into != "spad" and block_stride * blocks > 28:
        block_stride = 4
    base = 0 if into == "spad" else ACC
    device.config_ld(source.strides[0], scale=scale, shrunk=into == "acc", block_stride=block_stride)
    expected = (
        source.astype(np.int32)
        if words
        else saturate(source.astype(np.float32) * np.float32(scale)).astype(np.int32)
    )
    device.mvin(source, base, cols, rows)
    device.fence()
    if accumulate and base:
        device.mvin(source, base | ACCUMULATE, cols, rows)
        device.fence()
        expected = 2 * expected
    for block in range(blocks):
        width = min(SIDE, cols - SIDE * block)
        out = np.zeros((rows, width), np.int32 if base else np.int8)
        device.config_st(out.strides[0])
        device.mvout(out, base | (FULL if base else 0) | block * block_stride, width, rows)
        np.testing.assert_array_equal(out, expected[:, SIDE * block : SIDE * block + width])
    device.check()
    assert device.counts().dram_read == source.itemsize * rows * cols * (2 if accumulate and base else 1)


def test_stride_zero_reads_once_and_replicates() -> None:
    device = Device(target(), check_regions=False)
    bias, out = np.array([1, -2, 3, 70000], np.int32), np.zeros((4, 4), np.int32)
    device.config_ld(0)
    device.config_st(16)
    device.mvin(bias, ACC, 4, 4)
    device.mvout(out, ACC | FULL, 4, 4)
    np.testing.assert_array_equal(out, np.tile(bias, (4, 1)))
    assert device.counts().dram_read == 16


def test_null_source_writes_zeros_and_reads_nothing() -> None:
    device = Device(target(), check_regions=False)
    out = np.ones((4, 4), np.int8)
    device.config_ld(4)
    device.config_st(4)
    device.mvin(None, 0, 4, 4)
    device.mvout(out, 0, 4, 4)
    assert not out.any()
    assert device.counts().dram_read == 0


def test_pixel_repeats_pack_the_next_pixels_into_a_row() -> None:
    """Row r holds pixels r, r+1, ...; what would fall below the start of the half is dropped."""
    device = Device(target(8, scratchpad_bytes=64 * 8, max_bytes=32), check_regions=False)
    pixels = np.arange(1, 22, dtype=np.int8).reshape(7, 3)
    device.config_ld(3, pixels=2)
    device.mvin(pixels, 0, 3, 4)
    device.mvin(pixels[4:], 4, 3, 3)
    out = np.zeros((6, 6), np.int8)
    device.config_st(6)
    device.mvout(out, 0, 6, 6)
    device.check()
    np.testing.assert_array_equal(out, np.hstack([pixels[:6], pixels[1:]]))


@pytest.mark.parametrize(("size", "stride", "pad"), [(2, 2, 0), (3, 2, 1), (3, 1, 0), (2, 1, 1)])
def test_max_pooling_on_the_way_out(size: int, stride: int, pad: int) -> None:
    device = Device(target(scratchpad_bytes=512), check_regions=False)  # 128 rows: as many taps
    rows, cols = 4, 5
    image = np.random.default_rng(size).integers(-900, 900, (rows * cols, 4), np.int32)
    prows, pcols = (rows + 2 * pad - size) // stride + 1, (cols + 2 * pad - size) // stride + 1
    out = np.zeros((prows, pcols, 4), np.int8)
    device.config_ld(16)
    for row in range(0, rows * cols, 4):
        device.mvin(image[row:], ACC | row, 4, 4)
    device.config_st(4, scale=0.25, pool=(stride, size, pcols, prows, pcols, rows, cols, pad, pad))
    device.mvout(out, ACC, 4, 0)
    device.check()
    values = np.pad(requantise(image, 0.25, False).reshape(rows, cols, 4), ((pad, pad), (pad, pad), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(values, (size, size), (0, 1))[::stride, ::stride]
    np.testing.assert_array_equal(out, windows.max((-2, -1)))


def test_scratchpad_copy_requantises() -> None:
    device = Device(target(use_tl_ext_mem=True), check_regions=False)
    words, out = np.arange(-8, 8, dtype=np.int32).reshape(4, 4) * 50, np.zeros((4, 4), np.int8)
    device.config_ld(16)
    device.config_st(4, act=RELU, scale=0.5)
    device.mvin(words, ACC, 4, 4)
    device.issue(23, 2 << 32 | 10, local(ACC, 4, 4))
    for i in range(4):
        device.mvout(out[i:], 10 + 2 * i, 4, 1)
    device.check()
    np.testing.assert_array_equal(out, requantise(words, 0.5, True))


def test_float32_products() -> None:
    device = Device(target(element_type="float32"), check_regions=False)
    rng = np.random.default_rng(0)
    a, b, d = (rng.standard_normal((4, 4), np.float32) for _ in range(3))
    out = np.zeros((4, 4), np.float32)
    device.config_ex()
    device.config_ld(16)
    device.config_st(16, act=RELU, scale=0.5)
    device.mvin(a, 0, 4, 4)
    device.mvin(b, 4, 4, 4)
    device.mvin(d, ACC, 4, 4)
    device.preload(4, ACC | ACCUMULATE, (4, 4), (4, 4))
    device.compute(0, GARBAGE, (4, 4), (4, 4))
    device.mvout(out, ACC, 4, 4)
    device.check()
    np.testing.assert_allclose(out, np.maximum(d + a @ b, 0) * 0.5, rtol=1e-6, atol=1e-6)


def test_counts() -> None:
    device = Device(target(), check_regions=False)
    rows, words = np.ones((4, 4), np.int8), np.zeros((4, 4), np.int8)
    device.config_ex()
    device.config_ld(4)
    device.config_st(4)
    device.mvin(rows, 0, 4, 4)
    device.mvin(rows, 4, 4, 4)
    device.preload(4, ACC, (4, 4), (3, 4))
    device.compute(0, GARBAGE, (3, 4), (4, 4))
    device.mvout(words, ACC, 4, 3)
    device.fence()
    counts = device.counts()
    assert counts.core_instructions == 8
    assert counts.instructions == {"config": 3, "mvin": 2, "mvout": 1, "preload": 1, "compute_preloaded": 1}
    assert (counts.dram_read, counts.dram_written, counts.macs, counts.fences) == (32, 12, 48, 1)
    assert (counts.peak_spad_rows, counts.peak_acc_rows) == (8, 3)
    assert counts.cycles >= counts.dram_bytes / 8


def test_counter_instruction() -> None:
    device = Device(target(), check_regions=False)
    bytes_received, configure, read = 4, 1 << 3, 0
    device.issue(126, 1 << 31 | bytes_received << 12 | 2 << 4 | configure, 0)
    device.config_ld(4)
    device.mvin(np.zeros((4, 4), np.int8), 0, 4, 4)
    assert device.issue(126, 2 << 4 | read, 0) == 16
