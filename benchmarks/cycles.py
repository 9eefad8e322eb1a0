"""The clock against the functional model: cycles predicted over cycles of the emitted program.

Every layer on the array of every MODEL (an ONNX file or the name of a sample network) on every target, of
the schedule that `fadiff compile` would find.  Neither is hardware: where they disagree, one of them knows
something that the other does not, host instructions, caches or waiting.  Cycles do not depend on the
machine; the schedules found in --time-budget seconds do.

python -m benchmarks cycles
python -m benchmarks cycles vgg16 unet --image-size 224 --targets gemmini-default --layers
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from benchmarks.agreement import Pairs, kendall_tau
from benchmarks.command import command, listed
from benchmarks.gemmini_auto import TARGETS, executed, model_file, one_vector, read_with_inputs
from fadiff.console import Console
from fadiff.converter import Conversion
from fadiff.costmodel.schedule.evaluate import evaluate
from fadiff.costmodel.target.target import Target, load_target
from fadiff.search import SearchOptions, decide
from fadiff.vectors import Arrays

MODELS = ("resnet18", "mobilenetv1", "vgg16", "unet", "squeezenet", "vit-block")


def layer_cycles(
    conversion: Conversion, inputs: Arrays, target: Target, search: SearchOptions
) -> dict[str, tuple[float, float]]:
    """(clock, functional model) of every layer on the array; `inputs` are the model's."""
    _, found = decide(conversion, target, search, "gemmini-auto", Console(verbosity=-1))
    schedule = found.schedule
    predicted = evaluate(schedule).by_name
    ran = {
        layer.name: layer.cycles for layer in executed(schedule, one_vector(schedule.graph, inputs)).layers
    }
    return {
        layer.name: (predicted[layer.name].latency_cycles, ran[layer.name])
        for layer in schedule.graph.tensor_core_layers
    }


def summary(pairs: Pairs) -> str:
    """key=value pairs: layers, the ratio's median and tenths at both ends, of the sums, and Kendall's tau."""
    ratios = [a / b for a, b in pairs]
    p10, median, p90 = np.quantile(ratios, (0.1, 0.5, 0.9))
    total = sum(a for a, _ in pairs) / sum(b for _, b in pairs)
    return (
        f"layers={len(pairs)} median={median:.3f} p10={p10:.3f} p90={p90:.3f} total={total:.3f} "
        f"tau={kendall_tau(pairs):.3f}"
    )


def main(arguments: list[str]) -> int:
    """Print a line per network and target, and one of all."""
    parser = command("cycles", __doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default: {' '.join(MODELS)}")
    parser.add_argument("--targets", type=listed, default=TARGETS, help="comma-separated presets or files")
    parser.add_argument("--time-budget", type=float, default=10.0, help="seconds of search per line")
    parser.add_argument("--image-size", type=int, metavar="PIXELS", help="of the sample networks on images")
    parser.add_argument("--layers", action="store_true", help="a line per layer, too")
    parser.add_argument("--exports", type=Path, help="folder that keeps the exported sample networks")
    options = parser.parse_args(arguments)
    targets = [load_target(name) for name in options.targets]
    search, everything = SearchOptions(time_budget=options.time_budget), list[tuple[float, float]]()
    with tempfile.TemporaryDirectory() as scratch:
        for model in options.models or MODELS:
            path = model_file(model, options.exports or Path(scratch), options.image_size)
            conversion, inputs = read_with_inputs(path, targets[0])
            for target in targets:
                cycles = layer_cycles(conversion, inputs, target, search)
                if options.layers:
                    for name, (clock, ran) in cycles.items():
                        print(f"  {clock:12.0f} / {ran:12.0f} = {clock / ran:.3f}  {name}")
                print(f"{path.stem:<18} {target.name:<15} {summary(list(cycles.values()))}", flush=True)
                everything.extend(cycles.values())
    print(summary(everything))
    return 0
