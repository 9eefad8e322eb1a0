"""One layer by hand: its Timeloop files, its schedule and what Timeloop counts for it."""

from __future__ import annotations

from pathlib import Path

from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.schedule.schedule import Profile, Schedule, singleton_groups
from fadiff.costmodel.target.target import load_target
from fadiff.emitters.timeloop.read.mapping import read_mapping
from fadiff.emitters.timeloop.read.problem import one_layer_graph, read_problem
from fadiff.emitters.timeloop.stats import Stats

PROBLEM = """\
problem:
  shape:
    name: conv
    dimensions: [N, K, C, P, Q, R, S]
    coefficients:
    - {name: Hstride, default: 1}
    - {name: Wstride, default: 1}
    data_spaces:
    - {name: Weights, projection: [[[K]], [[C]], [[R]], [[S]]]}
    - {name: Inputs, projection: [[[N]], [[C]], [[R], [P, Hstride]], [[S], [Q, Wstride]]]}
    - {name: Outputs, projection: [[[N]], [[K]], [[P]], [[Q]]], read_write: true}
  instance: {N: 1, K: 32, C: 32, P: 8, Q: 1, R: 1, S: 1, Hstride: 1, Wstride: 1}
"""

MAPPING = """\
mapping:
- {target: Registers, type: bypass, keep: [Weights], bypass: [Inputs, Outputs]}
- {target: Accumulator, type: bypass, keep: [Outputs], bypass: [Weights, Inputs]}
- {target: Scratchpad, type: bypass, keep: [Weights, Inputs], bypass: [Outputs]}
- {target: DRAM, type: bypass, keep: [Weights, Inputs, Outputs], bypass: []}
- {target: Registers, type: temporal, factors: "N=1 K=1 C=1 P=1 Q=1 R=1 S=1", permutation: "NKCPQRS"}
- {target: Accumulator, type: spatial, factors: "N=1 K=1 C=16 P=1 Q=1 R=1 S=1", split: 0}
- {target: Accumulator, type: temporal, factors: "N=1 K=1 C=1 P=4 Q=1 R=1 S=1", permutation: "NKCPQRS"}
- {target: Scratchpad, type: spatial, factors: "N=1 K=16 C=1 P=1 Q=1 R=1 S=1", permutation: NKCPQRS, split: 7}
- {target: Scratchpad, type: temporal, factors: "N=1 K=1 C=1 P=2 Q=1 R=1 S=1", permutation: "NKCPQRS"}
- {target: DRAM, type: temporal, factors: "N=1 K=2 C=2 P=1 Q=1 R=1 S=1", permutation: "CKNPQRS"}
"""


KNOWN = Path(__file__).parent / "known.stats.txt"
"""What timeloop-model (NVlabs/timeloop, 2025) wrote for the mapping above; HAND derives its numbers."""

# 8192 products on 16 x 16 elements: 32 steps.  DRAM is read for K=2, C=2 tiles: Weights once (1024),
# Inputs twice (512), and Outputs come back once (256) and are written twice (512): 2304 words at 8 a cycle.
HAND = Stats(
    cycles=288,
    energy_pj=8192 * 0.5608
    + (8192 + 1024) * 0.48746172
    + (256 + 768) * 1.99025
    + (2048 + 1024) * 0.69104
    + 2304 * 100,
    accesses={
        ("Registers", "Weights"): (8192, 1024),
        ("Accumulator", "Outputs"): (256, 768),
        ("Scratchpad", "Weights"): (1024, 1024),
        ("Scratchpad", "Inputs"): (512, 512),
        ("DRAM", "Weights"): (1024, 0),
        ("DRAM", "Inputs"): (512, 0),
        ("DRAM", "Outputs"): (256, 512),
    },
)


def hand_schedule(profile: Profile = "dosa") -> Schedule:
    """The mapping above."""
    graph = one_layer_graph("layer", Dims(K=32, C=32, P=8), (1, 1), (1, 1))
    mapping = Mapping(
        tile_l2=Dims(K=16, C=16, P=8),
        tile_l1=Dims(K=16, C=16, P=4),
        tile_l0=Dims(K=16, C=16),
        rows=Dims(C=16),
        cols=Dims(K=16),
        order_l3=("G", "S", "R", "Q", "P", "N", "K", "C"),
    )
    return Schedule(
        graph, load_target("gemmini-small"), {"layer": mapping}, singleton_groups(graph), profile=profile
    )


def load_pair(folder: Path, problem: str = PROBLEM, mapping: str = MAPPING) -> tuple[Dims, Mapping]:
    (folder / "p.yaml").write_text(problem)
    (folder / "m.yaml").write_text(mapping)
    read = read_problem(folder / "p.yaml")
    return read.layer.dims, read_mapping(folder / "m.yaml", read)


def replaced(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


def program(path: Path, body: str) -> Path:
    """A stand-in for timeloop-model: the last argument is the output folder."""
    path.write_text(f"#!/bin/sh\nfor out; do :; done\n{body}\n")
    path.chmod(0o755)
    return path
