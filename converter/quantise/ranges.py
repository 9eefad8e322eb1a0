"""How far int8 reaches: the largest magnitude that 127 stands for, from what calibration sees.

The float model runs once over the samples, and every value becomes a histogram at once (ONNX Runtime's own
calibrator keeps all tensors of all samples, and is quadratic in their number).  Larger magnitudes saturate.
A narrow range makes finer steps for all others, and which counts for more only the network can tell:
`choose.py` asks it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import onnx

from fadiff.converter.errors import ModelError
from fadiff.converter.ir.builder import INT8_MAX
from fadiff.converter.ir.kinds import Kind
from fadiff.converter.ir.operators import extremes_taken, is_a, keeps_scale, padding
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.plan.plan import BLANK, Step
from fadiff.converter.read.inputs import Samples
from fadiff.converter.read.runtime import run_model, run_nodes

BINS = 2**11
MOST_ELEMENTS = 2**19
"""Most elements of one value in all samples: larger ones are looked at with a stride."""
_MOST_BYTES = 2**28
"""Most bytes that one run of the model returns."""


@dataclass
class Observed:
    """The magnitudes that a value took; `counts` are those of BINS equal parts of (0, `top`]."""

    low: float = np.inf
    high: float = -np.inf
    top: float = 0.0
    """A power of two, so that a histogram can become wider."""
    counts: np.ndarray = field(default_factory=lambda: np.zeros(BINS, np.int64), repr=False)

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return max(abs(self.low), abs(self.high)) if self.low <= self.high else 0.0

    def add(self, array: np.ndarray, most: int = MOST_ELEMENTS) -> None:
        """Count the elements of an array; bounds are exact, of large arrays some elements count."""
        if array.size == 0:
            return
        low, high = (float(take.reduce(array, axis=None)) for take in (np.fmin, np.fmax))  # (not NaN)
        self.low, self.high = min(self.low, low), max(self.high, high)
        stride = -(-array.size // most)
        flat = array.reshape(-1)[::stride]
        used = np.isfinite(flat) & (flat != 0)
        magnitudes = np.abs(flat[used].astype(np.float64))
        if magnitudes.size:
            self._widen(float(np.exp2(np.ceil(np.log2(magnitudes.max())))))
            places = np.minimum((magnitudes * (BINS / self.top)).astype(np.int64), BINS - 1)
            self.counts += np.bincount(places, minlength=BINS)

    def join(self, other: Observed) -> None:
        """Count what another has seen, too."""
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self._widen(other.top)
        self.counts += other._counts_to(self.top)

    def _widen(self, top: float) -> None:
        """Make the histogram reach `top`, a power of two."""
        if top > self.top:
            self.counts, self.top = self._counts_to(top), top

    def _counts_to(self, top: float) -> np.ndarray:
        """The counts of a histogram that reaches `top`."""
        counts = np.zeros(BINS, np.int64)
        if self.top:
            sums = self.counts.reshape(-1, int(min(top / self.top, BINS))).sum(1)
            counts[: len(sums)] = sums
        return counts


def activations(
    file: str, program: Program, samples: Samples, values: Collection[str]
) -> Iterator[tuple[str, np.ndarray]]:
    """Values of the float model (inputs or computed), sample by sample for each of them.

    A model with weights on disk is run a piece at a time.

    Raises:
        ModelError: the samples do not fit the model.
    """
    computed = [name for name in values if not samples or name not in samples[0]]
    try:
        for name in values:
            for sample in samples:
                if name in sample:
                    yield name, sample[name]
        if program.weights:
            for name, arrays in run_model(program, samples, frozenset(computed)):
                for array in arrays:
                    yield name, array
            return
        model = program.model
        for some in _chunks(model, computed):
            for found in run_nodes(model.graph.node, samples, some, model.graph.initializer, like=model):
                yield from found.items()
    except ModelError as error:
        raise ModelError(f"{file}: calibration failed: {error}") from error


def channel_maxima(
    file: str, program: Program, samples: Samples, values: Collection[str]
) -> dict[str, np.ndarray]:
    """The largest magnitude that each channel (the second axis) of some values took.

    Raises:
        ModelError: the samples do not fit the model.
    """
    return maxima(file, program, samples, dict.fromkeys(values, 1))


def maxima(
    file: str, program: Program, samples: Samples, axes: Mapping[str, int | None]
) -> dict[str, np.ndarray]:
    """The largest magnitude that each index of an axis of some values took, or all of a value (None).

    Raises:
        ModelError: the samples do not fit the model.
    """
    found: dict[str, np.ndarray] = {}
    for name, array in activations(file, program, samples, axes):
        others = tuple(axis for axis in range(array.ndim) if axis != axes[name])
        largest = np.abs(array).max(others, initial=0.0)
        found[name] = np.maximum(found.get(name, largest), largest)
    return found


def _chunks(model: onnx.ModelProto, values: Sequence[str]) -> list[list[str]]:
    """The values in order, cut where those of one run would need too much memory."""
    graph = model.graph
    shapes = {
        info.name: [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        for info in (*graph.value_info, *graph.output)
    }
    chunks: list[list[str]] = []
    room = 0
    for name in values:
        size = 4 * int(np.prod(shapes.get(name, [1])))
        if size > room:
            chunks.append([])
            room = _MOST_BYTES
        chunks[-1].append(name)
        room -= size
    return chunks


Range = tuple[float, float]
_NARROWEST = 0.05
_CANDIDATES = 96
_FUTURE = 1e4
"""Numbers that should fit; of normal ones the largest of n grows as sqrt(ln n)."""
_BELOW = 16.0
"""So far below the smallest number a softmax has nothing: exp(-16) is 1e-7."""


def min_max(observed: Observed) -> float:
    """The largest magnitude: nothing saturates."""
    return observed.largest


def least_squares(observed: Observed, function: Callable[[np.ndarray], np.ndarray] = np.asarray) -> float:
    """The bound with the least mean squared error, of steps and of saturation together.

    Behind a function, if one is given: as flat at -x as at x.
    """
    centres = (np.arange(BINS) + 0.5) * (observed.top / BINS)
    used = np.flatnonzero(observed.counts)
    centres, counts = centres[used], observed.counts[used]
    bounds = observed.largest * np.linspace(1, _NARROWEST, _CANDIDATES)
    steps = (bounds / INT8_MAX)[:, None]
    errors = function(np.minimum(np.rint(centres / steps), INT8_MAX) * steps) - function(centres)
    return float(bounds[np.argmin((errors**2) @ counts)])


METHODS: Mapping[str, Callable[[Observed], float]] = {
    "min-max": min_max,
    "least squares": least_squares,
}
"""The ways to find a range, by the name that users read."""
_SQUASHING: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "Tanh": np.tanh,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}
"""Functions that become flat: int8 may saturate there."""


def ranges(
    program: Program, steps: Sequence[Step], observed: Mapping[str, Observed], method: str
) -> dict[str, Range]:
    """A range for every value that was observed; one with no finite magnitude keeps its bounds.

    Wider for inputs in their own units of which few numbers were seen: the next ones would go beyond.
    Where a function that becomes flat is all that reads a value, whatever the method, errors behind it count.
    """
    alike = {id(seen): _range(seen, METHODS[method]) for seen in observed.values()}
    found = {name: alike[id(seen)] for name, seen in observed.items()}
    for step in steps:
        if step.kind == "input" and step.output in found:
            count = max(int(observed[step.output].counts.sum()), 3)
            room = max(1.0, float(np.sqrt(np.log(_FUTURE) / np.log(count))))
            low, high = found[step.output]
            found[step.output] = (low * room, high * room)
        elif _is_squashed(program, step) and step.source in found:
            squashed = partial(least_squares, function=_SQUASHING[step.nodes[0].op])
            found[step.source] = _range(observed[step.source], squashed)
    return _without_sentinels(program, steps, found)


def _is_squashed(program: Program, step: Step) -> bool:
    """Whether a step's function becomes flat, and nothing else reads what it does."""
    inside = step.source not in program.inputs and program.sole_consumer(step.source) is not None
    return step.kind == "lookup" and step.nodes[0].op in _SQUASHING and inside


