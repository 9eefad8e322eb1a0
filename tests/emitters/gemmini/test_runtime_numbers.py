"""Host operators of the emitted runtime, any size and view, against docs/host-ops.md in numpy."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emitters.gemmini.test_runtime import compile_unit

F = np.float32
FUNCTIONS = (
    *("add", "sub", "mul", "div", "max", "min", "prelu", "equal", "greater"),
    *("greater_or_equal", "less", "less_or_equal", "and", "or", "xor"),
)
CODE = """
#include "elementwise.h"
#include "integers.h"
#include "pool.h"
#include "rows.h"

#define UNIT(name, ...) void unit_##name(__VA_ARGS__); void unit_##name(__VA_ARGS__)
typedef const int8_t *bytes_t;
typedef const int32_t *words_t;
typedef const float *floats_t;
typedef const loops_t *nest_t;

UNIT(softmax, rows_t r, bytes_t x, words_t e, bytes_t mask, int32_t mask_rows, int8_t *y)
{ softmax(&r, x, e, mask, mask_rows, y, 127.5f); }
UNIT(log_softmax, rows_t r, bytes_t x, words_t e, floats_t t, int32_t n, int8_t *y)
{ log_softmax(&r, x, e, t, n, 0.7f, 0.0625f, y); }
UNIT(layer_norm, rows_t r, bytes_t x, floats_t g, floats_t b, bool inner, int8_t *y)
{ layer_norm(&r, x, g, b, y, inner, 1e-5, 0.25 / r.length / r.length, 0.5 / r.length); }
UNIT(rms_norm, rows_t r, bytes_t x, floats_t g, floats_t b, bool inner, int8_t *y)
{ rms_norm(&r, x, g, b, y, inner, 1e-5, 0.25 / r.length / r.length, 0.5 / r.length); }
UNIT(reduce_sum, rows_t r, bytes_t x, int8_t *y) { reduce_sum(&r, x, y, 0.3f); }
UNIT(reduce_max, rows_t r, bytes_t x, int8_t *y) { reduce_max(&r, x, y, 0.3f); }
UNIT(reduce_min, rows_t r, bytes_t x, int8_t *y) { reduce_min(&r, x, y, 0.3f); }
UNIT(largest, rows_t r, bytes_t x, int8_t *y) { reduce_max(&r, x, y, 1.0f); }
UNIT(least, rows_t r, bytes_t x, int8_t *y) { reduce_min(&r, x, y, 1.0f); }
UNIT(gather, rows_t r, bytes_t x, words_t at, int32_t n, int8_t *y) { gather(&r, x, at, n, y, 1); }
UNIT(scatter, rows_t r, bytes_t x, words_t at, int32_t n, bytes_t u, int8_t *y)
{ scatter(&r, x, at, n, u, y, 1); }
UNIT(max_pool, window_t w, bytes_t x, int8_t *y) { max_pool(&w, x, y); }
UNIT(average_pool, window_t w, bytes_t x, int8_t *y, bool pad) { average_pool(&w, x, y, pad, 1.3f); }
UNIT(copy_bytes, nest_t l, bytes_t x, int8_t *y) { copy_bytes(l, x, y); }
UNIT(copy_words, nest_t l, words_t x, int32_t *y) { copy_words(l, x, y); }
UNIT(quantise, nest_t l, words_t x, int8_t *y) { quantise(l, x, y, 0.37f); }
#define UNIT_BINARY(name) \\
    UNIT(binary_##name, nest_t l, bytes_t a, bytes_t b, int8_t *y, float scale, bool relu) \\
    { binary_##name(l, a, b, y, 0.75f, 0.3f, scale, relu); }
UNIT_BINARIES
UNIT(scale_shift, nest_t l, bytes_t x, floats_t m, floats_t a, int8_t *y, bool relu)
{ scale_shift(l, x, m, a, y, relu); }
UNIT(where, nest_t l, bytes_t c, bytes_t a, bytes_t b, int8_t *y) { where(l, c, a, b, y, 0.75f, 1.5f); }
""".replace("UNIT_BINARIES", "\n".join(f"UNIT_BINARY({name})" for name in FUNCTIONS))


class _Rows(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("outer", "length", "inner")]


class _Window(ctypes.Structure):
    _fields_ = [("size", ctypes.c_int32 * 6), ("axes", ctypes.c_int32 * 10)]


class _Loops(ctypes.Structure):
    _fields_ = [
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p * 4),
        ("operands", ctypes.c_int32),
    ]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ctypes.CDLL]:
    folder: Path = tmp_path_factory.mktemp("runtime")
    yield ctypes.CDLL(str(compile_unit("gemmini-default", CODE, folder, "-shared", "-fPIC", "-lm")))


def _at(array: np.ndarray | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


def _sat8(values: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(values), -128, 127).astype(np.int8)


@st.composite
def _bytes(draw: st.DrawFn, size: int) -> np.ndarray:
    """Any int8: spread, narrow around a far mean, or the limits."""
    numbers = np.random.default_rng(draw(st.integers(0, 2**32)))
    low, high = draw(
        st.sampled_from([(-128, 128), (-3, 4), (124, 128), (-128, -125), (-128, -127), (127, 128)])
    )
    return numbers.integers(low, high, size).astype(np.int8)


@st.composite
def _views(draw: st.DrawFn) -> tuple[_Rows, np.ndarray]:
    """Rows and x as [outer, length, inner]; some in words of eight, some too long for sums of 16 bits."""
    lengths = st.one_of(st.integers(1, 50), st.sampled_from([64, 2056, 4100]))
    shape = draw(st.tuples(st.integers(1, 3), lengths, st.sampled_from([1, 1, 2, 5, 8, 16])))
    return _Rows(*shape), draw(_bytes(int(np.prod(shape)))).reshape(shape)


TABLE = np.rint(2**24 * np.exp(np.arange(-255, 1) * 0.07)).astype(np.int32)


@settings(max_examples=60, deadline=None)
@given(view=_views(), masked=st.booleans(), seed=st.integers(0, 99))
def test_softmax(library: ctypes.CDLL, view: tuple[_Rows, np.ndarray], masked: bool, seed: int) -> None:
    rows, x = view
    masked = masked and rows.inner == 1
    mask = np.zeros((1, rows.length), np.int8)
    if masked:
        numbers = np.random.default_rng(seed)  # single elements, and stretches of either kind
        mask = np.cumsum(numbers.random((2, rows.length)) < numbers.choice([0.05, 0.5]), 1) % 2
        mask = (mask * numbers.integers(-3, 4, mask.shape)).astype(np.int8)
        if seed % 2:  # the last elements, as of later tokens
            mask = np.sort(np.abs(mask), 1)
    y = x.copy()  # in place
    library.unit_softmax(rows, _at(y), _at(TABLE), _at(mask if masked else None), len(mask), _at(y))
    blank = mask[np.arange(rows.outer) % len(mask)][:, :, None] != 0
    wide = np.where(blank, -128, x).astype(np.int64)
    e = np.where(blank, 0, TABLE[255 + wide - wide.max(1, keepdims=True)]).astype(np.int64)
    gain = F(127.5) / np.maximum(e.sum(1, keepdims=True), 1).astype(F)
    np.testing.assert_array_equal(y, _sat8(e.astype(F) * gain))


@settings(max_examples=40, deadline=None)
@given(view=_views())
def test_log_softmax(library: ctypes.CDLL, view: tuple[_Rows, np.ndarray]) -> None:
    rows, x = view
    thresholds = np.ceil(2**24 * np.exp((np.arange(60) + 0.5) / 20)).astype(F)
    y = x.copy()
    library.unit_log_softmax(rows, _at(y), _at(TABLE), _at(thresholds), len(thresholds), _at(y))
    below = x.astype(np.int64) - x.max(1, keepdims=True)
    total = TABLE[255 + below].astype(np.int64).sum(1, keepdims=True).astype(F)
    whole = (thresholds[None, None, None] <= total[..., None]).sum(-1).astype(F) * F(0.0625)
    np.testing.assert_array_equal(y, _sat8(below.astype(F) * F(0.7) - whole))


@settings(max_examples=60, deadline=None)
@given(view=_views(), centre=st.booleans(), per_inner=st.booleans(), seed=st.integers(0, 99))
def test_layer_norm(
    library: ctypes.CDLL, view: tuple[_Rows, np.ndarray], centre: bool, per_inner: bool, seed: int
) -> None:
    rows, x = view
    n = rows.length
    shape = (1, 1, rows.inner) if per_inner else (1, n, 1)
    gamma, beta = (30 * np.random.default_rng(seed).normal(size=(2, *shape))).astype(F)
    y = x.copy()
    unit = library.unit_layer_norm if centre else library.unit_rms_norm
    unit(rows, _at(y), _at(gamma), _at(beta), per_inner, _at(y))
    wide = x.astype(np.int64)
    total = centre * wide.sum(1, keepdims=True)
    variance = n * (wide * wide).sum(1, keepdims=True) - total * total
    gain = (0.5 / n) / np.sqrt(variance * (0.25 / n / n) + 1e-5)
    middle = np.trunc(total / n).astype(np.int64)
    factor, shift = (gain * n).astype(F), (gain * -(total - n * middle)).astype(F)
    exact = ((wide - total / n) * gain * n * gamma.astype(np.float64)) + beta
    stepwise = ((wide - middle).astype(F) * factor + shift) * gamma + beta
    np.testing.assert_array_equal(y, _sat8(stepwise))
    assert np.abs(y - np.clip(exact, -128, 127)).max() < 0.51


@settings(max_examples=40, deadline=None)
@given(view=_views(), function=st.sampled_from(["sum", "max", "min"]))
def test_reduce(library: ctypes.CDLL, view: tuple[_Rows, np.ndarray], function: str) -> None:
    rows, x = view
    y = np.empty((rows.outer, rows.inner), np.int8)
    getattr(library, f"unit_reduce_{function}")(rows, _at(x), _at(y))
    value = getattr(np, function)(x.astype(np.int32), axis=1)
    np.testing.assert_array_equal(y, _sat8(value.astype(F) * F(0.3)))


@pytest.mark.parametrize("lanes", [(0, 1), (2, 0), (7, 3), (5, 6), (1, 12)])
@pytest.mark.parametrize("function", ["largest", "least"])
def test_extrema_of_all_pairs(library: ctypes.CDLL, function: str, lanes: tuple[int, int]) -> None:
    """In words: every two elements in two lanes, the others the last that could be the extremum."""
    pairs = np.stack(np.meshgrid(*[np.arange(-128, 128)] * 2), -1).reshape(-1, 2)
    x = np.full((len(pairs), 16), -128 if function == "largest" else 127, np.int8)
    x[:, lanes] = pairs
    y = np.empty(len(pairs), np.int8)
    getattr(library, f"unit_{function}")(_Rows(*x.shape, 1), _at(x), _at(y))
    np.testing.assert_array_equal(y, pairs.max(1) if function == "largest" else pairs.min(1))


@settings(max_examples=20, deadline=None)
@given(view=_views(), count=st.integers(1, 9))
def test_gather(library: ctypes.CDLL, view: tuple[_Rows, np.ndarray], count: int) -> None:
    """Negative indices count from the end, as in ONNX."""
    rows, x = view
    indices = np.random.default_rng(count).integers(-rows.length, rows.length, count).astype(np.int32)
    y = np.empty((rows.outer, count, rows.inner), np.int8)
    library.unit_gather(rows, _at(x), _at(indices), count, _at(y))
    np.testing.assert_array_equal(y, x[:, indices])


@settings(max_examples=20, deadline=None)
@given(view=_views(), count=st.integers(1, 9), in_place=st.booleans())
def test_scatter(library: ctypes.CDLL, view: tuple[_Rows, np.ndarray], count: int, in_place: bool) -> None:
    """Negative positions count from the end; those outside of a row are left out."""
    rows, x = view
    generator = np.random.default_rng(count)
    positions = generator.integers(-2 * rows.length, 2 * rows.length, count).astype(np.int32)
    updates = generator.integers(-128, 128, (rows.outer, count, rows.inner)).astype(np.int8)
    expected = x.copy()
    for j, position in enumerate(positions):
        if -rows.length <= position < rows.length:
            expected[:, position] = updates[:, j]
    around = np.full((rows.outer * rows.length * rows.inner + 2), 77, np.int8)
    y = around[1:-1]
    if in_place:
        y[:] = x.reshape(-1)
    library.unit_scatter(rows, _at(y if in_place else x), _at(positions), count, _at(updates), _at(y))
    np.testing.assert_array_equal(y.reshape(x.shape), expected)
    assert around[0] == around[-1] == 77


@st.composite
def _boxes(draw: st.DrawFn, operands: int) -> tuple[tuple[int, ...], list[np.ndarray]]:
    """A shape of up to 4 axes; strides per operand: any order of axes, or broadcast; the last one's dense."""
    shape = (*draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)), draw(st.integers(1, 40)))
    found = []
    for operand in range(operands):
        order = draw(st.permutations(range(len(shape))))
        strides, step = np.zeros(len(shape), np.int32), 1
        for axis in order:
            if operand == operands - 1 or draw(st.integers(0, 3)):
                strides[axis] = step
                step *= shape[axis]
        found.append(strides)
    return shape, found


