"""Activation functions as sums of ramps on the array: what is cut off as it is stored makes one.

Rows of as many elements as the array is wide are multiplied by a few gains each, and shifted: stores in int8
cut that off at both ends, so every result is a ramp between two inputs.  A second product adds ramps up.  A
function of little curvature (GELU, SiLU, hard-swish, sigmoid, tanh) is so near to a sum of a few that most of
the 256 integers are those of its table, and the others are next to them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fadiff.converter.ir.builder import weight_view
from fadiff.converter.ir.graph import Graph, Layer, Tensor, TensorCoreLayer, View
from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.realise.activations import MOST_LSB, dense_table
from fadiff.optimizer.realise.realised import Realised

MOST_RAMPS = 8
"""With more the core is hardly slower."""
MOST_SQUARE = 0.1
"""Steps squared that a sum of them may be off a table, which by rounding is a twelfth off the function."""
_EVERY = np.arange(-128, 128)
_LIKELY = np.exp(-0.5 * (_EVERY / 43) ** 2) + 0.05
"""How often a value is what: calibrated ranges are about three deviations wide."""
_LIKELY /= _LIKELY.sum()
_GAINS = (1, 2, 4, 8)
"""Whole numbers, so that ramps are not rounded."""
_TOPS = range(127, 63, -1)
"""What the largest weight of a ramp may be: of some the others are nearer to whole numbers."""
_ROUNDS = 8


class Ramps(NamedTuple):
    """scale * (bias + sum of weight * clip(gain * x + shift, -128, 127))."""

    gains: tuple[int, ...]
    shifts: tuple[int, ...]
    weights: tuple[int, ...]
    bias: int
    scale: float


def realised_ramps(graph: Graph, layer: Layer, target: Target) -> Realised | None:
    """Two products; None of tables that few ramps do not come near to, and of elements in another order than
    before."""
    table = dense_table(graph, layer)
    if table is None or target.element_type != "int8":
        return None
    x, out = graph.tensors[layer.inputs[0]], graph.tensors[layer.outputs[0]]
    block = max(n for n in range(1, target.side + 1) if x.size % n == 0)
    found = nearest_ramps(table.tobytes())
    if found is None or block < min(target.side, 4):
        return None
    rows, wide = x.size // block, block * len(found.gains)
    every = np.eye(block, dtype=np.int32)
    spread, add_up = Dims(K=wide, C=block, P=rows), Dims(K=block, C=wide, P=rows)
    parts = Tensor(f"{layer.name}.ramps", (rows, wide), "int8", x.scale)
    gains = np.concatenate([every * gain for gain in found.gains], 1)
    weights = np.concatenate([every * weight for weight in found.weights])

    def product(
        name: str,
        dims: Dims,
        source: Tensor,
        result: Tensor,
        values: np.ndarray,
        bias: np.ndarray,
        scale: float,
    ) -> tuple[TensorCoreLayer, tuple[Tensor, Tensor]]:
        data = values.astype(np.int8).reshape(1, 1, 1, dims.C, dims.K)
        weight = Tensor(f"{name}.weight", data.shape, "int8", 1.0, data)
        shift = Tensor(f"{name}.bias", (1, dims.K), "int32", 1.0, bias.astype(np.int32).reshape(1, -1))
        found = TensorCoreLayer(
            name,
            "gemm",
            dims,
            View(source.name, 0, (0, 0, dims.C, 0, 1)),
            weight_view(weight.name, dims),
            View(result.name, 0, (0, 0, dims.K, 0, 1)),
            (rows, 1),
            bias=shift.name,
            scale=scale,
            onnx_nodes=layer.onnx_nodes,
        )
        return found, (weight, shift)

    first, given = product(parts.name, spread, x, parts, gains, np.repeat(found.shifts, block), 1.0)
    last, more = product(layer.name, add_up, parts, out, weights, np.full(block, found.bias), found.scale)
    return Realised("sum of ramps", (layer.name,), (first, last), (parts, *given, *more), exact=False)


@lru_cache(maxsize=1024)
def nearest_ramps(table: bytes) -> Ramps | None:
    """The fewest ramps that come near enough to what 256 int8 become; None where `MOST_RAMPS` do not."""
    wanted = np.frombuffer(table, np.int8).astype(np.float64)
    for count in range(1, MOST_RAMPS + 1):
        found = _nearest(wanted, count)
        if found is not None and _squares(found, wanted) <= MOST_SQUARE:
            rounded = np.rint(values_of(found))
            return found if np.abs(rounded - wanted).max() <= MOST_LSB else None
    return None


def values_of(ramps: Ramps) -> np.ndarray:
    """What they make of every int8, not rounded yet: float32 [256]."""
    parts = np.clip(np.outer(_EVERY, ramps.gains) + ramps.shifts, -128, 127)
    sums = (parts @ np.array(ramps.weights) + ramps.bias).astype(np.float32)
    values: np.ndarray = np.clip(sums * np.float32(ramps.scale), -128, 127)
    return values


def _squares(ramps: Ramps, wanted: np.ndarray) -> float:
    """Of what they are off, as often as it is likely."""
    return float(_LIKELY @ np.square(values_of(ramps) - wanted))


def _centred(values: np.ndarray) -> np.ndarray:
    """Columns [256, ...] without their means, so that squares weigh as they are likely."""
    weighed: np.ndarray = ((values - _LIKELY @ values).T * np.sqrt(_LIKELY)).T
    return weighed


class _Known(NamedTuple):
    """All ramps that there are."""

    gains: np.ndarray
    shifts: np.ndarray
    values: np.ndarray
    """[256, ramps], `_centred`."""
    products: np.ndarray
    """[ramps, ramps]: of each with each."""


@lru_cache(maxsize=1)
def _known() -> _Known:
    pairs = [(gain, -128 - gain * low) for gain in _GAINS for low in range(-128 - 255 // gain, 127)]
    gains, shifts = np.array(pairs).T
    values = np.clip(np.outer(_EVERY, gains) + shifts, -128, 127)
    varied = values[0] != values[-1]
    centred = _centred(values[:, varied])
    return _Known(gains[varied], shifts[varied], centred, centred.T @ centred)


def _nearest(wanted: np.ndarray, count: int) -> Ramps | None:
    """By least squares: one ramp after the other, then each again beside the others; then whole weights."""
    known, centred = _known(), _centred(wanted)
    towards = known.values.T @ centred

    def best(others: list[int]) -> int:
        if not others:
            return int((towards**2 / known.products.diagonal()).argmax())
        beside = known.products[others]
        along = np.linalg.solve(beside[:, others] + 1e-9 * np.eye(len(others)), beside)
        left = known.products.diagonal() - (beside * along).sum(0)
        gained = (towards - towards[others] @ along) ** 2 / np.maximum(left, 1e-3)
        return int(np.where(left > 1e-3, gained, 0).argmax())

    chosen = list[int]()
    for _ in range(count):
        chosen.append(best(chosen))
    for _ in range(_ROUNDS):
        before = list(chosen)
        for i in range(count):
            chosen[i] = best(chosen[:i] + chosen[i + 1 :])
        if chosen == before:
            break
    exact = np.linalg.lstsq(known.values[:, chosen], centred, rcond=None)[0]
    gains, shifts = known.gains[chosen], known.shifts[chosen]
    parts = np.clip(np.outer(_EVERY, gains) + shifts, -128, 127)
    found: list[Ramps] = []
    for top in _TOPS if exact.any() else ():
        weights = np.rint(exact * (top / np.abs(exact).max())).astype(int)
        sums = parts @ weights
        varied = _centred(sums)
        scale = float(np.float32(varied @ centred / max(varied @ varied, 1e-3)))
        if scale > 0:
            bias = round(_LIKELY @ wanted / scale - _LIKELY @ sums)
            found.append(
                Ramps(tuple(gains.tolist()), tuple(shifts.tolist()), tuple(weights.tolist()), bias, scale)
            )
    return min(found, key=lambda ramps: _squares(ramps, wanted), default=None)