def _range(seen: Observed, method: Callable[[Observed], float]) -> Range:
    bound = method(seen) if seen.counts.any() and np.isfinite(seen.largest) else np.inf
    return max(seen.low, -bound), min(seen.high, bound)


def _without_sentinels(
    program: Program, steps: Sequence[Step], ranges: Mapping[str, Range]
) -> dict[str, Range]:
    """`ranges` with those of values that hold such numbers replaced by what the other elements take."""
    out = dict(ranges)
    for step in steps:
        if step.output not in out or step.kind != "node":
            continue
        marked = _marked(program, step.head)
        readers = extremes_taken(program, step.output) if marked is not None else ()
        others = _range_of(program, out, marked[0]) if marked is not None else None
        if marked is None or others is None or not readers:
            continue
        lowest = marked[1] < 0
        if lowest == (is_a(readers[0], Kind.MINIMUM)):
            continue
        low, high = others
        room = _BELOW if any(is_a(reader, Kind.SOFTMAX) for reader in readers) else 0.0
        out[step.output] = (low - room, high) if lowest else (low, high)
    return out


def _marked(program: Program, node: Node) -> tuple[str, float] | None:
    """The value whose elements a Where or Pad keeps, and what it puts in the place of others."""
    if node.op == "Pad" and node.attributes.get("mode", "constant") == "constant":
        found = padding(program, node)
        return (node.inputs[0], found[2]) if found is not None and abs(found[2]) >= -BLANK else None
    if node.op != "Where":
        return None
    for kept, fill in (node.inputs[1:], node.inputs[:0:-1]):
        constant = program.constant(fill)
        if constant is not None and kept not in program.constants and constant.size:
            if np.all(constant <= BLANK):
                return kept, float(constant.max())
            if np.all(constant >= -BLANK):
                return kept, float(constant.min())
    return None


def _range_of(program: Program, ranges: Mapping[str, Range], value: str) -> Range | None:
    """The range of a value, or of the one that it is a part or a move of."""
    while value not in ranges:
        node = program.producer.get(value)
        if node is None or not keeps_scale(node):
            return None
        value = node.inputs[0]
    return ranges[value]