def _loops(shape: tuple[int, ...], strides: list[np.ndarray]) -> tuple[Any, list[np.ndarray]]:
    """The structure, and what has to live as long."""
    extents = np.array(shape, np.int32)
    pointers = [s.ctypes.data for s in strides] + [None] * (4 - len(strides))
    loops = _Loops(len(shape), extents.ctypes.data, (ctypes.c_void_p * 4)(*pointers), len(strides))
    return ctypes.byref(loops), [extents, *strides]


def _seen(flat: np.ndarray, shape: tuple[int, ...], strides: np.ndarray) -> np.ndarray:
    return np.lib.stride_tricks.as_strided(flat, shape, [int(s) * flat.itemsize for s in strides])


@settings(max_examples=60, deadline=None)
@given(data=st.data(), words=st.booleans())
def test_copy(library: ctypes.CDLL, data: st.DataObject, words: bool) -> None:
    shape, strides = data.draw(_boxes(2))
    size = int(np.prod(shape))
    x = np.arange(size).astype(np.int32 if words else np.int8)
    y = np.zeros_like(x)
    loops, alive = _loops(shape, strides)
    (library.unit_copy_words if words else library.unit_copy_bytes)(loops, _at(x), _at(y))
    np.testing.assert_array_equal(_seen(y, shape, strides[1]), _seen(x, shape, strides[0]))
    assert alive


