"""The greedy choice that the DRAM limit and the choice of issues share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fadiff.optimizer.finish.replacements import Costs, Replacement, choose


def replacement(energy: float, nbytes: int) -> Replacement:
    return Replacement((), {}, energy, clock=1.0, bytes=nbytes)


UNITS = [
    [replacement(1, 100), replacement(2, 60), replacement(9, 10)],
    [replacement(1, 100), replacement(4, 20)],
]


def down_to(limit: int) -> list[Replacement]:
    """Least energy per byte saved, until the bytes are within the limit."""

    def score(now: Costs, then: Costs) -> NDArray[np.float64]:
        saved = now.bytes - then.bytes
        may = (saved > 0) & (now.bytes > limit)
        return np.where(may, (then.energy - now.energy) / np.maximum(saved, 1), np.inf)

    return choose(UNITS, score)


def test_nothing_changes_where_nothing_may() -> None:
    assert down_to(200) == [UNITS[0][0], UNITS[1][0]]


def test_the_change_of_least_score_comes_first() -> None:
    assert down_to(160) == [UNITS[0][1], UNITS[1][0]]  # 1 per 40 bytes beats 3 per 80 and 8 per 90
    assert down_to(100) == [UNITS[0][1], UNITS[1][1]]


def test_a_group_may_change_again() -> None:
    assert down_to(0) == [UNITS[0][2], UNITS[1][1]]


def test_of_equal_scores_the_first() -> None:
    units = [[replacement(1, 10)] * 2, [replacement(1, 10), replacement(0, 10), replacement(0, 10)]]

    def score(now: Costs, then: Costs) -> NDArray[np.float64]:
        return np.where(then.energy < now.energy, then.energy - now.energy, np.inf)

    assert choose(units, score)[1] is units[1][1]


def test_what_rounding_saves_by_staying_is_no_change() -> None:
    energies = [80.7, 53.5, 95.4]
    units = [[replacement(energy, 10)] for energy in energies]
    total = np.array(energies).sum()
    assert (total - np.array(energies) + np.array(energies) < total).any()  # the case is what it says

    def score(now: Costs, then: Costs) -> NDArray[np.float64]:
        return np.where(then.energy < now.energy, then.energy - now.energy, np.inf)

    assert choose(units, score) == [unit[0] for unit in units]
