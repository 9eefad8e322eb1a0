"""Names as people may see them: characters that rule a terminal or turn text around become escapes."""

from __future__ import annotations

import unicodedata
from collections.abc import Container, Iterable
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


class FreshNames:
    """Names for what is made beside a model: none is that of something else in it.

    Nodes and values do not see each other's names.
    """

    def __init__(self, taken: Iterable[str]) -> None:
        self._values = set(taken)
        self._nodes = set(self._values)

    def new(self, wanted: str) -> str:
        """For a value: the name, or with a number.

        >>> fresh = FreshNames(["a"])
        >>> fresh.new("a"), fresh.new("b"), fresh.new("b"), fresh.node("b")
        ('a_2', 'b', 'b_2', 'b')
        """
        return _taken(wanted, self._values)

    def node(self, wanted: str) -> str:
        """For a node."""
        return _taken(wanted, self._nodes)


def _taken(wanted: str, names: set[str]) -> str:
    name = free_name(wanted, names)
    names.add(name)
    return name