@pytest.mark.parametrize("start", [0, 8, 3])
@pytest.mark.parametrize("words", [False, True])
def test_copy_of_long_runs(library: ctypes.CDLL, words: bool, start: int) -> None:
    """Two runs of 45 elements, aligned to eight bytes or not; the second one ends where the buffer does."""
    kind = np.int32 if words else np.int8
    x, y = np.arange(120, dtype=kind), np.zeros(96, kind)
    strides = [np.array([56, 1], np.int32), np.array([48, 1], np.int32)]
    loops, alive = _loops((2, 45), strides)
    (library.unit_copy_words if words else library.unit_copy_bytes)(loops, _at(x[start:]), _at(y))
    expected = np.zeros((2, 48), kind)
    expected[:, :45] = x[start : start + 112].reshape(2, 56)[:, :45]
    np.testing.assert_array_equal(y.reshape(2, 48), expected)
    assert alive


def test_copy_slides_forward_in_its_buffer(library: ctypes.CDLL) -> None:
    x = np.arange(104, dtype=np.int8)
    loops, alive = _loops((96,), [np.ones(1, np.int32)] * 2)
    library.unit_copy_bytes(loops, _at(x[8:]), _at(x))
    np.testing.assert_array_equal(x[:96], np.arange(8, 104))
    assert alive


