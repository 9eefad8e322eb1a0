"""round-weights: which way each weight is rounded, so that the errors of one sum cancel.

Rounded to the nearest integer every weight is as close as it can be, but a sum of many is not: what one
weight loses, the others of its output channel can take back as far as their inputs go together.  One input
at a time is rounded and its error spread over those still to come, by least squares on the inputs that
calibration saw (Hassibi and Stork, "Second order derivatives for network pruning: Optimal Brain Surgeon",
1993; Frantar et al., "GPTQ", 2023, algorithm 1).

How inputs go together is looked at once, with the noise of int8 in them: ranges and biases, which are tried
in many ways, change little of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from fadiff.converter.ir.builder import INT8_MAX
from fadiff.converter.ir.kinds import Kind
from fadiff.converter.ir.operators import is_a, window_of
from fadiff.converter.ir.program import Node
from fadiff.converter.quantise.factors import inputs_apart
from fadiff.converter.quantise.simulate import Simulation
from fadiff.converter.quantise.weights import Quantisation, Quantised
from fadiff.converter.read.inputs import Samples

_MOST_ROWS = 2**13
"""Input vectors that are looked at, of all samples."""
_MOST_INPUTS = 2**10
"""Weights of one output channel that share their errors; longer sums are cut."""
_DAMPING = 0.01
_MOST_DAMPED = 8
"""Times: each is ten of the one before."""
_BLOCK = 128


class InputSums:
    """How the inputs of one product go together: sums over the vectors that weights of an output meet.

    Args:
        node: the product, one that `can_round`.
        weight: in float, as the node reads it.
        samples: how many there will be.
    """

    def __init__(self, node: Node, weight: np.ndarray, samples: int) -> None:
        self.node, self.weight = node, weight
        apart = inputs_apart(node, weight)
        self._matrix = apart.reshape(*apart.shape[:2], -1)
        groups, _, inputs = self._matrix.shape
        self._some = [slice(i, min(i + _MOST_INPUTS, inputs)) for i in range(0, inputs, _MOST_INPUTS)]
        self._products = [
            np.zeros((groups, some.stop - some.start, some.stop - some.start)) for some in self._some
        ]
        self._sums, self._count = np.zeros((groups, inputs)), 0
        self._most = max(1, max(_MOST_ROWS, 2 * weight[0].size) // samples)
        self._generator = np.random.default_rng(0)

    def add(self, array: np.ndarray) -> None:
        """What the product multiplies in one sample."""
        vectors = self._vectors(array)
        for some, products in zip(self._some, self._products, strict=True):
            part = vectors[:, :, some]
            products += part.transpose(0, 2, 1) @ part
        self._sums += vectors.sum(1)
        self._count += vectors.shape[1]

    def rounded(self, step: np.ndarray | np.float32, *, centred: bool) -> np.ndarray:
        """The weights as int8 of one step, or of one for each output; `centred`: errors of the mean are left
        to the bias."""
        out = np.empty(self._matrix.shape, np.int8)
        step = step.reshape(len(out), -1, 1) if step.ndim else step
        for some, products in zip(self._some, self._products, strict=True):
            sums = self._sums[:, some]
            mean = sums[:, :, None] * (sums / max(self._count, 1))[:, None] if centred else 0.0
            out[:, :, some] = with_feedback(self._matrix[:, :, some] / step, products - mean)
        found = np.empty(self.weight.shape, np.int8)
        apart = inputs_apart(self.node, found)
        apart[...] = out.reshape(apart.shape)
        return found

    def _vectors(self, array: np.ndarray) -> np.ndarray:
        """What weights of one output are multiplied with: [groups, vectors, inputs], some of all."""
        if self.node.op == "Conv":
            return _patches(self.node, self.weight.shape[2:], array, self._most, self._generator)
        rows = array.reshape(-1, array.shape[-1])
        return rows[self._generator.permutation(len(rows))[: self._most]][None]


class Rounder:
    """The rounding of all weights of a program that nobody else has a say in.

    Args:
        simulation: the quantised model.
        quantisation: one of it, with weights rounded to the nearest.
        samples: what is calibrated on.
    """

    def __init__(self, simulation: Simulation, quantisation: Quantisation, samples: Samples) -> None:
        self._simulation = simulation
        self._done: dict[tuple[str, bytes, bool], Quantised] = {}
        self._sums: dict[str, InputSums] = {}
        sources = self._sources(len(samples))
        for values in simulation.run(quantisation, samples, list(sources)) if sources else ():
            for value, array in values.items():
                for sums in sources[value]:
                    with np.errstate(over="ignore", invalid="ignore"):  # (squares of 1e20: judged, not taken)
                        sums.add(array)

    def weights(self, quantisation: Quantisation, centred: Collection[str]) -> dict[str, Quantised]:
        """Integers of the scales that `quantisation` has.

        Constants in `centred` are read by products whose bias takes back what their mean loses.
        """
        found = {}
        for name, sums in self._sums.items():
            plain = quantisation.weights[name]
            key = name, plain.step.tobytes(), name in centred
            if key not in self._done:
                with np.errstate(over="ignore", invalid="ignore"):
                    rounded = sums.rounded(plain.step, centred=key[2])
                self._done[key] = replace(plain, data=rounded)
            found[name] = self._done[key]
        return found

    def _sources(self, samples: int) -> dict[str, list[InputSums]]:
        """What products read, by its name in the quantised model."""
        program, steps = self._simulation.program, self._simulation.steps
        nodes = [n for n in self._simulation.model.graph.node if not n.op_type.endswith("Linear")]
        read = {node.output[0]: node.input[0] for node in nodes if node.input}
        readers = Counter(name for step in steps for name in step.head.inputs)
        found: dict[str, list[InputSums]] = {}
        for step in steps:
            name, head = step.head.input(1), step.head
            weight = program.constant(name)
            if step.kind != "node" or step.is_float or weight is None or readers[name] != 1:
                continue
            if can_round(head, weight):
                self._sums[name] = InputSums(head, weight, samples)
                source = read[self._simulation.written.exact(head.outputs[0])]
                found.setdefault(source, []).append(self._sums[name])
        return found


def can_round(node: Node, weight: np.ndarray) -> bool:
    """Whether a product is one of those whose inputs can be lined up with their weights."""
    if node.op == "Conv":
        return weight.ndim in (3, 4)
    return is_a(node, Kind.MATRIX) and weight.ndim == 2 and not node.attributes.get("transA", 0)


def with_feedback(weights: np.ndarray, gram: np.ndarray) -> np.ndarray:
    """Integers [groups, outputs, inputs] near `weights` with small errors gram errors^T.

    Args:
        weights: [groups, outputs, inputs], in steps.
        gram: [groups, inputs, inputs], sums over input vectors of their products.
    """
    diagonal = np.einsum("gii->gi", gram)
    order = np.argsort(-diagonal, axis=1, kind="stable")[:, ::-1]
    gram = np.take_along_axis(np.take_along_axis(gram, order[:, :, None], 1), order[:, None, :], 2)
    share = _shares(gram, diagonal.mean(1))
    left = np.take_along_axis(weights.astype(np.float64).transpose(0, 2, 1), order[:, :, None], 1)
    errors, out = np.zeros_like(left), np.empty(left.shape, np.int8)
    for end in range(left.shape[1], 0, -_BLOCK):
        start = max(0, end - _BLOCK)
        wanted = left[:, start:end] + share[:, start:end, end:] @ errors[:, end:]
        for i in reversed(range(start, end)):
            row = wanted[:, i - start] + (share[:, i, None, i + 1 : end] @ errors[:, i + 1 : end])[:, 0]
            out[:, i] = np.clip(np.rint(row), -INT8_MAX, INT8_MAX)
            errors[:, i] = left[:, i] - out[:, i]
    back = np.argsort(order, axis=1)
    return np.take_along_axis(out, back[:, :, None], 1).transpose(0, 2, 1)


def _shares(gram: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """[group, i, j]: what input i takes back of an error of input j, which was rounded before it (j > i).

    With gram = L L^T a loss is the square of L^T errors, whose row i vanishes so: no matrix is inverted, and
    the integers are those of algorithm 1 (Chen et al., "The geometry of LLM quantization: GPTQ as Babai's
    nearest plane algorithm", 2025).

    Sums of inputs that hardly vary around a large mean are little but rounding errors, and may not be those
    of any inputs: then damping grows until they are.
    """
    unit = np.eye(gram.shape[1])
    damping = _DAMPING * mean
    for _ in range(_MOST_DAMPED):
        # inputs that are always zero have no say: nothing is spread
        damped = np.where(mean[:, None, None] > 0, gram + damping[:, None, None] * unit, unit)
        try:
            factor = np.linalg.cholesky(damped).transpose(0, 2, 1)
        except np.linalg.LinAlgError:
            damping = damping * 10
        else:
            return np.asarray(factor / np.einsum("gii->gi", factor)[:, :, None])
    return np.broadcast_to(unit, gram.shape)


def _patches(
    node: Node, kernel: tuple[int, ...], array: np.ndarray, most: int, generator: np.random.Generator
) -> np.ndarray:
    """Some of the windows of a convolution: [groups, windows, inputs]."""
    image = array if array.ndim == 4 else array[:, :, None, :]
    n, channels, height, width = image.shape
    window = window_of(node, (height, width), kernel)
    top, left, bottom, right = window.pads
    if any(window.pads):
        image = np.pad(image, ((0, 0), (0, 0), (top, bottom), (left, right)))
    (p, q), (r, s) = window.output, window.kernel
    places = generator.permutation(n * p * q)[:most]
    sample, y, x = places // (p * q), places // q % p, places % q
    ys = (y * window.stride[0])[:, None] + np.arange(r) * window.dilation[0]
    xs = (x * window.stride[1])[:, None] + np.arange(s) * window.dilation[1]
    found = image[sample[:, None, None], :, ys[:, :, None], xs[:, None, :]]  # [places, r, s, channels]
    groups = int(node.attributes.get("group", 1))
    found = found.reshape(len(places), r * s, groups, channels // groups)
    return np.ascontiguousarray(found.transpose(2, 0, 3, 1)).reshape(groups, len(places), -1)
