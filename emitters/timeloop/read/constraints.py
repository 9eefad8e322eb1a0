"""Constraints as Timeloop writes them: what a level keeps, and what its loops may be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fadiff.converter.ir.loops import DIMS, Dim
from fadiff.costmodel.nests.machine import DATA_SPACES, LoopLimits, Operand
from fadiff.emitters.timeloop.read.yaml_lines import Entry

KEYS = ("architecture_constraints", "mapspace_constraints", "constraints")
"""Under which the native dialect lists them."""
LETTERS: Mapping[str, Dim] = {**{d: d for d in DIMS}, "M": "K"}
"""Dimensions as users call them; M is an output channel in many problems."""
_SPACES: Mapping[str, Operand] = {name: operand for operand, name in DATA_SPACES.items()}

_FREE = LoopLimits()


@dataclass(frozen=True)
class Limits:
    """Constraints of one level."""

    temporal: LoopLimits = _FREE
    across: tuple[LoopLimits, LoopLimits] = (_FREE, _FREE)
    """Of its fan-out, along X and Y."""
    keep: frozenset[Operand] | None = None
    bypass: frozenset[Operand] = frozenset()


def targets(entries: Mapping[str, Entry]) -> Iterator[Entry]:
    """Constraints of levels in a file of the native dialect."""
    for key in KEYS:
        if key in entries:
            found = entries[key]
            yield from (found.required("a map", "targets")["targets"] if found.is_map else found).items()


def limits_of(constraints: Sequence[Entry]) -> Limits:
    """Of a level, by all that constrains it.

    Raises:
        TimeloopFormatError: an entry that is wrong, or an operand that is both kept and bypassed.
    """
    found = Limits()
    for constraint in constraints:
        keys = constraint.keys()
        kind = keys["type"].text() if "type" in keys else ""
        if kind:
            found = _with(found, kind, constraint)
        for name in () if kind else ("dataspace", "temporal", "spatial"):
            if name in keys:
                found = _with(found, name, keys[name])
        both = [DATA_SPACES[operand] for operand in sorted((found.keep or frozenset()) & found.bypass)]
        if both:
            constraint.fail(f"{', '.join(both)} is kept and bypassed; take it out of one of the two")
    return found


def _with(limits: Limits, kind: str, entry: Entry) -> Limits:
    keys = entry.keys()
    if kind in ("dataspace", "datatype", "bypass", "bypassing"):
        keep = _operands(keys["keep"]) if "keep" in keys else limits.keep
        bypass = _operands(keys["bypass"]) if "bypass" in keys else limits.bypass
        return replace(limits, keep=keep, bypass=bypass)
    loops = _loops(keys)
    if kind == "temporal":
        return replace(limits, temporal=loops)
    if kind == "spatial":
        return replace(limits, across=_along_axes(loops, keys))
    return limits


def _along_axes(loops: LoopLimits, keys: dict[str, Entry]) -> tuple[LoopLimits, LoopLimits]:
    """Dimensions before the split of the permutation lie along X, the others along Y."""
    if "split" not in keys or not loops.inner:
        return loops, loops
    split = int(keys["split"].number())
    first, rest = loops.inner[:split], loops.inner[split:]
    along_x, along_y = (
        LoopLimits({**dict.fromkeys(others, 1), **loops.exact}, loops.most) for others in (rest, first)
    )
    return along_x, along_y


def _loops(keys: dict[str, Entry]) -> LoopLimits:
    exact: dict[Dim, int] = {}
    most: dict[Dim, int] = {}
    for entry, text in _words(keys.get("factors")):
        found = re.fullmatch(r"([A-Za-z])\s*(<=|=)?\s*(\d+)", text)
        if found is None:
            entry.fail(f"factor {text!r}; write K=4 or K<=4")
        letter, sign, number = found.groups()
        dim = _dim(entry, letter)
        if dim is not None and int(number):  # 0: what is left
            (most if sign == "<=" else exact)[dim] = int(number)
    inner: list[Dim] = []
    for entry, text in _words(keys.get("permutation"), letters=True):
        dim = _dim(entry, text)
        if dim is not None:
            inner.append(dim)
    return LoopLimits(exact, most, tuple(dict.fromkeys(inner)))


def _dim(entry: Entry, letter: str) -> Dim | None:
    """None: a dimension that layers do not have (H, W of a problem's attributes)."""
    if letter not in LETTERS and letter not in "HW":
        entry.fail(f"no dimension {letter}; layers have {' '.join(DIMS)} (M is K)")
    return LETTERS.get(letter)


def _words(entry: Entry | None, *, letters: bool = False) -> Iterator[tuple[Entry, str]]:
    if entry is None:
        return
    texts = [(item, item.text()) for item in entry.items()] if entry.is_list else [(entry, entry.text())]
    for item, text in texts:
        parts = re.findall(r"[A-Za-z]", text) if letters else re.split(r"[,\s]+", text.strip())
        yield from ((item, part) for part in parts if part)


def _operands(entry: Entry) -> frozenset[Operand]:
    found = set()
    for text in entry.texts():
        if text not in _SPACES:
            entry.fail(f"no operand {text}; there are {', '.join(_SPACES)}")
        found.add(_SPACES[text])
    return frozenset(found)