def _binary(function: str, a: np.ndarray, b: np.ndarray, scale: np.float32, relu: bool) -> np.ndarray:
    fa, fb = a.astype(F) * F(0.75), b.astype(F) * F(0.3)
    product = (a.astype(np.int32) * b).astype(F)
    act = (lambda v: np.maximum(v, F(0))) if relu else (lambda v: v)
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = np.where((a == 0) & (b == 0), F(0), a.astype(F) / b.astype(F))
    return {
        "add": lambda: _sat8(act(fa + fb) * scale),
        "sub": lambda: _sat8(act(fa - fb) * scale),
        "mul": lambda: _sat8(act(product) * scale),
        "div": lambda: _sat8(act(quotient) * scale),
        "max": lambda: np.maximum(_sat8(fa), _sat8(fb)),
        "min": lambda: np.minimum(_sat8(fa), _sat8(fb)),
        "prelu": lambda: np.where(a >= 0, _sat8(fa), _sat8(product * scale)),
        "equal": lambda: fa == fb,
        "greater": lambda: fa > fb,
        "greater_or_equal": lambda: fa >= fb,
        "less": lambda: fa < fb,
        "less_or_equal": lambda: fa <= fb,
        "and": lambda: (a != 0) & (b != 0),
        "or": lambda: (a != 0) | (b != 0),
        "xor": lambda: (a != 0) != (b != 0),
    }[function]()


@settings(max_examples=100, deadline=None)
@given(
    data=st.data(),
    function=st.sampled_from(FUNCTIONS),
    relu=st.booleans(),
    scale=st.sampled_from([0.9, 40.0]),
)
def test_binary(library: ctypes.CDLL, data: st.DataObject, function: str, relu: bool, scale: float) -> None:
    shape, strides = data.draw(_boxes(3))
    size = int(np.prod(shape))
    a, b = data.draw(_bytes(size)), data.draw(_bytes(size))
    y = np.zeros(size, np.int8)
    loops, alive = _loops(shape, strides)
    unit = getattr(library, f"unit_binary_{function}")
    unit(loops, _at(a), _at(b), _at(y), ctypes.c_float(scale), relu)
    expected = _binary(function, _seen(a, shape, strides[0]), _seen(b, shape, strides[1]), F(scale), relu)
    np.testing.assert_array_equal(_seen(y, shape, strides[2]), expected)
    assert alive


