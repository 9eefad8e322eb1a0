"""FireSim measurements as work for the rtl model: what the measuring program really ran.

Read off the training rows (each makes cycles per tile constant where they were scattered before):

* The array is not in the training file (arch.* is a 128 x 128 dummy): its side is the next power of
  two of the larger spatial factor, at least 4.
* A layer whose output is one pixel high, without a kernel, ran as tiled_matmul.  Its tile sizes were
  given in blocks of 16 whatever the array: max(1, tile // 16) blocks of `side`.
* All others ran as tiled_conv with tiles in elements.  Its output is square (width x width, also
  where the row says 60 x 6), and one pixel larger where the kernel is even.
* DRAM loops ran in the mapping's order; every tile loads both operands; outputs are stored once.
"""

from __future__ import annotations

from collections.abc import Mapping as MappingABC
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.dosa_format import DosaFormatError, DosaPoint, read_point, read_rows
from converter.ir.dims import DIMS, Dim
from costmodel.count.nest import LoopNest
from costmodel.latency.rtl import Number, Reuse, Work
from costmodel.latency.rtl_work import is_matmul, layer_work
from costmodel.mapping.mapping import STREAM_ORDER, Mapping
from costmodel.mapping.shape import LayerShape, whole
from costmodel.mapping.tiling import Window
from costmodel.target.target import Target

MEASURED = "target.gemmini_cycle"
DUMMY_SIDE = 128
OPTIONAL = {
    "arch.pe": str(DUMMY_SIDE**2),
    **{
        f"arch.{memory}_{what}": "0"
        for memory in ("mem1", "mem2")
        for what in ("depth", "width", "instances")
    },
    "prob.N": "1",
    "prob.Hdilation": "1",
    "prob.Wdilation": "1",
}
"""What a file may leave out: the array is then inferred as in the training file, memories do not matter."""
BLOCK = 16
Floats = NDArray[np.float64]


class Measurements(NamedTuple):
    """One file: work with one array element per row, and what belongs to each."""

    work: Work
    cycles: Floats
    """Measured."""
    timeloop_cycles: Floats
    """DOSA's analytical latency of the same rows (target.edp / target.energy, else target.cycle); not a
    number where the file does not say."""
    side: NDArray[np.int64]
    is_matmul: NDArray[np.bool_]
    shapes: tuple[LayerShape, ...]
    """As in the file: rows that share a layer must not be split over folds."""

    def take(self, rows: NDArray[np.bool_]) -> Measurements:
        """A subset of the rows."""
        return Measurements(
            Work._make(_take(part, rows) for part in self.work),
            self.cycles[rows],
            self.timeloop_cycles[rows],
            self.side[rows],
            self.is_matmul[rows],
            tuple(shape for shape, keep in zip(self.shapes, rows, strict=True) if keep),
        )


def _take(part: Number, rows: NDArray[np.bool_]) -> Number:
    if isinstance(part, Reuse):
        return Reuse._make(_take(field, rows) for field in part)
    return [values[rows] for values in part] if isinstance(part, list) else part[rows]


class Unread(NamedTuple):
    """A row that cannot be scored, and why."""

    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


