"""Branch and bound over the mappings of one layer: from the inner levels outwards, the most promising first.

It ends with a proof that nothing is below the best mapping known, or, where it is stopped, with the least
bound of what it has not looked at.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

import numpy as np

from fadiff.costmodel.nests.count import Floats
from fadiff.costmodel.nests.mapping import Keeps, Mappings
from fadiff.optimizer.nests.bound import Bound, Children, Partial
from fadiff.optimizer.nests.layer import LayerSearch
from fadiff.optimizer.nests.space import Space, keeps_of

AT_ONCE = 20_000
"""Children that are priced together, about."""
MOST_ORDERS = 5_000
"""Of the loops of a mapping that are tried; above it its bound stays open."""
WAITING = 300_000
"""Partial mappings that wait at most; of more, the half with the higher bounds is given up."""
MOST_TREES = 512
"""Choices of what memories keep; of machines with more nothing is proven."""
SLACK = 1e-9
"""Relative rounding of a bound."""


def prove(search: LayerSearch, effort: int | None, share: float = 1.0) -> None:
    """Look for better mappings than the best so far, and lift the bound, to its value if there is none.

    Args:
        search: Of which layer.
        effort: Partial mappings to price at most; None: until all is proven, or time is over.
        share: Of the time budget, at which to end.
    """
    some = keeps_of(search.machine)
    if len(some) > MOST_TREES:
        return
    open_ = _Open(search)
    for keeps in some:
        open_.add(_Tree(search, keeps))
    while open_.is_open() and not search.is_over(share) and (effort is None or open_.priced < effort):
        open_.step()
    search.bound = open_.bound


class _Tree:
    """The partial mappings of one choice of what memories keep."""

    def __init__(self, search: LayerSearch, keeps: Keeps) -> None:
        self.space = Space(search.machine, search.workload, keeps)
        self.bound = Bound(search.machine, search.workload, keeps, search.objective)
        self.children = Children(self.bound)

    def orders(self, partial: Partial) -> Iterator[Mappings]:
        """Every order of the loops of a complete row, in blocks; nothing if there are too many."""
        machine, places = self.space.machine, self.bound.places
        choices = []
        for memory, level in enumerate(places):
            order = self.space.outermost.orders[0, memory]
            loops = [at for at in order if partial.factors[0, level, at] > 1]
            still = [at for at in order if at not in loops or not self.space.is_free(memory, int(at))]
            free = [at for at in loops if at not in still]
            kept_inside = any(self.bound.keeps[memory + 1 :])
            turned = itertools.permutations(free) if kept_inside and len(free) < 8 else iter([tuple(free)])
            stays, dims = partial.stays[0, memory], self.bound.left_in_place
            first = [at for at in still if at in loops]
            found = [
                [*still, *turn]
                for turn in turned
                if not kept_inside or not loops or dims[([*first, *turn])[0]] == stays
            ]
            choices.append(found)
        count = int(np.prod([float(len(found)) for found in choices]))
        if count > MOST_ORDERS:
            return
        for some in _blocks(itertools.product(*choices), 2000):
            orders = np.array(some, dtype=np.int64).reshape(len(some), len(machine.memories), -1)
            factors = np.repeat(partial.factors, len(some), axis=0)
            yield Mappings(factors, orders, self.bound.keeps)


class _Open:
    """Chunks of partial mappings that wait, each ascending in its bounds."""

    def __init__(self, search: LayerSearch) -> None:
        self.search = search
        self.waiting: list[tuple[float, int, _Tree, Partial, Floats]] = []
        self.held = 0
        self.unsettled = np.inf
        """Least bound of what was given up, and of complete mappings of which not all orders were tried."""
        self.priced = 0
        self.numbers = itertools.count()

    @property
    def least(self) -> float:
        """Bound of what waits."""
        return self.waiting[0][0] if self.waiting else np.inf

    @property
    def bound(self) -> float:
        """Of all mappings."""
        return float(min(min(self.least, self.unsettled) * (1 - SLACK), self.search.value))

    def is_open(self) -> bool:
        """Whether anything waits that may be better than the best, and would lift the bound."""
        return self.least < self.limit

    @property
    def limit(self) -> float:
        """Bounds from here on are of nothing better."""
        return min(self.search.value * (1 - SLACK), self.unsettled)

    def add(self, tree: _Tree) -> None:
        """All mappings of a tree."""
        root = tree.children.root()
        self._wait(tree, root, tree.bound(root))

    def _wait(self, tree: _Tree, partial: Partial, bounds: Floats) -> None:
        order = np.argsort(bounds, kind="stable")
        order = order[: np.searchsorted(bounds[order], self.limit)]
        if len(order):
            self.held += len(order)
            rows = (tree, partial[order], bounds[order])
            heapq.heappush(self.waiting, (float(bounds[order[0]]), next(self.numbers), *rows))

    def step(self) -> None:
        """Go on with the first rows of the most promising chunk."""
        if self.held > WAITING:
            self._give_up()
        _, _, tree, partial, bounds = heapq.heappop(self.waiting)
        self.held -= len(partial)
        worse = int(np.searchsorted(bounds, self.limit))
        partial, bounds = partial[:worse], bounds[:worse]
        if not len(partial):
            return
        end = 1 if partial.level == 0 else self._take(tree, partial)
        now, rest = partial[:end], partial[end:]
        if len(rest):
            self._wait(tree, rest, bounds[end:])
        if partial.level == 0:
            self._settle(tree, now, float(bounds[0]))
            return
        for grown in tree.children.of(now):
            self.priced += len(grown)
            self._wait(tree, grown, tree.bound(grown))

    def _give_up(self) -> None:
        chunks, self.waiting, self.held = self.waiting, [], 0
        self.unsettled = min(self.unsettled, float(np.median(np.concatenate([c[-1] for c in chunks]))))
        for _, _, tree, partial, bounds in chunks:
            self._wait(tree, partial, bounds)

    def _take(self, tree: _Tree, partial: Partial) -> int:
        """How many rows make AT_ONCE children."""
        left = tree.space.workload.bounds // partial.factors[:2000].prod(axis=1)
        total = 0
        for count, row in enumerate(left, 1):
            total += len(tree.bound.options(partial.level - 1, tuple(map(int, row))))
            if total > AT_ONCE:
                return count
        return len(left)

    def _settle(self, tree: _Tree, partial: Partial, bound: float) -> None:
        """Price a complete row in every order of its loops."""
        tried = False
        for mappings in tree.orders(partial):
            tried = True
            self.priced += len(mappings)
            self.search.values(mappings)
        if not tried:
            self.unsettled = min(self.unsettled, bound)


def _blocks(orders: Iterator[tuple[list[int], ...]], size: int) -> Iterator[list[tuple[list[int], ...]]]:
    while some := list(itertools.islice(orders, size)):
        yield some
