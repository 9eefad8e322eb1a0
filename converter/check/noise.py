"""Signal to quantisation noise: of all samples, of each, and of unequal things that one output joins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from fadiff.converter.ir.kinds import ELEMENTWISE, KEEPS_SCALE, Kind
from fadiff.converter.ir.operators import is_a
from fadiff.converter.ir.program import Node, Program

_BLOCK = 1 << 20
"""Elements that are compared at a time in double precision."""
_SENTINEL, _APART = 1e8, 1e3
"""Numbers of this size in an output (masked scores) stand for "not here" and are no signal, if all others are
so many times smaller."""
_QUIET = 0.1
"""A sample with less of the median sample's energy is measured as if it had so much: near silence, noise of
the usual size says nothing about the model."""
_MOST_DB = 200.0
"""Signal to noise of a sample without noise; its negative, where noise is infinite."""


@dataclass(frozen=True)
class Noise:
    """Signal to noise in dB; None where there is no noise, or no signal.

    `sqnr_db` pools energies over all samples, so that a loud one counts for more than the others together;
    the others are of single samples: the median, that which nine in ten reach, the worst.
    """

    sqnr_db: float | None = None
    median_db: float | None = None
    tenth_db: float | None = None
    worst_db: float | None = None


def noise_of(expected: np.ndarray, found: np.ndarray, seen: np.ndarray | None = None) -> Noise:
    """Compare [samples, ...] element by element where `seen` [...] is true; what is no number is left out."""
    limit = _limit(expected)
    energies = np.array([_energies(a, b, limit, seen) for a, b in zip(expected, found, strict=True)])
    signal, noise = energies.reshape(-1, 2).T
    pooled = _decibels(signal.sum(), noise.sum())
    if pooled is None:
        return Noise()
    floor = _QUIET * float(np.median(signal[signal > 0]))
    each = [_decibels(max(s, floor), n) for s, n in energies]
    ratios = np.array([_MOST_DB if ratio is None else ratio for ratio in each])
    median, tenth, worst = (round(float(np.quantile(ratios, q)), 2) for q in (0.5, 0.1, 0.0))
    return Noise(round(pooled, 2), median, tenth, worst)


def sqnr_db(expected: np.ndarray, found: np.ndarray) -> float | None:
    """Signal to noise in decibels over elements that are numbers; None without noise or signal."""
    return _decibels(*_energies(expected, found, _limit(expected)))


def _limit(expected: np.ndarray) -> float:
    """Numbers of this size are none."""
    flat = expected.reshape(-1)
    blocks = (np.abs(flat[start : start + _BLOCK]) for start in range(0, flat.size, _BLOCK))
    others = max((float(block[block < _SENTINEL].max(initial=-1)) for block in blocks), default=-1)
    return _SENTINEL if 0 <= others * _APART <= _SENTINEL else np.inf


def _energies(
    expected: np.ndarray, found: np.ndarray, limit: float, seen: np.ndarray | None = None
) -> tuple[float, float]:
    """Energies of the signal and of the noise."""
    signal = noise = 0.0
    for wanted, got in _blocks(expected, found, seen):
        is_number = np.abs(wanted) < limit  # (false for NaN)
        with np.errstate(invalid="ignore", over="ignore"):
            noise += float(np.sum((wanted[is_number] - got[is_number]) ** 2))
        signal += float(np.sum(wanted[is_number] ** 2))
    return signal, noise


def _blocks(
    expected: np.ndarray, found: np.ndarray, seen: np.ndarray | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    wanted, got = expected.reshape(-1), found.reshape(-1)
    if seen is not None:
        wanted, got = wanted[seen.reshape(-1)], got[seen.reshape(-1)]
    for start in range(0, wanted.size, _BLOCK):
        yield wanted[start : start + _BLOCK].astype(np.float64), got[start : start + _BLOCK]


def _decibels(signal: float, noise: float) -> float | None:
    if not np.isfinite(noise):  # (the logarithm of what was rounded to 0)
        return -_MOST_DB
    return 10 * float(np.log10(signal / noise)) if noise and signal else None


_PASSES = KEEPS_SCALE | Kind.JOIN | Kind.SCATTER
_MOST_PARTS = 32
_MOST_COLUMNS = 128
"""More are features, and some of these are always small."""
_UNLIKE = 8.0
"""Times smaller than the largest column: three of eight bits."""


@dataclass(frozen=True)
class Parts:
    """Which elements of an output belong together; arrays have its shape.

    `passed` are elements of an input of the model that only moved: they say nothing about the model.
    """

    joined: Mapping[str, np.ndarray] = field(default_factory=dict)
    """By the value that was joined; none where nothing was."""
    passed: np.ndarray | None = None


def parts_of(program: Program, output: str) -> Parts:
    """The operands of the last Concat that leads to an output (of the last ones, where Concats join Concats),
    followed through moves and functions of single elements."""
    found: list[tuple[str, str]] = []
    places = _places(program, output, output, found)
    kept = [i for i, (_, source) in enumerate(found) if not _is_passed(program, source)]
    if len(found) < 2 or not kept:
        return Parts()
    passed = None if len(kept) == len(found) else ~np.isin(places, kept)
    if not 1 < len(kept) <= _MOST_PARTS:
        return Parts(passed=passed)
    return Parts({found[i][0]: places == i for i in kept}, passed)


def _places(program: Program, value: str, operand: str, found: list[tuple[str, str]]) -> np.ndarray:
    """For every element of a value the number of the operand that it comes from.

    `found` grows by operands (as they are before they are moved), each with the value that it is a function
    of, element by element; `operand` is that which the value leads to.
    """
    node = program.producer.get(value)
    source = None if node is None else _source(program, node)
    if node is not None and node.op == "Concat":
        operands = [_places(program, name, name, found) for name in node.inputs]
        return np.concatenate(operands, int(node.attributes["axis"]))
    if node is not None and source is not None:
        moves = operand == value and is_a(node, Kind.RESHAPE | Kind.TRANSPOSE)
        places = _places(program, source, source if moves else operand, found)
        if node.op == "Transpose":
            return places.transpose(node.attributes.get("perm", tuple(range(places.ndim))[::-1]))
        return places.reshape(program.shapes[value])
    found.append((operand, value))
    return np.full(program.shapes[value], len(found) - 1, np.int32)


def _source(program: Program, node: Node) -> str | None:
    """The one value whose elements a node gives on, each at its place or moved."""
    computed = list(program.activations(node))
    if is_a(node, Kind.RESHAPE | Kind.TRANSPOSE):
        return node.inputs[0]
    same = len(computed) == 1 and program.shapes[computed[0]] == program.shapes[node.outputs[0]]
    return computed[0] if same and is_a(node, ELEMENTWISE) else None


def _is_passed(program: Program, value: str) -> bool:
    """Whether a value only has elements of the model's inputs."""
    while (node := program.producer.get(value)) is not None and is_a(node, _PASSES):
        value = node.inputs[0]
    return value in program.inputs or value in program.constants