def read_measurements(
    paths: Sequence[Path], side: int | None = None
) -> tuple[Measurements, tuple[Unread, ...]]:
    """Every row of the FireSim CSVs, and those that cannot be scored.

    `side` is the array of rows whose file does not name it (default: inferred row by row).

    Raises:
        DosaFormatError: an unreadable file, one without a column that is needed, or no row to score.
    """
    works, measured, analytical, sides, shapes = [], [], [], [], []
    unread = []
    for path in paths:
        for line, cells in read_rows(path):
            row = {**OPTIONAL, **{name: cell for name, cell in cells.items() if cell.strip()}}
            try:
                point = read_point(row, line)
                cycles = _number(row[MEASURED])
                if not cycles > 0:
                    raise ValueError(f"{MEASURED}={row[MEASURED]!r} is no positive number")
            except KeyError as error:
                raise DosaFormatError(f"{path}:{line}: no column {error.args[0]}") from None
            except ValueError as error:
                unread.append(Unread(f"{path}:{line}", str(error)))
                continue
            array = array_side(point, side)
            shape, mapping = as_executed(point.shape, point.mapping, array)
            works.append(
                layer_work(LoopNest(shape, mapping, whole(shape.dims)), _target(array), "dosa", reload=True)
            )
            measured.append(cycles)
            analytical.append(_analytical(row))
            sides.append(array)
            shapes.append(point.shape)
    if not works:
        because = f" that can be scored; the first: {unread[0]}" if unread else ""
        raise DosaFormatError(f"{', '.join(map(str, paths))}: no rows{because}")
    data = Measurements(
        stack(works),
        np.array(measured),
        np.array(analytical),
        np.array(sides),
        np.array([work.is_matmul == 1 for work in works]),
        tuple(shapes),
    )
    return data, tuple(unread)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _analytical(row: MappingABC[str, str]) -> float:
    """DOSA's analytical cycles; the training file has RTL cycles under target.cycle."""
    edp, energy = (_number(row.get(f"target.{name}", "")) for name in ("edp", "energy"))
    if edp > 0 and energy > 0:
        return edp * 1e6 / energy
    cycles = _number(row.get("target.cycle", ""))
    return cycles if cycles > 0 and cycles != _number(row[MEASURED]) else float("nan")


def array_side(point: DosaPoint, side: int | None = None) -> int:
    """Side of the array a row was measured on: the file's, else `side`, else the least that fits."""
    used = max(4, point.mapping.rows.product, point.mapping.cols.product)
    named = side if point.side in (DUMMY_SIDE, 0) else point.side
    return named if named is not None and named >= used else 1 << (used - 1).bit_length()


def as_executed(shape: LayerShape, mapping: Mapping, side: int) -> tuple[LayerShape, Mapping]:
    """The layer and the tiles that the measuring program ran (see the module text)."""
    bounds = shape.dims.as_dict()
    tile = mapping.tile_l2.as_dict()
    if is_matmul(shape):
        tile.update({d: min(bounds[d], max(1, tile[d] // BLOCK) * side) for d in ("Q", "K", "C")})
    else:
        bounds["Q"] += 1 - shape.width.kernel % 2
        bounds["P"] = bounds["Q"]
    dims = shape.dims.replace(bounds)
    one: dict[Dim, int] = dict.fromkeys(DIMS, 1)
    rows, cols = {**one, "C": min(side, tile["C"])}, {**one, "K": min(side, tile["K"])}
    block = {d: rows[d] * cols[d] for d in DIMS}
    tiles, ones = dims.replace(tile), dims.replace(one)
    executed = Mapping(
        tiles, tiles, dims.replace(block), ones.replace(rows), ones.replace(cols), mapping.order_l3,
        STREAM_ORDER, STREAM_ORDER, STREAM_ORDER,
    )  # fmt: skip
    height = _resized(shape.height, dims.P)
    width = _resized(shape.width, dims.Q)
    return LayerShape(dims, height, width, False, False), executed


def _resized(window: Window, outputs: int) -> Window:
    return window._replace(size=(outputs - 1) * window.stride + (window.kernel - 1) * window.dilation + 1)


def _target(side: int) -> Target:
    """Only the side matters to the rtl model; memories are whatever held the tile."""
    return Target(name=f"firesim-{side}", side=side, scratchpad_bytes=1 << 20, accumulator_bytes=1 << 20)


def stack(works: Sequence[Work]) -> Work:
    """One Work of arrays, one element per given Work."""

    depth = max(len(work.weights.again) for work in works)

    def column(values: Sequence[Number]) -> Number:
        if isinstance(values[0], Reuse):
            return Reuse._make(column(fields) for fields in zip(*values, strict=True))
        if isinstance(values[0], list):
            # A loop that uses nothing again, however much is touched, changes nothing.
            padded = [[*loops, *[1.0] * (depth - len(loops))] for loops in values]
            return [np.array(loop) for loop in zip(*padded, strict=True)]
        return np.array(values, dtype=float)

    return Work._make(column(parts) for parts in zip(*works, strict=True))
