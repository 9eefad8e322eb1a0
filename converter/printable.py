"""Names as people may see them: characters that rule a terminal or turn text around become escapes."""

from __future__ import annotations

import unicodedata
from collections.abc import Container
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
