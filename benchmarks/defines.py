"""Trends of fused chains over tile sizes and modes against DeFiNES (the paper's Figure 3).

    python -m benchmarks defines --reference defines_reference.csv [--out FOLDER]

Every fused row is priced with benchmarks.depth_first at its tile size and mode.  Mappings are chosen
as DeFiNES chooses them: the array fully unrolled if that fits, least energy, ties within 0.1 % by
latency.  Only ranks and shapes inside one chain on one architecture are compared; no constant is
adjusted.

Mappings are found by two different searches: DeFiNES merges prime factors until six or seven loops are
left and fills memories greedily, ours enumerates every tiling.  Where both end at a mapping that moves the
same DRAM and scratchpad bytes ("same traffic") what is left is the model; the table has the ranks of
these rows on their own.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import defaultdict
from collections.abc import Mapping as MappingABC
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from benchmarks.command import add_out, command
from benchmarks.depth_first import DepthFirstCost, Overlap, Stage, depth_first_cost, plan_depth_first
from benchmarks.figure import figure
from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.mapping.shape import LayerShape
from fadiff.costmodel.mapping.tiling import Window
from fadiff.costmodel.target.target import Target
from fadiff.errors import InputError
from fadiff.optimizer.layer.enumerate import enumerate_space
from fadiff.optimizer.layer.pricing import price
from fadiff.optimizer.layer.space import LayerSpace, Rules

OVERLAP: dict[str, Overlap] = {
    "fused_recompute": "recompute",
    "fused_hcache": "horizontal-cache",
    "fused_fullcache": "full-cache",
    "fused_LBL_fulltile": "recompute",
}
_LAYER = re.compile(r"(conv|dw):N(\d+)-K(\d+)-C(\d+)-P(\d+)-Q(\d+)-R(\d+)-S(\d+)-stride(\d+)-pad0")
Floats = NDArray[np.float64]
FEWEST = 5
"""Rows that a rank needs."""


class Point(NamedTuple):
    """One fused row: what DeFiNES says and what we say, in pJ and cycles."""

    mode: str
    tile: tuple[int, int]
    """Columns and rows of the last output."""
    reference: DepthFirstCost
    ours: DepthFirstCost

    @property
    def same_traffic(self) -> bool:
        """Whether both searches ended at mappings that move the same bytes (DRAM 0.1 %, scratchpad 1 %)."""
        ours, reference = self.ours, self.reference
        dram = abs(ours.dram_bytes - reference.dram_bytes) / ours.dram_bytes
        scratchpad = abs(ours.scratchpad_bytes - reference.scratchpad_bytes) / ours.scratchpad_bytes
        return dram < 1e-3 and scratchpad < 1e-2


def main(arguments: list[str]) -> int:
    """Print a line per chain and the medians; 1 if a row could not be priced."""
    parser = command("defines", __doc__)
    parser.add_argument("--reference", type=Path, required=True, help="CSV of DeFiNES results")
    add_out(parser)
    options = parser.parse_args(arguments)
    chains: dict[tuple[str, str], list[Point]] = defaultdict(list)
    failed = 0
    with options.reference.open(newline="") as file:
        for line, row in enumerate(csv.DictReader(file), start=2):
            try:
                if row["mode"] in OVERLAP:
                    chains[row["chain"], row["arch"]].append(evaluate_row(row))
            except KeyError as error:
                raise InputError(f"{options.reference}:{line}: no column {error.args[0]}") from None
            except ValueError as error:
                failed += 1
                print(f"{options.reference}:{line}: {error}", file=sys.stderr)
    chains = {name: points for name, points in chains.items() if len(points) > 2}
    if not chains:
        raise InputError(f"{options.reference}: no chain with three fused rows")
    figures = _table(chains)
    _plot(chains, options.out / "defines.png")
    print(" ".join(f"{name}={value:.4f}" for name, value in figures.items()))
    return 1 if failed else 0


def evaluate_row(row: MappingABC[str, str]) -> Point:
    """Price one fused row.

    Raises:
        ValueError: an unknown architecture or layer, or a chain of which no mapping fits.
    """
    target = _target(row)
    shapes = [parse_layer(row[f"layer{i}"]) for i in (1, 2, 3) if row.get(f"layer{i}")]
    columns, rows = int(row["tile_x"]), int(row["tile_y"])
    plan = plan_depth_first(shapes, (rows, columns), OVERLAP[row["mode"]], target)
    ours = depth_first_cost(plan, [best_mapping(stage, target) for stage in plan.stages])
    # Without columns for traffic no row counts as one of same traffic.
    dram, scratchpad = (
        sum(int(row.get(f"{m}_{way}_B") or 0) for way in ("rd", "wr")) for m in ("dram", "l2")
    )
    reference = DepthFirstCost(float(row["energy_pJ"]), float(row["latency_cycles"]), dram, scratchpad)
    return Point(row["mode"], (columns, rows), reference, ours)


def _target(row: MappingABC[str, str]) -> Target:
    """The row's architecture, with DOSA's energies for its capacities (as DeFiNES was given them)."""
    side, l1, l2 = (int(row[column]) for column in ("pe", "l1_kb", "l2_kb"))
    return Target(name=row["arch"], side=side, accumulator_bytes=l1 * 1024, scratchpad_bytes=l2 * 1024)


def parse_layer(text: str) -> LayerShape:
    """`conv:N1-K64-C64-P56-Q56-R3-S3-stride1-pad0`, or `dw:` for depthwise (K = C channels)."""
    match = _LAYER.fullmatch(text)
    if match is None:
        raise ValueError(f"cannot read the layer {text!r}")
    n, k, c, p, q, r, s, stride = (int(number) for number in match.groups()[1:])
    depthwise = match[1] == "dw"
    groups, k, c = (k, 1, 1) if depthwise else (1, k, c)
    height = Window(r, stride, 1, 0, (p - 1) * stride + r)
    width = Window(s, stride, 1, 0, (q - 1) * stride + s)
    return LayerShape(Dims(groups, n, k, c, p, q, r, s), height, width, depthwise, False)


@cache
def best_mapping(stage: Stage, target: Target) -> Mapping:
    """The mapping of one layer of the chain with least energy; see the module text."""
    rules = Rules(target, "dosa", row_packing=False)
    space = LayerSpace(stage.shape, stage.region, rules, stage.placement, stage.reserved)
    points = enumerate_space(space)
    costs = price(points)
    allowed = ~costs.spills if stage.placement.output_is_fused else np.ones(len(points), dtype=bool)
    if not stage.shape.is_depthwise:
        unrolled = space.blocks(points.tile["k"]) == min(space.side, space.bounds.K)
        unrolled &= space.blocks(points.tile["C"]) == min(space.side, space.bounds.C)
        # Beside large tiles a full array block of weights may not fit.
        unrolled = points.every(unrolled)
        allowed = allowed & unrolled if (allowed & unrolled).any() else allowed
    index = np.flatnonzero(allowed)
    if not len(index):
        raise ValueError("no mapping of a layer fits beside the tiles of its chain")
    cheap = index[costs.energy[index] <= 1.001 * costs.energy[index].min()]
    return points.mapping(int(cheap[np.argmin(costs.latency[cheap])]))


def _columns(points: list[Point]) -> dict[str, tuple[Floats, Floats]]:
    """Reference and ours, for energy and latency."""
    return {
        name: (np.array([p.reference[i] for p in points]), np.array([p.ours[i] for p in points]))
        for i, name in enumerate(("energy", "latency"))
    }


def z_rmse(reference: Floats, ours: Floats) -> float:
    """Root mean square difference of Z-scores inside one chain."""
    scores = [(x - x.mean()) / (x.std() or 1.0) for x in (reference, ours)]
    return float(np.sqrt(np.mean((scores[0] - scores[1]) ** 2)))


def _table(chains: MappingABC[tuple[str, str], list[Point]]) -> dict[str, float]:
    print(f"{'':<68}{'rows of same traffic':>24}")
    print(
        f"{'chain':<26}{'arch':<7}{'rows':>5}{'rho E':>8}{'rho L':>8}{'Z-RMSE E':>10}{'Z-RMSE L':>10}"
        f"{'rows':>8}{'rho E':>8}{'rho L':>8}"
    )
    found: dict[str, list[float]] = defaultdict(list)
    for (chain, arch), points in sorted(chains.items()):
        line = {}
        for name, (reference, ours) in _columns(points).items():
            line[f"rho_{name}"] = float(spearmanr(reference, ours)[0])
            line[f"zrmse_{name}"] = z_rmse(reference, ours)
        for name, value in line.items():
            found[name].append(value)
        print(
            f"{chain:<26}{arch:<7}{len(points):>5}{line['rho_energy']:>8.3f}{line['rho_latency']:>8.3f}"
            f"{line['zrmse_energy']:>10.3f}{line['zrmse_latency']:>10.3f}{_same_traffic(points, found)}"
        )
    _explain([point for points in chains.values() for point in points])
    names = ("rho_energy", "rho_latency", "zrmse_energy", "zrmse_latency")
    figures = {name: float(np.median(found[name])) for name in names}
    for name in ("same_traffic_rho_energy", "same_traffic_rho_latency"):
        if found[name]:
            figures[name] = float(np.median(found[name]))
    return figures


def _same_traffic(points: list[Point], found: dict[str, list[float]]) -> str:
    """Ranks among the rows on which the two searches agree; too few rows have no rank."""
    same = [point for point in points if point.same_traffic]
    if len(same) < FEWEST:
        return f"{len(same):>8}{'-':>8}{'-':>8}"
    text = f"{len(same):>8}"
    for name, (reference, ours) in _columns(same).items():
        rho = float(spearmanr(reference, ours)[0])
        found[f"same_traffic_rho_{name}"].append(rho)
        text += f"{rho:>8.3f}"
    return text


def _explain(points: list[Point]) -> None:
    """How far apart the two searches are, which is what lowers the ranks of single chains."""
    same = [point for point in points if point.same_traffic]
    others = [point for point in points if not point.same_traffic]
    print()
    for title, rows in (("same traffic", same), ("other traffic", others)):
        if not rows:
            continue
        ratios = [p.ours.energy_pj / p.reference.energy_pj for p in rows]
        low, middle, high = np.percentile(ratios, (5, 50, 95))
        cheaper = sum(ratio < 1.001 for ratio in ratios)
        print(
            f"{title}: {len(rows)} of {len(points)} rows; our energy / DeFiNES's is {low:.3f} (5 %), "
            f"{middle:.3f} (median), {high:.3f} (95 %); at most 0.1 % more in {cheaper} of them"
        )
    print(
        "where traffic differs, DeFiNES's coarser search mostly stopped at a mapping that moves more bytes\n"
    )


def _plot(chains: MappingABC[tuple[str, str], list[Point]], path: Path) -> None:
    """Z-scores over the design points of each chain: DeFiNES as dots, ours as a line."""
    chosen = sorted(chains.items(), key=lambda item: (item[0][1], item[0][0]))
    height = -(-len(chosen) // 2)
    with figure(path, (18, 1.7 * height), height, 4) as (drawn, axes):
        cells = iter(axes.reshape(-1, 2))
        for ((chain, arch), unsorted), row in zip(chosen, cells, strict=False):
            points = sorted(unsorted, key=lambda p: (p.mode, p.tile[0] * p.tile[1]))
            for ax, (name, (reference, ours)) in zip(row, _columns(points).items(), strict=True):
                for values, style, label in ((reference, "o", "DeFiNES"), (ours, "-", "FADiff")):
                    ax.plot((values - values.mean()) / (values.std() or 1), style, label=label, markersize=3)
                for at, (before, after) in enumerate(pairwise(points)):
                    if before.mode != after.mode:
                        ax.axvline(at + 0.5, color="grey", linewidth=0.5)
                modes = " | ".join(dict.fromkeys(p.mode.removeprefix("fused_") for p in points))
                ax.set_title(f"{chain} {arch}: {name} ({modes})", fontsize=6)
                ax.tick_params(labelsize=6)
        for row in cells:
            for ax in row:
                ax.axis("off")
        axes[0][0].legend(fontsize=6)
        drawn.suptitle("Z-scores over tile sizes (small to large in each mode)", fontsize=9)
    print(f"figure: {path}")
