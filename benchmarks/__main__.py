"""`python -m benchmarks NAME ...`: reproduce a table or figure, or compare with an independent tool."""

from __future__ import annotations

import importlib
import sys

from fadiff.converter.names import did_you_mean
from fadiff.errors import BAD_INPUT, is_bad_input, one_line

BENCHMARKS = {
    "timeloop": "access counts, cycles and energy against Timeloop",
    "dosa": "energy and cycles against the Timeloop points published with DOSA",
    "defines": "trends of fused chains over tile sizes against DeFiNES (the paper's Figure 3)",
    "fit_clock": "fit the clock model to programs timed on RTL and write its coefficients",
    "fit_issue": "what the core takes to issue layers by itself, from layers timed on RTL",
    "costmodel": "speed and memory of the exact and the relaxed cost model",
    "any_machine": "networks on machines that are no Gemmini, with and without fusion",
    "gemmini_auto": "emitted schedules against gemmini.h's automatic tiling, run on the functional model",
    "rtl": "cycles of emitted programs on Gemmini RTL, beside the predicted ones",
    "cycles": "cycles of the rtl latency model against those of the functional model, layer by layer",
    "objectives": "what each objective finds, and the default without realisations: none loses to another",
    "table1": "EDP of every method on the paper's networks (Table 1)",
    "figure4": "EDP against wall-clock time of every method (the paper's Figure 4)",
    "ablation": "what each degree of freedom of a schedule is worth",
    "scaling": "search time against network size",
    "descent": "descent alone, decoded but not polished, against the final schedule",
    "codesign": "hardware by descent against sweep, random and Bayesian search with exact schedules",
    "mapper": "layers of `fadiff map` beside timeloop-mapper at equal CPU, on machines of its exercises",
    "mapping_methods": "methods of `fadiff map` at equal CPU, on layers and fused networks",
    "adversary": "attempts to find a schedule below a bound called proven",
    "models": "every sample network, exported, compiled and verified on every target",
    "hostile": "mutated models, schedules, targets, headers and npz files: no traceback, no hang",
    "mutants": "small wrong changes of a room's source: does a test see each?",
    "versions": "tests with the oldest and newest releases of NumPy, PyTorch and the ONNX libraries",
    "screenshots": "the report as pictures at four widths, by headless Chromium",
    "gallery": "the reports of docs/gallery.md and the figures of README.md, made again",
    "readme": "the figures of README.md, from the last gallery and the cycles measured on RTL",
    "wild": "every .onnx file of a folder: converted, refused by name, or our fault",
    "optimised_transformers": "six transformers as ONNX Runtime's optimiser leaves them, trained, with data",
    "quantisers": "our int8 beside ONNX Runtime's, over three draws of calibration data",
    "exporters": "decoders as optimum exports them, trained, over 50 steps of generation",
    "language_models": "TinyLlama and GPT-3 6.7B by their sizes: prompts and steps, cycles, bytes and bound",
    "conformance": "onnx's own test suite: every case verifies or is refused by name",
}


def main(arguments: list[str]) -> int:
    """Run the named benchmark's `main(arguments) -> exit code`; 2 on a usage error."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: python -m benchmarks NAME [options]   (NAME --help for its options)\n")
        for name, text in BENCHMARKS.items():
            print(f"  {name:<12} {text}")
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in BENCHMARKS:
        advice = did_you_mean(name, BENCHMARKS) or f"choose one of {', '.join(BENCHMARKS)}"
        print(f"unknown benchmark {name!r}: {advice}", file=sys.stderr)
        return 2
    module = importlib.import_module(f"benchmarks.{name}")
    try:
        return int(module.main(rest))
    except Exception as error:
        if not is_bad_input(error):
            raise
        print(f"error: {one_line(error)}", file=sys.stderr)
        return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
