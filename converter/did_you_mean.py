"""Typing errors: which of the known names was meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str], most: int = 1) -> str:
    """`did you mean X?` of the known names that are most like it, at most `most`; nothing where none is.

    >>> did_you_mean("gemini-large", ["gemmini-large", "gemmini-small"])
    'did you mean gemmini-large?'
    >>> did_you_mean("conv", ["conv1", "conv2", "relu"], most=2)
    'did you mean conv2 or conv1?'
    """
    close = get_close_matches(name, sorted(known), n=most)
    return f"did you mean {' or '.join(close)}?" if close else ""
