"""What `fadiff codesign` leaves: the best design for its generator or for Timeloop, all as table and plot."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fadiff.costmodel.nests.machine import Machine
from fadiff.errors import InputError

if TYPE_CHECKING:
    from fadiff.costmodel.target.target import Target
    from fadiff.optimizer.codesign.score import Scored, Scorer

FILES = ("target.yaml", "gemmini_params.h", "GemminiConfig.scala", "arch.yaml", "designs.csv", "pareto.svg")


def check_folder(folder: Path, *, force: bool) -> None:
    """Refuse early to write over files.

    Raises:
        InputError: one of ours is there already (without force), or there is no folder to make it in.
    """
    if not folder.absolute().parent.is_dir():
        raise InputError(f"{folder}: there is no folder {folder.parent}: make it, or choose another name")
    there = [name for name in FILES if (folder / name).exists()]
    if there and not force:
        raise InputError(
            f"{folder / there[0]}: already exists: choose another --out, or replace it with --force"
        )


def row_of(scorer: Scorer[Any], scored: Scored) -> dict[str, Any]:
    """A design with its geometric means, and, with names that have a colon, each model's own numbers."""
    row: dict[str, Any] = {
        **scorer.space.changes(scored.sizes),
        "area_mm2": scored.area_mm2,
        "energy_uj": scored.mean.energy_uj,
        "latency_cycles": scored.mean.latency_cycles,
        "edp_uj_cycles": scored.mean.edp,
    }
    for name, cost in scored.costs.items():
        row[f"{name}:energy_uj"], row[f"{name}:latency_cycles"] = cost
    return row


def write_folder(folder: Path, scorer: Scorer[Any]) -> None:
    """FILES: of a Gemmini those for its generator, of another machine its architecture."""
    from fadiff.emitters.report.charts import front_plot
    from fadiff.optimizer.codesign.score import pareto

    front = {scored.sizes for scored in pareto(scorer.found)}
    folder.mkdir(exist_ok=True)
    best = scorer.space.hardware(scorer.best.sizes)
    assert best is not None
    for name, text in _hardware(best):
        (folder / name).write_text(text, encoding="utf-8")
    with (folder / "designs.csv").open("w", newline="", encoding="utf-8") as file:
        rows = [
            {"seconds": found.seconds, **row_of(scorer, found.scored), "pareto": found.scored.sizes in front}
            for found in scorer.found
        ]
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    dots = [
        (
            found.scored.area_mm2,
            found.scored.mean.edp,
            ", ".join(f"{n} {v:,}" for n, v in scorer.space.changes(found.scored.sizes).items()),
        )
        for found in scorer.found
    ]
    (folder / "pareto.svg").write_text(front_plot(dots, scorer.space.limit), encoding="utf-8")


def _hardware(hardware: Target | Machine) -> Iterator[tuple[str, str]]:
    if isinstance(hardware, Machine):
        from fadiff.emitters.timeloop.write.layers import architecture_text

        yield "arch.yaml", architecture_text(hardware)
        return
    from fadiff.costmodel.target.scala_config import scala_config
    from fadiff.costmodel.target.target import target_yaml
    from fadiff.emulator.params import params_header

    yield "target.yaml", target_yaml(hardware)
    yield "gemmini_params.h", params_header(hardware)
    yield "GemminiConfig.scala", scala_config(hardware)
