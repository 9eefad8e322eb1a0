"""Ways to find a design: descent with an exact finish, and what it has to beat."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, get_args

import numpy as np

from optimizer.codesign.designs import Sizes
from optimizer.codesign.score import Scorer

SearchName = Literal["gradient", "local", "sweep", "random", "bayesian"]
SEARCHES: tuple[SearchName, ...] = get_args(SearchName)
SCREENED, DESCENDED, FINISHED = 0.15, 0.5, 0.75
"""Shares of the time after which screening, descent and scoring of its designs end."""
RESTARTS = 12
FEWEST, MOST_SCREENED = 4, 48
GOLDEN = (math.sqrt(5) - 1) / 2


def search(scorer: Scorer, method: SearchName, seed: int = 0) -> None:
    """Score designs until the time is up; `scorer.best` and `scorer.found` have what was found.

        gradient  screen at random, layers alone; descend from the best; score what comes out; local moves
        local     the same without descent
        sweep     all designs, evenly spread
        random    designs drawn at random
        bayesian  optuna's tree-structured Parzen estimator

    Raises:
        ScheduleError: no design is within the area, or none that was tried fits the networks.
        ImportError: `bayesian` without optuna.
    """
    METHODS[method](scorer, seed)
    _ = scorer.best


def _gradient(scorer: Scorer, seed: int) -> None:
    from optimizer.codesign.descent import Codesign, descend

    screened = _screen(scorer, seed, SCREENED)
    codesign = Codesign(scorer.graphs, scorer.space, scorer.settings, scorer.solved)
    began = scorer.used
    length = max(DESCENDED * scorer.seconds - began, 1e-9)

    def share() -> float:
        return (scorer.used - began) / length

    starts = [screened[i % len(screened)] for i in range(RESTARTS)]
    proposed, steps = descend(codesign, starts, seed, share)
    scorer.say(f"descent: {steps} steps of {RESTARTS} restarts, {len(proposed)} designs")
    _finish(scorer, proposed)


def _local(scorer: Scorer, seed: int) -> None:
    _finish(scorer, _screen(scorer, seed, DESCENDED))


def _screen(scorer: Scorer, seed: int, share: float) -> list[Sizes]:
    """Some designs, those first on which unfused layers cost least."""
    values: dict[Sizes, float] = {}
    for design in _drawn(scorer, seed)[:MOST_SCREENED]:
        if len(values) >= FEWEST and scorer.is_over(share):
            break
        values[design] = scorer.alone(design)
    return sorted(values, key=values.__getitem__)


def _finish(scorer: Scorer, ranked: Sequence[Sizes]) -> None:
    """Score the first ones, then what differs from the best by one step, as long as that helps."""
    for design in ranked:
        if scorer.found and scorer.is_over(FINISHED):
            break
        scorer(design)
    alone: dict[Sizes, float] = {}
    while scorer.found and not scorer.is_over():
        best = scorer.best.sizes
        near = [d for d in scorer.space.neighbours(best) if not scorer.knows(d)]
        for design in near:
            if design not in alone and not scorer.is_over():
                alone[design] = scorer.alone(design)
        near = sorted((d for d in near if d in alone), key=alone.__getitem__)
        for design in near:
            if scorer.is_over() or scorer.best.sizes != best:
                break
            scorer(design)
        if scorer.best.sizes == best:
            return


def _sweep(scorer: Scorer, seed: int) -> None:
    feasible = scorer.space.feasible
    order = np.argsort([(i * GOLDEN + seed / 7) % 1 for i in range(len(feasible))])
    _score_all(scorer, [feasible[i] for i in order])


def _random(scorer: Scorer, seed: int) -> None:
    _score_all(scorer, _drawn(scorer, seed))


def _score_all(scorer: Scorer, designs: Sequence[Sizes]) -> None:
    for design in designs:
        if scorer.found and scorer.is_over():
            return
        scorer(design)


def _bayesian(scorer: Scorer, seed: int) -> None:
    """Designs beyond the area are told as bad at once, without a search."""
    try:
        import optuna
    except ImportError as error:
        raise ImportError("method bayesian needs optuna: pip install 'fadiff[baselines]'") from error
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


def _drawn(scorer: Scorer, seed: int) -> list[Sizes]:
    """All designs within the area in random order."""
    feasible = scorer.space.feasible
    return [feasible[i] for i in np.random.default_rng(seed).permutation(len(feasible))]


METHODS: dict[SearchName, Callable[[Scorer, int], None]] = {
    "gradient": _gradient,
    "local": _local,
    "sweep": _sweep,
    "random": _random,
    "bayesian": _bayesian,
}
