"""The methods of `fadiff map` by name."""

from __future__ import annotations

from typing import Literal

from fadiff.optimizer.nests.auto import auto, exact
from fadiff.optimizer.nests.genome import searched_by
from fadiff.optimizer.nests.layer import Method
from fadiff.optimizer.nests.local import local_search

MethodName = Literal["auto", "exact", "local", "gradient", "genetic", "bayesian", "random"]


def method_of(name: MethodName) -> Method:
    """A method's search of one layer.

    Raises:
        ImportError: it needs an extra that is not installed.
    """
    if name == "gradient":
        from fadiff.optimizer.gradient.nests import gradient

        return gradient
    if name == "genetic":
        import pymoo  # noqa: F401

        from fadiff.optimizer.baselines.genetic import evolve

        return searched_by(evolve)
    if name == "bayesian":
        import optuna  # noqa: F401

        from fadiff.optimizer.baselines.bayesian import study

        return searched_by(study)
    if name == "random":
        from fadiff.optimizer.baselines.random_search import draw_rows

        return searched_by(draw_rows)
    return {"auto": auto, "exact": exact, "local": local_search}[name]
