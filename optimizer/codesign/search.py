"""Ways to find a design: descent with an exact finish, and what it has to beat."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np

from fadiff.optimizer.codesign.designs import Designs, Machines, Sizes
from fadiff.optimizer.codesign.score import MachineScorer, Scorer

SearchName = Literal["gradient", "local", "sweep", "random", "bayesian"]
SEARCHES: tuple[SearchName, ...] = get_args(SearchName)
SCREENED, DESCENDED, REFINED = 0.15, 0.4, 0.6
"""Shares of the time after which screening, descent and moves of unfused layers end."""
RESTARTS = 12
FEWEST, MOST_SCREENED, STARTS = 4, 48, 4
GOLDEN = (math.sqrt(5) - 1) / 2


def obstacle_to_method(space: Designs[Any], method: SearchName) -> str:
    """Why a method finds no such hardware; empty if it does."""
    if method == "gradient" and not isinstance(space, Machines):
        return "method gradient chooses machines of fadiff map; of Gemminis local finds the same"
    return ""


def search(scorer: Scorer[Any], method: SearchName, seed: int = 0) -> None:
    """Score designs until the time is up; `scorer.best` and `scorer.found` have what was found.

        local     screen at random, layers alone; local moves from the best, first with layers alone, then
                  scored
        gradient  the same from where descent ends (machines of `fadiff map`)
        sweep     all designs, evenly spread
        random    designs drawn at random
        bayesian  optuna's tree-structured Parzen estimator

    Raises:
        ScheduleError: no design is within the area, or none that was tried fits the networks.
        ImportError: `bayesian` without optuna.
        ValueError: `gradient` of Gemminis.
    """
    if reason := obstacle_to_method(scorer.space, method):
        raise ValueError(reason)
    METHODS[method](scorer, seed)
    _ = scorer.best


def _gradient(scorer: Scorer[Any], seed: int) -> None:
    from fadiff.optimizer.codesign.descent import descend

    assert isinstance(scorer, MachineScorer)  # (as `search` has seen)
    screened = _screen(scorer, seed, SCREENED)
    began = scorer.used
    length = max(DESCENDED * scorer.seconds - began, 1e-9)

    def share() -> float:
        return (scorer.used - began) / length

    starts = [screened[i % len(screened)] for i in range(RESTARTS)]
    proposed, steps = descend(scorer.relaxed(), starts, seed, share)
    scorer.say(f"descent: {steps} steps of {RESTARTS} restarts, {len(proposed)} designs")
    _finish(scorer, proposed)


def _local(scorer: Scorer[Any], seed: int) -> None:
    _finish(scorer, _screen(scorer, seed, DESCENDED))


def _screen(scorer: Scorer[Any], seed: int, share: float) -> list[Sizes]:
    """Some designs, those first on which unfused layers cost least."""
    drawn = _drawn(scorer, seed)[:MOST_SCREENED]
    for i, design in enumerate(drawn):
        if i >= FEWEST and scorer.is_over(share):
            drawn = drawn[:i]
            break
        scorer.alone(design)
    return sorted(drawn, key=scorer.alone)


def _finish(scorer: Scorer[Any], ranked: Sequence[Sizes]) -> None:
    """Local moves from several starts while layers alone are cheap to judge by, then from the best scored."""
    for design in ranked[:STARTS]:
        _climb(scorer, design, scorer.alone, REFINED, but=("tile_buffer_bytes",))
    for design in sorted(scorer.judged, key=scorer.alone)[:STARTS]:
        if scorer.found and scorer.is_over((1 + REFINED) / 2):
            break
        scorer(design)
    _climb(scorer, scorer.best.sizes, scorer, 1.0)


def _climb(
    scorer: Scorer[Any],
    at: Sizes,
    value: Callable[[Sizes], float],
    share: float,
    but: Sequence[str] = (),
) -> None:
    """Steps to better neighbours, those first that look best, until there are none; `but` are sizes that
    stay: those that fusion alone has a use for."""
    moves = True
    while moves:
        moves = False
        near = []
        for design in scorer.space.neighbours(at, but):
            if scorer.is_over(share):
                return
            near.append((scorer.looks(design), design))
        for _, design in sorted(near):
            if scorer.is_over(share):
                return
            if value(design) < value(at):
                at, moves = design, True
                break


def _sweep(scorer: Scorer[Any], seed: int) -> None:
    feasible = scorer.space.feasible
    order = np.argsort([(i * GOLDEN + seed / 7) % 1 for i in range(len(feasible))])
    _score_all(scorer, [feasible[i] for i in order])


def _random(scorer: Scorer[Any], seed: int) -> None:
    _score_all(scorer, _drawn(scorer, seed))


def _score_all(scorer: Scorer[Any], designs: Sequence[Sizes]) -> None:
    for design in designs:
        if scorer.found and scorer.is_over():
            return
        scorer(design)


def _bayesian(scorer: Scorer[Any], seed: int) -> None:
    """Designs beyond the area are told as bad at once, without a search."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, multivariate=True))
    counts = {name: len(values) for name, values in scorer.space.values.items()}
    bad = 1e3
    while not (scorer.found and scorer.is_over()):
        trial = study.ask()
        design = tuple(trial.suggest_int(name, 0, count - 1) for name, count in counts.items())
        value = scorer(design) if scorer.space.is_feasible(design) else math.inf
        study.tell(trial, math.log(value) if math.isfinite(value) else bad)
        if len(study.trials) > 50 * len(scorer.space.feasible):
            return


def _drawn(scorer: Scorer[Any], seed: int) -> list[Sizes]:
    """All designs within the area in random order."""
    feasible = scorer.space.feasible
    return [feasible[i] for i in np.random.default_rng(seed).permutation(len(feasible))]


METHODS: dict[SearchName, Callable[[Scorer[Any], int], None]] = {
    "gradient": _gradient,
    "local": _local,
    "sweep": _sweep,
    "random": _random,
    "bayesian": _bayesian,
}
