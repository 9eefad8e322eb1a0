"""seen: everything that calibration asks of the float model, from one run over the samples.

A fold sees what the run showed of the other folds' samples: nothing runs again for it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress

import numpy as np

from fadiff.converter.ir.program import Program
from fadiff.converter.quantise.bias_correction import Product
from fadiff.converter.quantise.ranges import MOST_ELEMENTS, Observed, activations
from fadiff.converter.read.inputs import Samples

NO_FOLD = -1
"""The fold of samples that nothing is tried on."""


@dataclass(frozen=True)
class Wanted:
    """The values to look at, each for what is asked of it."""

    ranges: Sequence[str]
    products: Sequence[Product] = ()
    """Whose means are wanted."""
    exact: Sequence[str] = ()
    """All their elements."""
    vectors: Collection[str] = ()
    """How large the vectors are that products multiply."""


@dataclass(frozen=True)
class Vectors:
    """What a product multiplies, sample by sample."""

    largest: np.ndarray
    """[samples]: the largest magnitude."""
    energy: np.ndarray
    """[samples]: the mean square of a vector's length."""
    used: np.ndarray
    """[samples, channels]: the share of elements that are not zero."""


@dataclass(frozen=True)
class Seen:
    """What a run showed; `folds` are those of the samples that `means`, `exact` and `vectors` are of."""

    folds: np.ndarray
    by_fold: Mapping[int, Mapping[str, Observed]] = field(repr=False)
    """By fold and role (`Program.roles`)."""
    roles: Mapping[str, str] = field(repr=False)
    """Of each value that was seen."""
    means: Mapping[str, np.ndarray] = field(repr=False)
    """[samples, channels] of what products hand on, by the value of their sums."""
    exact: Mapping[str, Sequence[np.ndarray]] = field(repr=False)
    vectors: Mapping[str, Vectors] = field(repr=False)

    @cached_property
    def observed(self) -> dict[str, Observed]:
        """The magnitudes that values took; a value that nothing computes is left out."""
        joined: dict[str, Observed] = defaultdict(Observed)
        for observed in self.by_fold.values():
            for role, seen in observed.items():
                joined[role].join(seen)
        return {value: joined[role] for value, role in self.roles.items()}

    def without(self, fold: int) -> Seen:
        """What the samples of the other folds show."""
        return self._of(self.folds != fold, {k for k in self.by_fold if k not in (fold, NO_FOLD)})

    def of(self, fold: int) -> Seen:
        """What those of one fold show."""
        return self._of(self.folds == fold, {fold})

    def _of(self, rows: np.ndarray, folds: Collection[int]) -> Seen:
        return replace(
            self,
            folds=self.folds[rows],
            by_fold={k: observed for k, observed in self.by_fold.items() if k in folds},
            means={name: means[rows] for name, means in self.means.items()},
            exact={name: list(compress(arrays, rows)) for name, arrays in self.exact.items()},
            vectors={
                name: Vectors(v.largest[rows], v.energy[rows], v.used[rows])
                for name, v in self.vectors.items()
            },
        )


def look(
    file: str,
    program: Program,
    samples: Samples,
    wanted: Wanted,
    folds: Sequence[int] = (),
) -> Seen:
    """Run the float model once; `folds` says of each sample which fold keeps it out (by default none).

    Raises:
        ModelError: the samples do not fit the model.
    """
    folds = folds or [NO_FOLD] * len(samples)
    tried = np.array([fold for fold in folds if fold != NO_FOLD], np.int64)
    most = max(1, MOST_ELEMENTS // max(len(samples), 1))
    ranged, products = set(wanted.ranges), {product.sums: product for product in wanted.products}
    by_fold: dict[int, dict[str, Observed]] = {fold: defaultdict(Observed) for fold in folds}
    roles, done = dict[str, str](), Counter[str]()
    means, vectors = defaultdict[str, list[np.ndarray]](list), defaultdict[str, list[_Sample]](list)
    exact: dict[str, list[np.ndarray]] = {value: [] for value in wanted.exact}
    values = list(dict.fromkeys([*wanted.ranges, *products, *wanted.exact, *wanted.vectors]))
    for name, array in activations(file, program, samples, values):
        fold = folds[done[name]]
        done[name] += 1
        if name in ranged:
            roles[name] = program.roles.get(name, name)
            by_fold[fold][roles[name]].add(array, most)
        if fold == NO_FOLD:
            continue
        if name in products:
            means[name].append(products[name].means(array))
        if name in exact:
            exact[name].append(array)
        if name in wanted.vectors:
            vectors[name].append(_vectors(array))
    return Seen(
        tried,
        by_fold,
        roles,
        {name: np.stack(found) for name, found in means.items()},
        exact,
        {name: Vectors(*map(np.array, zip(*found, strict=True))) for name, found in vectors.items()},
    )


_Sample = tuple[float, float, np.ndarray]


def _vectors(array: np.ndarray) -> _Sample:
    """Of one sample what `Vectors` has of all."""
    rows = array.reshape(-1, array.shape[-1]).astype(np.float64)
    return float(np.abs(rows).max(initial=0.0)), float((rows**2).sum(1).mean()), np.mean(rows != 0, 0)
