"""What calibration sees of the float model: how the magnitudes of each activation are spread, channel means.

One pass over the samples, whatever is asked for: every value is a histogram at once (ONNX Runtime's own
calibrator keeps all tensors of all samples, and is quadratic in their number).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from fadiff.converter.errors import ModelError
from fadiff.converter.ir.stored import StoredWeights
from fadiff.converter.read.inputs import Samples
from fadiff.converter.read.runtime import run_model, run_nodes

BINS = 2**11
_MOST_ELEMENTS = 2**19
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

    def add(self, array: np.ndarray, most: int = _MOST_ELEMENTS) -> None:
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

    def _widen(self, top: float) -> None:
        """Make the histogram reach `top`, a power of two."""
        if self.top and top > self.top:
            joined = int(min(top / self.top, BINS))
            sums = self.counts.reshape(-1, joined).sum(1)
            self.counts[: len(sums)], self.counts[len(sums) :] = sums, 0
        self.top = max(self.top, top)


def activations(
    file: str, model: onnx.ModelProto, weights: StoredWeights, samples: Samples, values: Collection[str]
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
        if weights:
            for name, arrays in run_model(model, weights, samples, frozenset(computed)):
                for array in arrays:
                    yield name, array
            return
        for some in _chunks(model, computed):
            for found in run_nodes(model.graph.node, samples, some, model.graph.initializer, like=model):
                yield from found.items()
    except ModelError as error:
        raise ModelError(f"{file}: calibration failed: {error}") from error


def observe(
    file: str,
    model: onnx.ModelProto,
    weights: StoredWeights,
    samples: Samples,
    values: Collection[str],
    roles: Mapping[str, str],
) -> dict[str, Observed]:
    """What each value was on the samples; a value that nothing computes is left out.

    Values of one role (`Program.roles`) are looked at as one.

    Raises:
        ModelError: the samples do not fit the model.
    """
    found: dict[str, Observed] = {}
    by_role: dict[str, Observed] = {}
    most = max(1, _MOST_ELEMENTS // max(len(samples), 1))
    for name, array in activations(file, model, weights, samples, values):
        seen = found[name] = by_role.setdefault(roles.get(name, name), Observed())
        seen.add(array, most)
    return found


def channel_maxima(
    file: str, model: onnx.ModelProto, samples: Samples, values: Collection[str]
) -> dict[str, np.ndarray]:
    """The largest magnitude that each channel (the second axis) of some values took.

    Raises:
        ModelError: the samples do not fit the model.
    """
    found: dict[str, np.ndarray] = {}
    for name, array in activations(file, model, StoredWeights(), samples, values):
        largest = np.abs(array).max((0, *range(2, array.ndim)))
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
