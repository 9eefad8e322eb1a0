"""How well outputs answer labelled data: a number for a whole data set."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from fadiff.errors import InputError

Outputs = Mapping[str, np.ndarray]
Metric = Callable[[Outputs, np.ndarray], float]
"""Outputs [samples, ...] by name, and labels [samples, ...]; the number."""

_THRESHOLD = 0.5


def _first(outputs: Outputs) -> np.ndarray:
    return next(iter(outputs.values()))


def _top(count: int, outputs: Outputs, labels: np.ndarray) -> float:
    """Share of labels among the `count` largest scores along the last axis."""
    scores = _first(outputs)
    rows = scores.reshape(-1, scores.shape[-1])
    if rows.shape[0] != labels.size:
        raise InputError(f"{labels.size} labels for {rows.shape[0]} rows of scores: give one for each")
    best = np.argsort(-rows, axis=1, kind="stable")[:, :count]
    return float(np.mean(np.any(best == labels.reshape(-1, 1), axis=1)))


def top1(outputs: Outputs, labels: np.ndarray) -> float:
    """Share of rows whose largest score is at the label."""
    return _top(1, outputs, labels)


def top5(outputs: Outputs, labels: np.ndarray) -> float:
    """Share of rows whose five largest scores include the label."""
    return _top(5, outputs, labels)


def mse(outputs: Outputs, labels: np.ndarray) -> float:
    """Mean squared difference to the labels."""
    found = _first(outputs)
    return float(np.mean((found.astype(np.float64) - _like(found, labels)) ** 2))


def iou(outputs: Outputs, labels: np.ndarray) -> float:
    """Intersection over union of what is over 0.5."""
    found = _first(outputs)
    a, b = found > _THRESHOLD, _like(found, labels) > _THRESHOLD
    return float((a & b).sum() / max(1, (a | b).sum()))


def _like(found: np.ndarray, labels: np.ndarray) -> np.ndarray:
    if labels.size != found.size:
        raise InputError(f"labels of shape {labels.shape} for an output of shape {found.shape}")
    return labels.reshape(found.shape)


METRICS: Mapping[str, Metric] = {"top1": top1, "top5": top5, "mse": mse, "iou": iou}


def metric_of(name: str) -> Metric:
    """A metric by its name, or FILE.py:FUNCTION.

    Raises:
        InputError: there is none of that name.
    """
    if name in METRICS:
        return METRICS[name]
    file, _, function = name.rpartition(":")
    if not file.endswith(".py"):
        raise InputError(f"--metric {name}: give {', '.join(METRICS)} or FILE.py:FUNCTION")
    if not Path(file).is_file():
        raise InputError(f"--metric {name}: no file {file}")
    found = runpy.run_path(file).get(function)
    if not callable(found):
        raise InputError(f"--metric {name}: {file} has no function {function}")
    return lambda outputs, labels: float(found(outputs, labels))
