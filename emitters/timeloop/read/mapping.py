"""A Timeloop mapping file as a `Mapping`: from timeloop-mapper, CoSA or somebody's own head.

The levels are found by name (Registers, Accumulator, Scratchpad, DRAM, in any case).  Directives
follow Timeloop's rules: a later one for the same level and type replaces an earlier one, missing
levels, dimensions and permutation letters mean factor 1 and no particular order, `permutation` is
inner to outer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fadiff.converter.ir.loops import DIMS, Dim, Dims
from fadiff.costmodel.count.capacity import occupancy
from fadiff.costmodel.mapping.mapping import Mapping, MappingError, Order
from fadiff.costmodel.mapping.shape import shape_of
from fadiff.costmodel.target.target import Target
from fadiff.emitters.timeloop.nest import (
    KEPT,
    LOOPS,
    OPERANDS,
    STORAGE,
    Factor,
    Loops,
    StorageLevel,
    TimeloopNest,
    mapping_of,
)
from fadiff.emitters.timeloop.read.problem import TimeloopProblem
from fadiff.emitters.timeloop.read.yaml_lines import Entry, read_root

_FACTOR = re.compile(r"([A-Za-z]+)\s*=?\s*(\d+)(?:,(\d+))?")
_SEPARATORS = re.compile(r"[\s,]*")
_LEVELS: dict[str, StorageLevel] = {level.lower(): level for level in STORAGE.values()}
_FAN_OUTS: dict[str, StorageLevel] = {
    "pecols": "Scratchpad",
    "inter_pecols_spatial": "Scratchpad",
    "perows": "Accumulator",
    "inter_perows_spatial": "Accumulator",
}
"""Where the front-end dialect writes the fan-outs: the container below the level, or its stand-in."""
_UNROLLED: dict[StorageLevel, str] = {"Scratchpad": "KG", "Accumulator": "CSKG"}
"""What may be unrolled below a level; a flat architecture has both fan-outs below the accumulator."""
_ARRAY = "Gemmini takes K (depthwise: G) on columns, C and S on rows"


@dataclass(frozen=True)
class _Directive:
    """Factors and order of one group of loops, and where they stand in the file."""

    entry: Entry
    factors: dict[Dim, Factor]
    order: Order


def read_mapping(path: Path, problem: TimeloopProblem) -> Mapping:
    """Read `mapping:` of a YAML file, native or front-end dialect.

    Raises:
        TimeloopFormatError: malformed file, unknown level, letter or directive, or operands kept
            where Gemmini cannot keep them (`file:line: field: what is wrong`).
        MappingError: factors that do not multiply to the bounds; the message names file and line.
    """
    root = read_root(path, "mapping")
    directives: dict[Loops, _Directive] = {}
    kept: dict[StorageLevel, tuple[Entry, frozenset[str]]] = {}
    for entry in _directives(root):
        keys = entry.required("a directive", "target", "type")
        kind = keys["type"].text()
        if kind in ("bypass", "datatype", "dataspace"):
            level = _level(keys["target"], _LEVELS)
            kept[level] = (entry, _kept(keys, level))
        elif kind == "temporal":
            level = _level(keys["target"], _LEVELS)
            directives[Loops(level, "temporal")] = _directive(entry, keys, problem)
        elif kind == "spatial":
            level = _level(keys["target"], {**_LEVELS, **_FAN_OUTS})
            if level not in ("Accumulator", "Scratchpad"):
                keys["target"].fail(
                    f"{level} has no fan-out below it; the array rows are below Accumulator, "
                    "the columns below Scratchpad"
                )
            directives[Loops(level, "spatial")] = _directive(entry, keys, problem)
            if level == "Accumulator":
                _check_rows(keys, directives[Loops(level, "spatial")], problem)
        else:
            keys["type"].fail(f"unknown directive type {kind!r}; use temporal, spatial or bypass")
    _check_kept(root, kept)
    return _mapping(root, directives, problem.layer.dims)


def check_tiles(path: Path, problem: TimeloopProblem, mapping: Mapping, target: Target) -> None:
    """Whether the tiles fit the target by Timeloop's rule (kept words at a level <= its entries).

    Raises:
        MappingError: the first level that overflows; the message names the directive to shrink.
    """
    used = occupancy(shape_of(problem.layer), mapping, target, "dosa")
    block = mapping.trips("L0", problem.layer.dims)
    held, slice_words = used.weights + used.inputs, target.accumulator_rows
    limits: tuple[tuple[Loops, str, int, int], ...] = (
        (LOOPS[0], "weights per processing element", block.G * block.K * block.C * block.R * block.S, 1),
        (LOOPS[1], "rows unrolled", mapping.rows.product, target.side),
        (LOOPS[3], "columns unrolled", mapping.cols.product, target.side),
        (LOOPS[2], "words of Outputs per column", used.outputs, slice_words),
        (LOOPS[4], "bytes of Weights and Inputs", held, target.scratchpad_bytes),
    )
    for loops, what, size, limit in limits:
        if size > limit:
            where = _find(_directives(read_root(path, "mapping")), loops)
            raise MappingError(
                f"{path}:{where.line}: {where.field}: {loops}: {size} {what}, "
                f"target {target.name} has {limit}"
            )


def _level(target: Entry, names: dict[str, StorageLevel]) -> StorageLevel:
    name = target.text()
    if name.lower() == "tilebuffer":
        target.fail(
            "TileBuffer: tensors of this layer stay on chip; files that stand alone come from "
            "fadiff compile --no-fusion"
        )
    if name.lower() not in names:
        target.fail(f"unknown level {name!r}; Gemmini has {', '.join(STORAGE.values())}")
    return names[name.lower()]


def _directive(entry: Entry, keys: dict[str, Entry], problem: TimeloopProblem) -> _Directive:
    factors = _factors(keys["factors"], problem) if "factors" in keys else {}
    letters = _letters(keys["permutation"], problem) if "permutation" in keys else []
    missing = [d for d in reversed(DIMS) if d not in letters]
    return _Directive(keys.get("factors", entry), factors, (*letters, *missing))


def _check_rows(keys: dict[str, Entry], directive: _Directive, problem: TimeloopProblem) -> None:
    """Whether K and G stay off the array rows: the first `split` letters of a permutation lie along X."""
    if "split" not in keys:
        return
    if not keys["split"].text().isdecimal():
        keys["split"].fail(f"{keys['split'].text()!r} is no number of letters")
    permutation = _text(keys["permutation"]) if "permutation" in keys else ""
    along_x = permutation[: int(keys["split"].text())]
    for letter, d in problem.letters.items():
        if d in "KG" and letter not in along_x and directive.factors.get(d, Factor(1, 1)).full > 1:
            directive.entry.fail(
                f"{letter} is unrolled along the array rows (`split` puts it on Y); {_ARRAY}"
            )


def _factors(entry: Entry, problem: TimeloopProblem) -> dict[Dim, Factor]:
    """`N=1 K=4 P=13,4` as one string, or a list of such."""
    text = " ".join(entry.texts()) if entry.is_list else entry.text().split("#")[0]
    factors: dict[Dim, Factor] = {}
    position = 0
    while position < len(text):
        match = _FACTOR.match(text, position)
        if match is None:
            entry.fail(f"cannot read {text[position:]!r}; factors are written N=1 K=4 P=13,4")
        letter, full, last = match[1], int(match[2]), int(match[3] or match[2])
        _known(entry, letter, problem)
        if full == 0:
            entry.fail(f"{letter}=0: write the factor out")
        if not 1 <= last <= full:
            entry.fail(f"{letter}={full},{last}: the remainder must be in 1..{full}")
        if letter in problem.letters:
            factors[problem.letters[letter]] = Factor(full, last)
        elif full > 1:
            entry.fail(f"{letter}={full}: the problem's bound is 1")
        separator = _SEPARATORS.match(text, match.end())
        position = separator.end() if separator else match.end()
    return factors


def _letters(entry: Entry, problem: TimeloopProblem) -> list[Dim]:
    """Dimensions inner to outer: one string of letters, or a list."""
    order: list[Dim] = []
    for letter in _text(entry):
        _known(entry, letter, problem)
        if letter in problem.letters:
            d = problem.letters[letter]
            if d in order:
                entry.fail(f"{letter} is given twice")
            order.append(d)
    return order


def _text(entry: Entry) -> str:
    """The letters of a permutation, one string or a list."""
    return ("".join(entry.texts()) if entry.is_list else entry.text()).replace(" ", "")


def _known(entry: Entry, letter: str, problem: TimeloopProblem) -> None:
    if letter not in problem.letters and letter not in problem.unused:
        known = " ".join(sorted({*problem.letters, *problem.unused}))
        entry.fail(f"unknown dimension {letter!r}; the problem has {known}")


def _kept(keys: dict[str, Entry], level: StorageLevel) -> frozenset[str]:
    """Operands kept at a level: those under `keep`, and those not listed at all (Timeloop's default)."""
    kept = set(OPERANDS.values())
    for key in ("bypass", "keep"):
        for item in keys[key].items() if key in keys else ():
            name = item.text()
            if name not in OPERANDS:
                item.fail(f"unknown data space {name!r}; there are {', '.join(OPERANDS)}")
            (kept.add if key == "keep" else kept.discard)(OPERANDS[name])
    return frozenset(kept)


def _check_kept(root: Entry, kept: dict[StorageLevel, tuple[Entry, frozenset[str]]]) -> None:
    """Whether every level keeps what Gemmini's does."""
    names = {operand: name for name, operand in OPERANDS.items()}
    for level, wanted in KEPT.items():
        entry, found = kept.get(level, (root, frozenset(OPERANDS.values())))
        if found != frozenset(wanted):
            right = ", ".join(names[o] for o in wanted)
            have = ", ".join(names[o] for o in sorted(found)) or "nothing"
            entry.fail(f"{level} keeps {have}; Gemmini's keeps {right} only (bypass the others)")


def _directives(root: Entry) -> Iterator[Entry]:
    """The directives; some front-end files have them under `nodes`."""
    nodes = root.keys().get("nodes") if root.is_map else root
    return (nodes or root).items()


def _find(directives: Iterator[Entry], loops: Loops) -> Entry:
    """Factors of the directive that set these loops: the last one wins, as in Timeloop."""
    names = {**_LEVELS, **_FAN_OUTS} if loops.kind == "spatial" else _LEVELS
    found = None
    for entry in directives:
        keys = entry.keys()
        found = found or entry
        if keys["type"].text() == loops.kind and names.get(keys["target"].text().lower()) == loops.level:
            found = keys.get("factors", entry)
    assert found is not None, "a mapping that exceeds a limit has directives"
    return found


def _mapping(root: Entry, directives: dict[Loops, _Directive], bounds: Dims) -> Mapping:
    one = Factor(1, 1)
    inner_to_outer: Order = tuple(reversed(DIMS))
    # A shared accumulator below which both K and C fan out (the flat Gemmini): K is on columns.
    factors = {loops: dict.fromkeys(DIMS, one) for loops in LOOPS}
    orders = dict.fromkeys(LOOPS, inner_to_outer)
    for loops, directive in directives.items():
        for d, factor in directive.factors.items():
            place = Loops("Scratchpad", "spatial") if loops.kind == "spatial" and d in ("K", "G") else loops
            if factors[place][d] != one and factor != one:
                directive.entry.fail(
                    f"{d} is unrolled at two levels; Gemmini unrolls it along the columns only"
                )
            if factor != one:
                if loops.kind == "spatial" and d not in _UNROLLED[loops.level]:
                    directive.entry.fail(f"{d} is unrolled below {loops.level}; {_ARRAY}")
                factors[place][d] = factor
        orders[loops] = directive.order
    nest = TimeloopNest(
        factors, {**orders, **{loops: inner_to_outer for loops in LOOPS if loops.kind == "spatial"}}
    )
    try:
        return mapping_of(nest, bounds)
    except MappingError as error:
        dimension = str(error)[0]  # its messages begin with it
        last = [x for x in directives.values() if dimension in x.factors]
        where = last[-1].entry if last else root
        raise MappingError(f"{where.file}:{where.line}: {where.field}: {error}") from None
