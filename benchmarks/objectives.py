"""What every objective finds: cycles, energy and EDP of emitted schedules, also of the graph as converted.

`--objective latency` is never to take more cycles than the default, `energy` never more energy, and the
default never more EDP than the same search of the graph as it was converted, without realisations: lines that
break this end in BROKEN, and the exit code is 1.

python -m benchmarks objectives digits squeezenet:32 mobilenetv3:64 --targets gemmini-default
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import get_args

from benchmarks.command import command, listed
from benchmarks.gemmini_auto import TARGETS, model_file
from fadiff.console import Console
from fadiff.costmodel.schedule.evaluate import NetworkCost
from fadiff.costmodel.target.target import Target, load_target
from fadiff.optimizer.cut.partition import Objective
from fadiff.pipeline import ModelOptions, read_model, realiser
from fadiff.realised import Realiser
from fadiff.search import SearchOptions, decide

MODELS = ("digits", "digits-transformer", "squeezenet:32", "mobilenetv3:64", "inception:64")
"""Sample networks, some with the size of their images."""
ROUNDING = 1 + 1e-6


def found(realise: Realiser, target: Target, objective: Objective, realises: bool = True) -> NetworkCost:
    """Cost of what `compile` would emit."""
    search, conversion = SearchOptions(objective=objective), realise.conversion
    if realises:
        conversion = replace(conversion, graph=realise(target, search).graph)
    return decide(conversion, target, search, None, Console(verbosity=-1))[1].cost


def broken(default: NetworkCost, by: dict[str, NetworkCost], as_converted: NetworkCost) -> dict[str, bool]:
    """Which of the three lines breaks its rule."""
    return {
        "latency": by["latency"].latency_cycles > default.latency_cycles * ROUNDING,
        "energy": by["energy"].energy_pj > default.energy_pj * ROUNDING,
        "as converted": default.edp_uj_cycles > as_converted.edp_uj_cycles * ROUNDING,
    }


def main(arguments: list[str]) -> int:
    """Print a line per network, target and objective."""
    parser = command("objectives", __doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL[:PIXELS]", help=f"default: {' '.join(MODELS)}")
    parser.add_argument("--targets", type=listed, default=TARGETS, help="comma-separated presets or files")
    options, console, fails = parser.parse_args(arguments), Console(verbosity=-1), False
    with tempfile.TemporaryDirectory() as scratch:
        for model in options.models or MODELS:
            name, _, size = model.partition(":")
            path, reading = model_file(name, Path(scratch), int(size) if size else None), ModelOptions()
            for target in map(load_target, options.targets):
                realise = realiser(read_model(path, target, reading, console), path, reading, console)
                by = {objective: found(realise, target, objective) for objective in get_args(Objective)}
                rules = broken(by["edp"], by, plain := found(realise, target, "edp", realises=False))
                fails |= any(rules.values())
                for line, cost in {**by, "as converted": plain}.items():
                    figures = (
                        f"{cost.latency_cycles:>13,} {cost.energy_pj / 1e6:>10,.2f} {cost.edp_uj_cycles:.4e}"
                    )
                    state = " BROKEN" if rules.get(line) else ""
                    print(f"{model:<20} {target.name:<16} {line:<13} {figures}{state}", flush=True)
    return int(fails)
