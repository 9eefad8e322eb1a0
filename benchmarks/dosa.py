"""Energy and cycles of profile `dosa` against the Timeloop points published with DOSA.

Those points come from Timeloop 3.0.3, which differs from today's in three ways that are followed
here: it forgets the direction of a sliding window (see costmodel.count.timeloop_counts.words_entering),
it charges the accumulator for the drain of its outputs, and its DRAM moves blocks of 64 bytes.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

from benchmarks.agreement import kendall_tau, mean_relative_error, scatter, share_within
from benchmarks.command import add_out, command
from benchmarks.dosa_format import DosaPoint, read_points
from fadiff.costmodel.count.energy import picojoules_per_byte
from fadiff.costmodel.count.nest import layer_traffic
from fadiff.costmodel.count.sliding_window import sliding_input_words
from fadiff.costmodel.count.traffic import Memory, Move
from fadiff.costmodel.latency.roofline import bandwidths
from fadiff.costmodel.mapping.shape import whole
from fadiff.costmodel.target.target import Target
from fadiff.errors import InputError

DRAM_BLOCK = 64
PROGRESS_ROWS = 5000


def main(arguments: list[str]) -> int:
    """Score every point of a table."""
    parser = command("dosa", __doc__)
    parser.add_argument("--reference", type=Path, required=True, help="DOSA's CSV, may be .gz")
    parser.add_argument(
        "--no-sliding-window", action="store_true", help="count whole input tiles, as Gemmini does"
    )
    add_out(parser)
    options = parser.parse_args(arguments)
    energy: list[tuple[float, float]] = []
    cycles: list[tuple[float, float]] = []
    for point in read_points(options.reference):
        ours = score(point, sliding_window=not options.no_sliding_window)
        try:
            # The table has uJ with nine digits and whole cycles.
            energy.append((ours[0], float(point.row["target.energy"]) * 1e6))
            cycles.append((ours[1], float(point.row["target.cycle"])))
        except (KeyError, ValueError) as error:
            raise InputError(
                f"{options.reference}:{point.line}: target.energy, target.cycle: {error}"
            ) from None
        if len(energy) % PROGRESS_ROWS == 0:
            print(f"{len(energy)} points", file=sys.stderr)
    if not energy:
        raise InputError(f"{options.reference}: no points")
    options.out.mkdir(parents=True, exist_ok=True)
    scatter(options.out / "dosa.png", {"energy (pJ)": energy, "cycles": cycles}, "Timeloop", "FADiff")
    print(f"{'':<10}{'within 0.1 %':>14}{'within 1 %':>12}")
    for name, pairs in (("energy", energy), ("cycles", cycles)):
        print(f"{name:<10}{share_within(pairs, 1e-3):>14.4f}{share_within(pairs, 1e-2):>12.4f}")
    print(
        f"energy_mape={100 * mean_relative_error(energy):.5f} "
        f"cycle_mape={100 * mean_relative_error(cycles):.5f} "
        f"tau_energy={kendall_tau(energy):.6f} tau_latency={kendall_tau(cycles):.6f} rows={len(energy)}"
    )
    return 0


def score(point: DosaPoint, *, sliding_window: bool) -> tuple[float, int]:
    """Picojoules and cycles of one point."""
    target = Target(
        name="dosa",
        side=point.side,
        scratchpad_bytes=point.scratchpad_bytes,
        accumulator_bytes=point.accumulator_bytes,
    )
    traffic = layer_traffic(point.shape, point.mapping, whole(point.shape.dims), target, "dosa")
    moves = list(traffic.moves)
    if sliding_window:
        words = sliding_input_words(point.shape, point.mapping, forgets_direction=True)
        fill = (("L3", "I", "read"), ("L2", "I", "write"))
        moves = [m._replace(bytes=words) if (m.level, m.role, m.direction) in fill else m for m in moves]
    dims = point.shape.dims
    outputs = dims.product // (dims.C * dims.R * dims.S)
    moves.append(Move("L1", "O", "read", outputs * target.accumulator_bytes_per_word, "accumulator"))
    price = picojoules_per_byte(target)
    total = traffic.macs * target.energy.mac
    used: dict[Memory, int] = {}
    blocks: dict[str, int] = {}
    for move in moves:
        used[move.memory] = used.get(move.memory, 0) + move.bytes
        if move.memory == "dram":
            operand = "O" if move.role == "psum" else move.role
            blocks[operand] = blocks.get(operand, 0) + move.bytes
        else:
            total += move.bytes * price[move.memory]
    total += sum(math.ceil(moved / DRAM_BLOCK) * DRAM_BLOCK for moved in blocks.values()) * price["dram"]
    cycles = traffic.compute_cycles
    for memory, bandwidth in bandwidths(target, traffic.columns).items():
        cycles = max(cycles, math.ceil(used.get(memory, 0) / bandwidth))
    return total, cycles