@settings(max_examples=40, deadline=None)
@given(data=st.data(), relu=st.booleans())
def test_scale_shift_and_where(library: ctypes.CDLL, data: st.DataObject, relu: bool) -> None:
    shape, strides = data.draw(_boxes(4))
    size = int(np.prod(shape))
    x, z, y = data.draw(_bytes(size)), data.draw(_bytes(size)), np.zeros(size, np.int8)
    factor, term = (20 * np.random.default_rng(size).normal(size=(2, size))).astype(F)
    loops, alive = _loops(shape, strides)
    library.unit_scale_shift(loops, _at(x), _at(factor), _at(term), _at(y), relu)
    first, second, third = (_seen(v, shape, s) for v, s in zip((x, factor, term), strides[:3], strict=True))
    value = first.astype(F) * second + third
    expected = _sat8(np.maximum(value, F(0)) if relu else value)
    np.testing.assert_array_equal(_seen(y, shape, strides[3]), expected)
    library.unit_where(loops, _at(x), _at(z), _at(x), _at(y))
    first, second, third = (_seen(v, shape, s) for v, s in zip((x, z, x), strides[:3], strict=True))
    expected = np.where(first != 0, _sat8(second.astype(F) * F(0.75)), _sat8(third.astype(F) * F(1.5)))
    np.testing.assert_array_equal(_seen(y, shape, strides[3]), expected)
    assert alive


def test_quantise_saturates(library: ctypes.CDLL) -> None:
    x = np.array([-(2**31), -347, -346, -345, -1, 0, 1, 342, 343, 344, 2**24 + 1, 2**31 - 1], np.int32)
    y, one = np.zeros(len(x), np.int8), np.ones(1, np.int32)
    loops, alive = _loops((len(x),), [one, one])
    library.unit_quantise(loops, _at(x), _at(y))
    np.testing.assert_array_equal(y, _sat8(x.astype(F) * F(0.37)))
    assert alive


@st.composite
def _windows(draw: st.DrawFn) -> tuple[_Window, np.ndarray, tuple[int, int]]:
    channels = st.one_of(st.integers(1, 9), st.sampled_from([8, 16, 24]))
    n, h, w, c = draw(st.tuples(st.integers(1, 2), st.integers(1, 7), st.integers(1, 7), channels))
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    kernel, stride, dilation = draw(pair), draw(pair), draw(pair)
    pads = draw(st.tuples(*[st.integers(0, 2)] * 4))
    out = tuple(draw(st.integers(1, 4)) for _ in range(2))  # windows may lie outside altogether
    sizes = (ctypes.c_int32 * 6)(n, h, w, c, *out)
    axes = (ctypes.c_int32 * 10)(*kernel, *stride, *dilation, *pads)
    return _Window(sizes, axes), draw(_bytes(n * h * w * c)).reshape(n, h, w, c), (out[0], out[1])


@settings(max_examples=80, deadline=None)
@given(window=_windows(), include=st.booleans())
def test_pools(
    library: ctypes.CDLL, window: tuple[_Window, np.ndarray, tuple[int, int]], include: bool
) -> None:
    w, x, out = window
    (kr, ks, sr, ss, dr, ds, top, left, bottom, right), (n, height, width, c) = list(w.axes), x.shape
    largest, mean = np.full((2, n, *out, c), -128, np.int8)
    expected_largest, expected_mean = largest.copy(), mean.copy()
    library.unit_max_pool(w, _at(x), _at(largest))
    library.unit_average_pool(w, _at(x), _at(mean), include)
    for p in range(out[0]):
        for q in range(out[1]):
            at = [(p * sr + r * dr - top, q * ss + s * ds - left) for r in range(kr) for s in range(ks)]
            inside = [x[:, i, j].astype(np.int32) for i, j in at if 0 <= i < height and 0 <= j < width]
            padded = [1 for i, j in at if -top <= i < height + bottom and -left <= j < width + right]
            count = len(padded) if include else len(inside)
            factor = F(1.3) / F(max(count, 1))
            total = np.sum(inside, axis=0) if inside else np.zeros((n, c), np.int32)
            expected_largest[:, p, q] = np.max(inside, axis=0) if inside else -128
            expected_mean[:, p, q] = _sat8(total.astype(F) * factor)
    np.testing.assert_array_equal(largest, expected_largest)
    np.testing.assert_array_equal(mean, expected_mean)
