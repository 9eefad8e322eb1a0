"""C identifiers from ONNX names: keywords, collisions and odd characters taken care of."""

from __future__ import annotations

import re

from fadiff.converter.names import free_name


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_RESERVED = _words(
    """alignas alignof asm auto bool break case char class const constexpr continue default delete do
    double else enum extern false float for friend goto if inline int long main mutable namespace new
    nullptr operator private protected public register restrict return short signed sizeof static
    static_assert struct switch template this thread_local throw true try typedef typename typeof
    union unsigned using virtual void volatile while"""
)

# Headers <NAME.h> of C, POSIX and the C libraries: with -I firmware, a model's own header would hide them.
_HEADERS = _words(
    """aio alloca assert complex cpio ctype dirent dlfcn elf endian envlock err errno error fcntl features
    fenv float fmtmsg fnmatch ftw getopt glob grp iconv inttypes iso646 langinfo libgen limits link locale
    malloc math memory monetary mqueue ndbm netdb newlib nl_types obstack paths picolibc poll printf
    process pthread pwd reent regex resolv sched search semaphore setjmp signal spawn stdalign stdarg
    stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string strings syscall syslog tar termios
    tgmath threads time trace uchar ulimit unistd utime utmpx values wait wchar wctype wordexp"""
)
# What a C file calls functions, variables and files of its own: load_weights, first_run, test_vectors.h.
_OWN = _words("column first group layer load move next read report row test_vectors")


def c_identifier(name: str) -> str:
    """A lower-case C and C++ identifier that resembles `name`.

    >>> c_identifier("/layer1.0/Conv"), c_identifier("3x3"), c_identifier("while"), c_identifier("")
    ('layer1_0_conv', 'n3x3', 'while_', 'unnamed')
    """
    text = re.sub(r"[^0-9a-z]+", "_", name.lower()).strip("_") or "unnamed"
    if text[0].isdigit():
        text = f"n{text}"
    return f"{text}_" if text in _RESERVED else text


def model_identifier(name: str) -> str:
    """`c_identifier(name)` for a model's files and symbols: `<name>.h`, `<name>_run`, `<name>_weights`...

    >>> model_identifier("resnet-18"), model_identifier("Features"), model_identifier("load")
    ('resnet_18', 'features_model', 'load_model')
    """
    text = c_identifier(name)
    return f"{text}_model" if text in _HEADERS | _OWN else text


class Names:
    """Hands out unique identifiers of at most 40 characters."""

    def __init__(self) -> None:
        self._taken = {"norm"}  # layer_norm is a function of the runtime

    def unique(self, name: str) -> str:
        """`c_identifier(name)`, with a number when another name came out the same."""
        base = c_identifier(name)
        # The end of a long ONNX path tells layers apart better than its beginning.
        base = c_identifier(base[-40:]) if len(base) > 40 else base
        identifier = free_name(base, self._taken)
        self._taken.add(identifier)
        return identifier