def small_columns(expected: np.ndarray) -> Mapping[str, np.ndarray]:
    """Columns of an output [samples, ...] much smaller than its largest one, those of like size as one part.

    Columns are the last axis of a matrix, the shorter one of the last two behind a batch, channels of images.
    """
    shape = expected.shape[1:]
    if not shape:
        return {}
    axis = len(shape) - 1 if len(shape) <= 2 else 1
    if len(shape) == 3 and shape[2] < shape[1]:
        axis = 2
    if not 1 < shape[axis] <= _MOST_COLUMNS:
        return {}
    others = tuple(i for i in range(expected.ndim) if i != axis + 1)
    numbers = np.where(np.abs(expected) < _limit(expected), expected, 0.0)
    size = np.sqrt(np.mean(np.square(numbers, dtype=np.float64), axis=others))
    small = (size > 0) & (size * _UNLIKE < size.max())
    grades = np.full(size.shape, -1.0)
    grades[small] = np.floor(np.log(size.max() / size[small]) / np.log(_UNLIKE))
    along = [1] * len(shape)
    along[axis] = -1
    what = "column" if axis == len(shape) - 1 else "channel"
    found = {}
    for grade in np.unique(grades[small]):
        places = np.flatnonzero(grades == grade).tolist()
        label = f"{what}{'s' if len(places) > 1 else ''} {_listed(places)}"
        found[label] = np.broadcast_to((grades == grade).reshape(along), shape)
    return found


def _listed(numbers: list[int]) -> str:
    """[0, 1, 2, 5] as 0 to 2, 5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]} to {r[-1]}" for r in runs)
