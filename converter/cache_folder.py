"""Where results that are worth keeping lie between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$FADIFF_CACHE, else `fadiff` in the user's cache folder ($XDG_CACHE_HOME, else ~/.cache)."""
    if configured := os.environ.get("FADIFF_CACHE"):
        return Path(configured)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fadiff"
