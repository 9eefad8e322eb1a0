"""Global rewrites: each has a legality condition, says what it did, and can be left out by its name.

Those of the plan and of the lowering decide what becomes one layer, and what needs no work at all; they
live where these are made (converter/plan/plan.py, converter/lower).  Those of the lowered Graph are here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from fadiff.converter.ir.graph import Graph
from fadiff.converter.rewrites.lowered import drop_padding_taps, write_in_place

REWRITES: Mapping[str, Callable[[Graph], tuple[Graph, tuple[str, ...]]]] = {
    "write-in-place": write_in_place,
    "drop-padding-taps": drop_padding_taps,
}
"""Each returns the new graph and one line per change."""


FOLD_EPILOGUES = "fold-epilogues"
FOLD_CHAINS = "fold-chains"
FOLD_NORMS = "fold-norms"
FOLD_INPUTS = "fold-inputs"
ABSORB_MOVEMENT = "absorb-movement"
EQUALISE_CHANNELS = "equalise-channels"
CHOOSE_RANGES = "choose-ranges"
CORRECT_BIASES = "correct-biases"
ROUND_WEIGHTS = "round-weights"
SHIFT_ZEROS = "shift-zeros"
BORDER_ZEROS = "border-zeros"
CHANNEL_SCALES = "channel-scales"
JUDGED = (CHOOSE_RANGES, CORRECT_BIASES, ROUND_WEIGHTS, SHIFT_ZEROS)
"""Rewrites that samples kept out of calibration decide on."""
NAMES: Mapping[str, str] = {
    EQUALISE_CHANNELS: "channels of unlike weights, and parts of one product, are scaled alike",
    CHOOSE_RANGES: "ranges of activations are those that do best on held-out calibration samples",
    CORRECT_BIASES: "biases take back what int8 adds to the mean of a channel, where held-out samples gain",
    ROUND_WEIGHTS: "weights are rounded so that errors of one sum cancel, where held-out samples gain",
    SHIFT_ZEROS: "values that only products without padding and tables touch get zero points",
    BORDER_ZEROS: "zero points of a file stay where values are read with padding, stored amid a border",
    CHANNEL_SCALES: "weights of a file keep a scale for each channel, dense ones get one for each 16",
    FOLD_EPILOGUES: "bias, ReLU, Clip and requantisation join the product before them",
    FOLD_CHAINS: "element-wise nodes of one value become one table, products with a constant a scale",
    FOLD_NORMS: "a normalisation spelled out in primitive operators becomes one layer",
    FOLD_INPUTS: "(x - mean) / std of an input becomes what its integers mean; unlike columns get scales",
    ABSORB_MOVEMENT: "Reshape, Transpose, Split, Slice... become strides of the access",
    "write-in-place": "a layer writes where Concat or a copy would have moved its output",
    "drop-padding-taps": "rows and columns of a kernel that only meet padding are cut off",
}
"""Every rewrite that `without` may name, and what it does."""


def check_names(without: Collection[str]) -> None:
    """Raises ValueError for an unknown rewrite in `without`."""
    unknown = sorted(set(without) - set(NAMES))
    if unknown:
        raise ValueError(f"no rewrite called {unknown[0]!r}: choose from {', '.join(NAMES)}")


def rewrite(graph: Graph, without: Collection[str] = ()) -> tuple[Graph, tuple[str, ...]]:
    """Apply all rewrites of the Graph but those named; returns it and what was done, line by line.

    Raises:
        ValueError: an unknown name in `without`.
    """
    check_names(without)
    notes: list[str] = []
    for name, apply in REWRITES.items():
        if name not in without:
            graph, done = apply(graph)
            notes.extend(f"{name}: {line}" for line in done)
    return graph, tuple(notes)
