"""Which pairs of layers have their channels made alike: those that gain, one after the other.

Weights and ranges are inputs of the simulation (simulate.py), so that a trial costs one run of it.  Trials
are judged on samples that calibrate; the held-out ones judge what comes out, once (converter/draft.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fadiff.converter.quantise.choose import Calibration
from fadiff.converter.quantise.equalise import Pair, equalised

_TRIALS = 8
"""Of more pairs than so many, neighbours are tried together."""


def gaining_pairs(plain: Calibration, every: Calibration, pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """The pairs that are worth it, of those that `every` has made alike and `plain` has not.

    The better of all and none; then each is taken out or in, where that gains.
    """
    alone, alike = plain.plain_ranges(), every.plain_ranges()

    def gain(chosen: frozenset[int]) -> float:
        some = [pair for i, pair in enumerate(pairs) if i in chosen]
        changed = {value for pair in some for value in pair.values}
        ranges = {value: (alike if value in changed else alone)[value] for value in alone}
        return plain.fit(equalised(plain.program.constants, some), ranges)

    everything = frozenset(range(len(pairs)))
    scores = {chosen: gain(chosen) for chosen in (frozenset[int](), everything)}
    best = max(scores, key=lambda chosen: scores[chosen])
    for group in np.array_split(np.arange(len(pairs)), min(_TRIALS, len(pairs))):
        other = best ^ frozenset(group.tolist())
        if other not in scores:
            scores[other] = gain(other)
        best = max(best, other, key=lambda chosen: scores[chosen])
    return tuple(pair for i, pair in enumerate(pairs) if i in best)
