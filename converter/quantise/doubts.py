"""Calibration data that is not typical, as far as numbers can tell: in words, for the user to judge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from fadiff.converter.decompose.tables import alone
from fadiff.converter.ir.kinds import WEIGHTED, Kind
from fadiff.converter.ir.operators import is_a
from fadiff.converter.ir.program import Node, Program
from fadiff.converter.quantise.ranges import activations
from fadiff.converter.read.inputs import Samples, Spans

LEAST_SAMPLES = 8
_APART = 8.0
"""Times as large as what is usual, or as small: three bits of eight."""
_PIXEL = 255.0
_DIM = 16.0
"""Pixels from 0 to 1 never reach it, others hardly ever stay below."""
_SUMS = 64.0
"""Times as large as the biases beside them: sums of pixels that were to be 255 times smaller."""


def doubts(
    file: str,
    program: Program,
    samples: Samples,
    spans: Spans,
) -> Iterator[str]:
    """What speaks against the samples, sentence by sentence.

    Args:
        file: for messages.
        program: its states are not looked at, because the model itself makes them.
        samples: of calibration.
        spans: what inputs are expected to be, by the file.
    """
    states = {state.input for state in program.states}
    names = [name for name in samples[0] if name not in states]
    floats = [name for name in names if program.is_float(name)]
    stacked = {name: np.stack([sample[name] for sample in samples]) for name in names}
    count = len(samples)
    if count > 1 and all(np.all(array == array[:1]) for array in stacked.values()):
        yield f"all {count} calibration samples are equal: that is one sample"
    elif names and all(_is_flat(array) for array in stacked.values()):
        yield "every calibration sample is one number everywhere: no real input is"
    elif count < LEAST_SAMPLES:
        have = "is 1 calibration sample" if count == 1 else f"are {count} calibration samples"
        yield f"there {have}: ranges of so few are too narrow for others; give {LEAST_SAMPLES} or more"
    for name in floats:
        if _is_angle(program, name, stacked[name]):
            yield (
                f"{name} is a whole number whose sine or cosine the model takes, which no int8 angle gives: "
                f"--input-type {name}=int32 makes a table of it"
            )
            continue
        largest = np.abs(stacked[name].reshape(count, -1)).max(1, initial=0)
        others = np.sort(largest)[:-1].max(initial=0)
        if others and largest.max() > _APART * others:
            yield (
                f"calibration sample {largest.argmax()} alone sets the range of {name}: it reaches "
                f"{largest.max():.4g}, the others {others:.4g}; leave it out if it is a mistake"
            )
        elif said := [*unexpected("calibration data", {name: stacked[name]}, spans)]:
            yield from said
        elif not program.weights and _are_pixels(stacked[name]):
            yield from _of_scaled_pixels(file, program, name, samples)


def without_tables(program: Program) -> Iterator[str]:
    """Integer inputs whose sine or cosine is left to int8, because no data says how far they reach."""
    for name in program.inputs:
        if program.is_integer(name) and any(is_a(node, Kind.ANGLE) for node in alone(program, name)):
            yield (
                f"the model takes sines or cosines of {name}, which int8 angles cannot give: data "
                "for calibration that reaches its largest number makes a table of them"
            )


def _is_flat(array: np.ndarray) -> bool:
    flat = array.reshape(len(array), -1)
    return flat.shape[1] > 1 and bool(np.all(flat == flat[:, :1]))


def unexpected(what: str, arrays: Mapping[str, np.ndarray], spans: Spans) -> Iterator[str]:
    """Inputs whose numbers are of another size than the file expects; `what` they are."""
    for name, (low, high) in spans.items():
        found = float(np.abs(arrays[name]).max(initial=0)) if name in arrays else 0.0
        if found and not 1 / _APART <= found / max(abs(low), abs(high)) <= _APART:
            yield (
                f"{what} of {name} reaches {found:.4g}, where the model's first operators expect "
                f"{low:.4g} to {high:.4g}: prepare it as in training"
            )


def _is_angle(program: Program, name: str, array: np.ndarray) -> bool:
    """Whether positions or time steps go through a Sin or Cos of their own."""
    whole = array.min(initial=0) >= 0 and array.max(initial=0) > _APART and np.all(array == np.rint(array))
    return bool(whole) and any(is_a(node, Kind.ANGLE) for node in alone(program, name))


def _are_pixels(array: np.ndarray) -> bool:
    """Whether floats look like bytes."""
    return bool(array.min() >= 0 and _DIM < array.max() <= _PIXEL and np.all(array == np.rint(array)))


def _of_scaled_pixels(file: str, program: Program, name: str, samples: Samples) -> Iterator[str]:
    """Whether bytes go into a layer whose biases are those of pixels from 0 to 1.

    Training makes sums and biases of like size, as batch normalisation does before it is folded.
    """
    node = program.sole_consumer(name)
    if node is None or not is_a(node, WEIGHTED) or node.inputs[0] != name:
        return
    value, bias = _with_bias(program, node)
    if bias is None or not bias.any():
        return
    axis = 1 if node.op == "Conv" else -1
    sums = [
        np.moveaxis(array, axis, -1).reshape(-1, array.shape[axis])
        for _, array in activations(file, program, samples[:LEAST_SAMPLES], [value])
    ]
    ratio = float(
        np.median(np.concatenate(sums).std(0)) / np.sqrt(np.mean(np.square(bias, dtype=np.float64)))
    )
    if ratio > _SUMS:
        yield (
            f"calibration data of {name} are whole numbers to {_PIXEL:.0f}, and the sums of {node.name} are "
            f"{ratio:.0f} times its biases: if the model was trained on 0 to 1, divide by {_PIXEL:.0f}"
        )


def _with_bias(program: Program, node: Node) -> tuple[str, np.ndarray | None]:
    """What a product and its bias make, and the bias."""
    if node.input(2):
        return node.outputs[0], program.constant(node.inputs[2])
    behind = program.sole_consumer(node.outputs[0])
    if behind is None or behind.op != "Add":
        return node.outputs[0], None
    other = next((v for v in behind.inputs if v != node.outputs[0]), "")
    return behind.outputs[0], program.constant(other)
