"""Networks on machines that are no Gemmini, with and without fusion (docs/any-machine.md).

    fadiff sample mobilenetv2 -o mobilenetv2.onnx     # and bert-block
    python -m benchmarks any_machine resnet18 mobilenetv2.onnx bert-block.onnx gpt3-block

A network is an ONNX file, or the name of a layer graph of Table 1.  Prints a row of Markdown for each network
and machine: EDP with nothing fused and its bound, EDP with fusion and its bound, bytes of the outermost
memory that fusion saves.
"""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.command import command, listed
from benchmarks.networks import network
from fadiff.emitters.timeloop.machines import machine_of
from fadiff.optimizer.nests.network import MappedNetwork, map_network

MACHINES = "eyeriss-like,simba-like,nvdla-like,tpu-like"
HEADER = "| network | machine | alone | its bound | fused | its bound | fused / alone | groups | MB saved |"


def row(name: str, found: MappedNetwork) -> str:
    """Of one network on one machine."""
    best, unfused = found.best, found.unfused
    saved = sum(found.saved(layers) for layers in best.groups) / 1e6
    edps = (unfused.edp, found.unfused_bound, best.edp, found.bound)
    cells = [name, found.machine.name, *(f"{edp:.3g}" for edp in edps), f"{best.edp / unfused.edp:.3f}"]
    return f"| {' | '.join([*cells, str(len(best.groups)), f'{saved:.2f}'])} |"


def main(arguments: list[str]) -> int:
    """Print the table."""
    parser = command("any_machine", __doc__)
    parser.add_argument("networks", nargs="+", metavar="MODEL.onnx|NAME")
    parser.add_argument("--machines", type=listed, default=listed(MACHINES))
    parser.add_argument("--seconds", type=float, default=20, help="CPU time of each (default: 20)")
    options = parser.parse_args(arguments)
    print(f"{HEADER}\n|---|---|{'---:|' * 7}")
    for name in options.networks:
        graph = network(name)
        for machine in options.machines:
            found = map_network(graph, machine_of(machine), seconds=options.seconds, clock=time.process_time)
            print(row(Path(name).stem, found), flush=True)
    return 0
