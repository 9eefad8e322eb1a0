"""Names as people see and type them: characters that rule a terminal become escapes; which one was meant."""

from __future__ import annotations

import unicodedata
from collections.abc import Container, Iterable
from difflib import get_close_matches
from itertools import count

_RULING = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
"""Unicode categories: control and format characters (ESC, line ends, bidirectional overrides), lone
surrogates, separators of lines and paragraphs."""


def printable(text: str, keep: str = "") -> str:
    r"""The text with such characters, but for those to `keep`, as \xNN or \uNNNN.

    >>> printable("conv\x1b[31m"), printable("two\nlines"), printable("Größe 1")
    ('conv\\x1b[31m', 'two\\nlines', 'Größe 1')
    """
    if text.isprintable():
        return text
    return "".join(
        char.encode("unicode_escape").decode("ascii")
        if unicodedata.category(char) in _RULING and char not in keep
        else char
        for char in text
    )


def free_name(wanted: str, taken: Container[str]) -> str:
    """The name, with the first number from 2 on that makes it none of those taken.

    >>> free_name("conv", {"add"}), free_name("conv", {"conv", "conv_2"})
    ('conv', 'conv_3')
    """
    names = (f"{wanted}_{number}" for number in count(2))
    return next(name for name in names if name not in taken) if wanted in taken else wanted


def did_you_mean(name: str, known: Iterable[str], most: int = 1) -> str:
    """`did you mean X?` of the known names that are most like it, at most `most`; nothing where none is.

    >>> did_you_mean("gemini-large", ["gemmini-large", "gemmini-small"])
    'did you mean gemmini-large?'
    >>> did_you_mean("conv", ["conv1", "conv2", "relu"], most=2)
    'did you mean conv2 or conv1?'
    """
    close = get_close_matches(name, sorted(known), n=most)
    return f"did you mean {' or '.join(close)}?" if close else ""
