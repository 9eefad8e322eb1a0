"""Write the figures of README.md again: those of `python -m benchmarks gallery`, and cycles measured on RTL.

    python -m benchmarks readme

Figures stand between comments, `<!-- NAME -->` and `<!-- /NAME -->`; a test holds them equal to this.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from math import prod
from pathlib import Path

from benchmarks.command import command
from benchmarks.rtl import DEFAULT, LIBRARY, MEASURED, OTHER_SOC, Row, read_rows, use_of
from benchmarks.rtl_programs import kind_of
from fadiff.search import SearchOptions

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "gallery" / "figures.json"
"""EDPs of ResNet-18 on gemmini-large: that of the report in the gallery, and some with DOSA's constants."""
SEARCHES = {
    "as `make demo` prints it": SearchOptions(profile="dosa"),
    "without row packing of the first layer (`--no-row-packing`)": SearchOptions(
        profile="dosa", row_packing=False
    ),
    "also without fusion (`--no-fusion`), so that nothing stays on chip between layers": SearchOptions(
        profile="dosa", row_packing=False, fusion=False
    ),
}
"""Rows of the table of EDPs with DOSA's constants."""
PROGRAMS = {
    "64x14x14 c64k3": "convolution 3x3",
    "24x28x28 c96k1 r": "convolution 1x1, ReLU",
    "16x24x24 c16k3 r mp2": "convolution 3x3, ReLU, max pool",
    "32x14x14 dw3": "depthwise convolution 3x3",
    "24x14x14 c96k1 r dw3 r c24k1 +0": "inverted residual",
    "128x256 fc256": "matrix product",
    "32x64 fc256 gelu fc64 +0": "feed-forward block, GELU on the core",
    "16x16x16 mp3s2": "max pool",
    "32x64 softmax": "softmax: the same C in both",
}
BLOCKS = ("pre-norm-block", "post-norm-block")


def schedule() -> str:
    """EDPs of ResNet-18, and how far the executed schedule is from its bound."""
    found = json.loads(FIGURES.read_text(encoding="utf-8"))
    hw = found["hw"]
    lines = [
        "| | EDP, uJ x cycles |",
        "|---|---:|",
        *(f"| {what} | {edp:.2e} |" for what, edp in found["dosa"].items()),
        "",
        "The schedule that the demo executes (profile `hw`, cycles of the emitted program) has "
        f"{hw['edp']:.3e}, {_beside(hw['gap'], hw['bound'])}.",
    ]
    return "\n".join(lines).replace("e+", "e")


def _beside(gap: float, kind: str) -> str:
    """How far an EDP is from its bound."""
    if kind != "sequential":
        return f"{100 * gap:.1f} % above its {kind} lower bound"
    side = "below" if gap < 0 else "above"
    return f"{100 * abs(gap):.1f} % {side} the bound of schedules that run one layer after the other"


def rtl() -> str:
    """Some of the programs timed on RTL, and geometric means over all of them."""
    networks = _timed(MEASURED.parent / "whole_networks" / MEASURED.name)
    programs = _timed(MEASURED)
    fitted = {name: both for name, both in programs.items() if use_of(name) == "fitted"}
    plain = {name: both for name, both in fitted.items() if not _owes_to_the_library(name)}
    worst = max(_ratios(fitted.values()))
    return "\n".join(
        [
            "| program | | ours | `gemmini.h` | ours / theirs |",
            "|---|---|---:|---:|---:|",
            *(_line(f"`{name}`", what, *programs[name]) for name, what in PROGRAMS.items()),
            *(_line(f"`{name}`", "encoder block of a transformer", *networks[name]) for name in BLOCKS),
            "",
            f"Geometric mean of ours / theirs: {_mean(plain):.2f} over the {len(plain)} programs without "
            f"depthwise layers and fused pools, {_mean(fitted):.2f} over all {len(fitted)}; "
            f"worst {worst:.3f}.",
        ]
    )


def _timed(path: Path) -> dict[str, tuple[Row, Row]]:
    """What was timed in both ways on the SoC that can be simulated, by program: ours, and gemmini.h's."""
    found: dict[str, dict[bool, Row]] = {}
    for row in read_rows(path):
        if (row.soc, row.target) == (OTHER_SOC, "gemmini-default") and row.form in (LIBRARY, DEFAULT):
            found.setdefault(row.program, {})[row.form == LIBRARY] = row
    return {name: (both[False], both[True]) for name, both in found.items() if len(both) == 2}


def _owes_to_the_library(program: str) -> bool:
    """Whether it has a depthwise layer or fuses a pool: tens of calls of gemmini.h's, or none."""
    return "dw" in program or ("mp" in program and kind_of(program) == "group")


def _ratios(timed: Iterable[tuple[Row, Row]]) -> list[float]:
    return [ours.warm / theirs.warm for ours, theirs in timed]


def _mean(timed: dict[str, tuple[Row, Row]]) -> float:
    return float(prod(_ratios(timed.values())) ** (1 / len(timed)))


def _line(name: str, what: str, ours: Row, theirs: Row) -> str:
    return f"| {name} | {what} | {ours.warm:,} | {theirs.warm:,} | {ours.warm / theirs.warm:.2f} |"


FIGURES_BY_NAME: dict[str, Callable[[], str]] = {"schedule": schedule, "rtl": rtl}


def current(text: str) -> str:
    """The page with today's figures."""
    for name, block in FIGURES_BY_NAME.items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->\n")
        text = f"{before}{begin}{block()}\n{end}{after}"
    return text


def main(arguments: list[str]) -> int:
    """Write README.md."""
    command("readme", __doc__).parse_args(arguments)
    page = ROOT / "README.md"
    page.write_text(current(page.read_text(encoding="utf-8")), encoding="utf-8")
    print(page)
    return 0
