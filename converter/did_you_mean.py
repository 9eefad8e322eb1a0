"""Typing errors: which of the known names was meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean X?` of the known name that is most like it; nothing where none is.

    >>> did_you_mean("gemini-large", ["gemmini-large", "gemmini-small"])
    'did you mean gemmini-large?'
    """
    close = get_close_matches(name, sorted(known), n=1)
    return f"did you mean {close[0]}?" if close else ""
