"""Hand-written Timeloop files that several tests read."""

from __future__ import annotations

from pathlib import Path

from converter.dims import Dims
from converter.timeloop import read_problem
from costmodel.mapping import Mapping
from costmodel.timeloop_import import read_mapping

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


def load_pair(folder: Path, problem: str = PROBLEM, mapping: str = MAPPING) -> tuple[Dims, Mapping]:
    (folder / "p.yaml").write_text(problem)
    (folder / "m.yaml").write_text(mapping)
    read = read_problem(folder / "p.yaml")
    return read.layer.dims, read_mapping(folder / "m.yaml", read)


def replaced(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)
