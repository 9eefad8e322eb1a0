"""Symmetric int8: the largest integer, and the scale of a range."""

from __future__ import annotations

import numpy as np

INT8_MAX = 127


def symmetric_scale(low: float, high: float) -> float:
    """Scale that maps the larger bound to 127 (float32; 1 for an all-zero range)."""
    with np.errstate(over="ignore"):
        bound = np.float32(max(abs(low), abs(high)))
    scale = bound / np.float32(INT8_MAX)
    if not np.isfinite(scale) or scale < np.finfo(np.float32).tiny:
        return 1.0
    return float(scale)
