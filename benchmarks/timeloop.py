"""Access counts, cycles and energy of the model against Timeloop's, mapping by mapping."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.agreement import kendall_tau, mean_relative_error, scatter
from benchmarks.command import add_out, command
from benchmarks.timeloop_counts import Counts, LevelLoops, Workload, count
from fadiff.costmodel.count.timeloop_counts import cycles_at
from fadiff.costmodel.target.target import Target, load_target
from fadiff.errors import InputError

TENSORS = {"W": "Weights", "I": "Inputs", "O": "Outputs"}
KINDS = ("reads", "fills", "updates")


def main(arguments: list[str]) -> int:
    """Score every row of a reference table; 1 if a row could not be scored."""
    parser = command("timeloop", __doc__)
    parser.add_argument(
        "--reference", type=Path, required=True, help="CSV of Timeloop counts, one mapping a row"
    )
    add_out(parser)
    options = parser.parse_args(arguments)
    try:
        with options.reference.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{options.reference}: cannot read it: {error}") from None
    scores: list[RowScore] = []
    for line, row in enumerate(rows, start=2):
        try:
            scores.append(score(row))
        except (KeyError, ValueError) as error:
            print(f"{options.reference}:{line}: cannot be scored: {error}", file=sys.stderr)
    failed = len(rows) - len(scores)
    counts = [pair for row_score in scores for pair in row_score.counts]
    cycles = [row_score.cycles for row_score in scores]
    energy = [row_score.energy for row_score in scores]
    if not counts:
        raise InputError(f"{options.reference}: no row could be scored")
    equal = sum(ours == theirs for ours, theirs in counts)
    options.out.mkdir(parents=True, exist_ok=True)
    scatter(options.out / "timeloop.png", {"cycles": cycles, "energy (pJ)": energy}, "Timeloop", "FADiff")
    print(f"{'rows':<28}{len(scores)} of {len(rows)}")
    print(f"{'counts equal':<28}{equal} of {len(counts)}")
    print(f"{'cycles equal':<28}{sum(a == b for a, b in cycles)} of {len(cycles)}")
    print(f"{'energy within 0.1 %':<28}{sum(abs(a / b - 1) <= 1e-3 for a, b in energy)} of {len(energy)}")
    print(
        f"exact={equal / len(counts):.6f} mare={mean_relative_error(counts):.3e} "
        f"tau_latency={kendall_tau(cycles):.6f} tau_energy={kendall_tau(energy):.6f} "
        f"rows={len(scores)} failed={failed}"
    )
    return 1 if failed else 0


class RowScore(NamedTuple):
    """(ours, Timeloop's) of every access count, of cycles and of energy."""

    counts: list[tuple[int, int]]
    cycles: tuple[int, int]
    energy: tuple[float, float]


def score(row: Mapping[str, str]) -> RowScore:
    """Count one mapping and pair it with what Timeloop found."""
    counts = count(workload_of(row), levels_of(row))
    target, is_flat = target_of(row["arch"])
    pairs = [
        (getattr(ours, kind), int(row[f"{level}_{TENSORS[tensor]}_{kind}_per_inst"]))
        for level, tensors in counts.by_level.items()
        for tensor, ours in tensors.items()
        for kind in KINDS
    ]
    cycles = (latency(counts, target, is_flat), int(row["cycles"]))
    return RowScore(pairs, cycles, (picojoules(counts, target), float(row["energy_pJ"])))


def workload_of(row: Mapping[str, str]) -> Workload:
    """The problem of a row: `dwconv` inputs follow K, `bmm` weights follow N."""
    channel = "K" if row["shape"] == "dwconv" else "C"
    weights: tuple[str, ...] = ("N",) if row["shape"] == "bmm" else ()
    height = (("R", int(row["Hdilation"])), ("P", int(row["Hstride"])))
    width = (("S", int(row["Wdilation"])), ("Q", int(row["Wstride"])))
    return Workload(
        {d: int(row[d]) for d in "NKCPQRS"},
        {
            "W": tuple(((d, 1),) for d in (*weights, "K", "C", "R", "S")),
            "I": ((("N", 1),), ((channel, 1),), height, width),
            "O": tuple(((d, 1),) for d in "NKPQ"),
        },
    )


def levels_of(row: Mapping[str, str]) -> list[LevelLoops]:
    """The nest of a row, L0 to L3."""
    none = dict.fromkeys("NKCPQRS", 1)
    return [
        LevelLoops(
            factors(row[f"L{level}_spatial"]) if level in (1, 2) else none,
            factors(row[f"L{level}_temporal"]),
            row[f"L{level}_perm_inner_to_outer"],
        )
        for level in range(4)
    ]


def factors(text: str) -> dict[str, int]:
    """`N=1 K=4 ...` as numbers."""
    return {part.split("=")[0]: int(part.split("=")[1]) for part in text.split()}


def target_of(arch: str) -> tuple[Target, bool]:
    """The target an architecture name stands for, and whether its accumulator is one shared buffer."""
    name = arch.removesuffix("_flat")
    return load_target(name.replace("_", "-")), name != arch


def latency(counts: Counts, target: Target, is_flat: bool) -> int:
    """Roofline over the levels, bandwidths per instance."""
    columns = target.bandwidth.accumulator_words_per_column
    bandwidth = {
        "L1": columns * target.side if is_flat else columns,
        "L2": target.scratchpad_bytes_per_cycle,
        "L3": target.bandwidth.dram_bytes,
    }
    cycles = [counts.compute_cycles]
    for level, words_per_cycle in bandwidth.items():
        cycles.append(cycles_at(counts.by_level[level].values(), counts.compute_cycles, words_per_cycle))
    return max(cycles)


def picojoules(counts: Counts, target: Target) -> float:
    """Accesses times energy per word, plus the multiply-accumulates."""
    price = {
        "L0": target.energy.register_byte,
        "L1": target.accumulator_word_pj,
        "L2": target.scratchpad_byte_pj,
        "L3": target.energy.dram_byte,
    }
    total = counts.macs * target.energy.mac
    for level, tensors in counts.by_level.items():
        total += price[level] * sum(c.total for c in tensors.values())
    return total
