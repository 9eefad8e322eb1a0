"""A small schedule, and what compiles its firmware."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fadiff.converter.check.reference import run_reference
from fadiff.converter.ir.graph import Graph
from fadiff.converter.ir.host import GlobalAveragePool
from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.schedule.schedule import FusionGroup, GroupTile, Schedule, singleton_groups
from fadiff.costmodel.target.target import Target, load_target
from fadiff.emulator.build import include_flags
from tests.emitters.gemmini.executed import random_inputs
from tests.emitters.gemmini.nets import Net

WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Werror")
STRICT = (
    *WARNINGS,
    *("-pedantic", "-Wshadow", "-Wundef", "-Wcast-align", "-Wcast-qual", "-Wdouble-promotion"),
    *("-Wpointer-arith", "-Wwrite-strings", "-Wvla", "-Wstrict-prototypes", "-Wmissing-prototypes"),
)
"""What projects of C files are built with; the headers of Gemmini come as system headers."""


def small_schedule(target: Target | None = None) -> Schedule:
    """Two fused 3x3 convolutions, a spilling pointwise convolution, an add and a host pool."""
    import random

    net = Net(random.Random(1))
    shape = (1, 8, 8, 8)
    x = net.input(shape)
    first = net.conv(x, shape, outputs=8, kernel=(3, 3), pads=(1, 1, 1, 1), bias=True)
    assert first
    second = net.conv(first[0], shape, outputs=8, kernel=(3, 3), pads=(1, 1, 1, 1), bias=True)
    assert second
    third = net.conv(second[0], shape, outputs=24, kernel=(1, 1), bias=False)
    assert third
    fourth = net.conv(third[0], third[1], outputs=8, kernel=(1, 1), bias=True)
    assert fourth
    net.add(fourth[0], x, shape)
    pool = net.builder.tensor("y5", (1, 1, 1, 8), scale=0.1)
    net.builder.host("pool", GlobalAveragePool(0.01), ("y4",), (pool,))
    graph = net.builder.build((pool,))
    full = Dims(K=8, C=8, P=4, Q=8, R=3, S=3)
    block = Dims(K=8, C=8, Q=8)
    spatial = {"rows": Dims(C=8), "cols": Dims(K=8)}
    fused = Mapping(full, full.replace({"P": 2}), block, **spatial)
    wide = Dims(K=8, C=8, P=8, Q=8)
    third_mapping = Mapping(wide, wide, block, **spatial)
    # C outermost at L3: partial sums leave the accumulator.
    order = ("C", "G", "N", "K", "P", "Q", "R", "S")
    tile = wide.replace({"P": 4})
    fourth_mapping = Mapping(tile, tile, block, **spatial, order_l3=order)
    groups = (
        FusionGroup(("l0", "l1"), GroupTile(1, 4, 8), frozenset({"l1"})),
        *singleton_groups(graph)[2:],
    )
    mappings = {"l0": fused, "l1": fused, "l2": third_mapping, "l3": fourth_mapping}
    return Schedule(graph, target or load_target("gemmini-default"), mappings, groups)


def vectors_of(graph: Graph) -> dict[str, np.ndarray]:
    inputs = random_inputs(graph)
    computed = run_reference(graph, inputs)
    return inputs | {name: computed[name] for name in graph.outputs}


def hardware_flags(tmp_path: Path) -> list[str]:
    return include_flags(load_target("gemmini-default"), tmp_path / "params")


def run_compiler(*command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(c) for c in command], cwd=folder, capture_output=True, text=True, check=False)


def need(tool: str) -> str:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")
    return tool
