"""Access counts, cycles and energy of the model against Timeloop's, mapping by mapping."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.agreement import kendall_tau, mean_relative_error, scatter
from benchmarks.command import add_out, command
from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.nests.count import Nests
from fadiff.costmodel.nests.machine import DATA_SPACES, OPERANDS, FanOut, Machine, Memory
from fadiff.costmodel.nests.mapping import Mappings
from fadiff.costmodel.nests.workload import Workload
from fadiff.costmodel.target.target import load_target
from fadiff.errors import InputError

KINDS = ("reads", "fills", "updates")
LETTERS = "NKCPQRS"
RENAMED = {"dwconv": {"K": "G"}, "bmm": {"N": "G"}}
"""Where a letter of the table indexes all three operands."""
MEMORIES = ("L3", "L2", "L1", "L0")
LEVELS = ("L3_temporal", "L2_temporal", "L2_spatial", "L1_temporal", "L1_spatial", "L0_temporal")
"""From the outermost in: loops in space stand below their memory."""


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
    nests = nests_of(row)
    pairs = [
        (int(getattr(ours, kind)[0]), int(row[f"{level}_{DATA_SPACES[operand]}_{kind}_per_inst"]))
        for memory, level in enumerate(MEMORIES)
        for operand in OPERANDS
        if (ours := nests.accesses(operand, memory)) is not None
        for kind in KINDS
    ]
    cycles = (int(nests.cycles[0]), int(row["cycles"]))
    return RowScore(pairs, cycles, (float(nests.energy[0]), float(row["energy_pJ"])))


def nests_of(row: Mapping[str, str]) -> Nests:
    """The mapping of a row.

    Raises:
        ValueError: its factors do not multiply to a bound.
    """
    renamed = dict(zip(LETTERS, LETTERS, strict=True)) | RENAMED.get(row["shape"], {})
    sizes = {renamed[letter]: int(row[letter]) for letter in LETTERS if int(row[letter]) > 1}
    stride, dilation = ((int(row[f"H{what}"]), int(row[f"W{what}"])) for what in ("stride", "dilation"))
    workload = Workload(Dims(**sizes), stride, dilation)
    levels = [_factors(row[column]) for column in LEVELS]
    for letter in LETTERS:
        if (product := math.prod(level[letter] for level in levels)) != int(row[letter]):
            raise ValueError(f"factors of {letter} multiply to {product}, not {row[letter]}")
    active = [letter for dim in workload.active for letter in LETTERS if renamed[letter] == dim]
    factors = np.array([[[level[letter] for letter in active] for level in levels]], dtype=np.int64)
    walked = (row[f"{level}_perm_inner_to_outer"] for level in MEMORIES)
    orders = [[active.index(letter) for letter in order if letter in active] for order in walked]
    machine = machine_of(row["arch"])
    keeps = tuple(memory.keeps for memory in machine.memories)
    return Nests(machine, workload, Mappings(factors, np.array([orders], dtype=np.int64), keeps))


def _factors(text: str) -> dict[str, int]:
    """`N=1 K=4 ...` as numbers."""
    return {part.split("=")[0]: int(part.split("=")[1]) for part in text.split()}


@cache
def machine_of(arch: str) -> Machine:
    """The Gemmini that an architecture name stands for; `..._flat` has one accumulator for all columns."""
    name = arch.removesuffix("_flat")
    target = load_target(name.replace("_", "-"))
    columns = 1 if name == arch else target.side
    words = columns * target.bandwidth.accumulator_words_per_column

    def memory(name: str, keeps: str, pj: float, bandwidth: float = math.inf) -> Memory:
        kept = frozenset(operand for operand in OPERANDS if operand in keeps)
        return Memory(name, kept, shared_bandwidth=bandwidth, read_pj=pj, write_pj=pj, update_pj=pj)

    levels = (
        memory("DRAM", "WIO", target.energy.dram_byte, target.bandwidth.dram_bytes),
        memory("Scratchpad", "WI", target.scratchpad_byte_pj, target.scratchpad_bytes_per_cycle),
        FanOut("columns", "X", target.side),
        memory("Accumulator", "O", target.accumulator_word_pj, words),
        FanOut("rows", "Y", target.side),
        memory("Registers", "W", target.energy.register_byte),
    )
    return Machine(arch, levels, target.energy.mac)
