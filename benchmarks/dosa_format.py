"""The CSV files published with DOSA: one mapping of one layer on one Gemmini per row.

A mapping is written outermost level and outermost loop first, `X` marks a spatial factor:

    L3[WIO] C8 Q7 K16 - L2[WI] N1 K4X - L1[O] K2 C4 P7 C16X - L0[W] P8

Letters are Timeloop's, where P and R run along the *width* of the image; ours run along the height
(fadiff.converter.ir.loops).  Reading swaps them: P <-> Q, R <-> S.  Counts do not depend on the names, array
rows do: pixels of one output row stream through the array together.
"""

from __future__ import annotations

import csv
import gzip
import math
import re
from collections.abc import Iterator
from collections.abc import Mapping as MappingABC
from pathlib import Path
from typing import NamedTuple

from fadiff.converter.ir.loops import DIMS, Dim, Dims
from fadiff.costmodel.mapping.mapping import Mapping, MappingError, Order
from fadiff.costmodel.mapping.shape import LayerShape
from fadiff.costmodel.mapping.tiling import Window
from fadiff.errors import InputError

LETTERS: dict[str, Dim] = {"N": "N", "K": "K", "C": "C", "P": "Q", "Q": "P", "R": "S", "S": "R"}
"""Timeloop's letter -> our dimension."""
_FACTOR = re.compile(r"([NKCPQRS])(\d+)(X?)")
_LEVEL = re.compile(r"L([0-3])\[\w+\]((?: \S+)*)")


class DosaFormatError(InputError):
    """A row that cannot be read; the message names the file, the line and the field."""


class DosaPoint(NamedTuple):
    """One row: layer, mapping, hardware, and the row itself for its measured columns.

    `side`, `scratchpad_bytes` and `accumulator_bytes` are the arch.* columns, which the FireSim
    training file fills with a dummy.
    """

    line: int
    shape: LayerShape
    mapping: Mapping
    side: int
    scratchpad_bytes: int
    accumulator_bytes: int
    row: MappingABC[str, str]


def read_points(path: Path) -> Iterator[DosaPoint]:
    """Every row of a `.csv` or `.csv.gz` file.

    Raises:
        DosaFormatError: unreadable file, missing column, or a row that is no mapping of its layer.
    """
    for line, row in read_rows(path):
        try:
            yield read_point(row, line)
        except KeyError as error:
            raise DosaFormatError(f"{path}:{line}: no column {error.args[0]}") from None
        except ValueError as error:
            raise DosaFormatError(f"{path}:{line}: {error}") from None


def read_rows(path: Path) -> Iterator[tuple[int, MappingABC[str, str]]]:
    """Line number and cells of every row; header cells without the spaces around them.

    Raises:
        DosaFormatError: unreadable file.
    """
    try:
        packed = path.suffix == ".gz"
        # A byte-order mark would become part of the first column's name.
        with (
            gzip.open(path, "rt", newline="", encoding="utf-8-sig")
            if packed
            else path.open(newline="", encoding="utf-8-sig")
        ) as file:
            lines = csv.reader(file)
            header = [cell.strip() for cell in next(lines, [])]
            for cells in lines:
                if cells:
                    yield lines.line_num, dict(zip(header, cells, strict=False))
    except (OSError, csv.Error, UnicodeDecodeError, EOFError) as error:
        raise DosaFormatError(f"{path}: cannot read it: {error}") from None


def read_point(row: MappingABC[str, str], line: int = 0) -> DosaPoint:
    """One row as typed objects; stride and dilation come with the layer, padding is part of its input."""
    dims = Dims(**{LETTERS[letter]: _integer(row, f"prob.{letter}") for letter in LETTERS})
    height = _window(row, "H", dims.R, dims.P)
    width = _window(row, "W", dims.S, dims.Q)
    bits = {
        memory: _integer(row, f"arch.{memory}_depth") * _integer(row, f"arch.{memory}_width")
        for memory in ("mem1", "mem2")
    }
    return DosaPoint(
        line,
        LayerShape(dims, height, width, False, False),
        parse_mapping(row["mapping.mapping"], dims),
        math.isqrt(_integer(row, "arch.pe")),
        bits["mem2"] * _integer(row, "arch.mem2_instances") // 8,
        bits["mem1"] * _integer(row, "arch.mem1_instances") // 8,
        row,
    )


def _integer(row: MappingABC[str, str], column: str) -> int:
    try:
        return int(float(row[column]))
    except ValueError:
        raise ValueError(f"{column}={row[column]!r} is no number") from None


def _window(row: MappingABC[str, str], axis: str, kernel: int, outputs: int) -> Window:
    """An unpadded image axis: exactly the input that its outputs need."""
    stride, dilation = _integer(row, f"prob.{axis}stride"), _integer(row, f"prob.{axis}dilation")
    return Window(kernel, stride, dilation, 0, (outputs - 1) * stride + (kernel - 1) * dilation + 1)


def parse_mapping(text: str, dims: Dims) -> Mapping:
    """DOSA's mapping string for a layer of the given bounds, in our dimension names.

    Raises:
        MappingError: not of this form, or its factors do not multiply to the bounds.
    """
    factors = {level: dict.fromkeys(DIMS, 1) for level in range(4)}
    spatial = {level: dict.fromkeys(DIMS, 1) for level in range(4)}
    order: dict[int, list[Dim]] = {level: [] for level in range(4)}
    for part in text.split(" - "):
        match = _LEVEL.fullmatch(part.strip())
        if match is None:
            raise MappingError(f"mapping {text!r}: cannot read the level {part!r}")
        level = int(match[1])
        for word in match[2].split():
            factor = _FACTOR.fullmatch(word)
            if factor is None or factor[2] == "0":
                raise MappingError(f"mapping {text!r}: cannot read the factor {word!r}")
            d = LETTERS[factor[1]]
            (spatial if factor[3] else factors)[level][d] *= int(factor[2])
            if not factor[3] and d not in order[level]:
                order[level].append(d)
    rows, cols = Dims(**spatial[1]), Dims(**spatial[2])
    if any(f > 1 for level in (0, 3) for f in spatial[level].values()):
        raise MappingError(f"mapping {text!r}: Gemmini unrolls at L1 (rows) and L2 (columns) only")
    l0 = {d: factors[0][d] * rows[d] * cols[d] for d in DIMS}
    l1 = {d: factors[1][d] * l0[d] for d in DIMS}
    l2 = {d: factors[2][d] * l1[d] for d in DIMS}
    for d in DIMS:
        if factors[3][d] * l2[d] != dims[d]:
            raise MappingError(
                f"mapping {text!r}: factors of {d} make {factors[3][d] * l2[d]}, not {dims[d]}"
            )
    orders = {level: _complete(order[level]) for level in range(4)}
    return Mapping(Dims(**l2), Dims(**l1), Dims(**l0), rows, cols, orders[3], orders[2], orders[1], orders[0])


def _complete(order: list[Dim]) -> Order:
    """Loops that are not written have one trip: their place does not matter."""
    return (*[d for d in DIMS if d not in order], *order)
