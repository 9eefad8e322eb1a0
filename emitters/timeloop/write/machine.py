"""A machine of costmodel/nests, and a mapping on it, in Timeloop's native dialect (v0.4)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from fadiff.converter.ir.loops import DIMS, Dim
from fadiff.costmodel.nests.machine import DATA_SPACES, OPERANDS, FanOut, Machine, Memory
from fadiff.costmodel.nests.mapping import Mappings
from fadiff.costmodel.nests.workload import Workload
from fadiff.emitters.timeloop.write.yaml_text import OneLine

Yaml = dict[str, object]
_NOTHING = {"entries": 1, "word_bits": 1, "block_size": 1}


def machine_architecture(machine: Machine) -> Yaml:
    """Root keys `architecture` and `ERT`.

    All levels stand in one list; between two fan-outs stands a level that keeps nothing.
    """
    local: list[Yaml] = []
    tables: list[Yaml] = []
    x = y = 1
    for above, level in zip((None, *machine.levels), machine.levels, strict=False):
        if isinstance(level, Memory):
            local.append(_component(level.name, _class(level), _attributes(level), x, y))
            tables.append(_table(level.name, x * y, _actions(level)))
            continue
        if isinstance(above, FanOut):
            name = _between(level)
            local.append(
                _component(name, "dummy_storage", {"entries": 1, "word_bits": 1, "block_size": 1}, x, y)
            )
            tables.append(_table(name, x * y, dict.fromkeys(("read", "write", "update", "leak"), 0.0)))
        x, y = (x * level.size, y) if level.axis == "X" else (x, y * level.size)
    local.append(_component("MAC", "intmac", {"word_bits": machine.mac_bits}, x, y))
    tables.append(_table("MAC", x * y, {"compute": machine.mac_pj}))
    return {
        "architecture": {"version": 0.4, "subtree": [{"name": "system", "local": local}]},
        "ERT": {"version": 0.4, "tables": tables},
    }


def _between(fan_out: FanOut) -> str:
    """Name of the level above a fan-out that stands right below another."""
    return f"above_{fan_out.name}_{fan_out.axis}"


def _class(memory: Memory) -> str:
    return "DRAM" if memory.words == math.inf else "SRAM"


def _component(name: str, kind: str, attributes: Yaml, x: int, y: int) -> Yaml:
    mesh = {"meshX": x, "meshY": y} if x * y > 1 else {}
    return {"name": f"{name}[1..{x * y}]", "class": kind, "attributes": OneLine({**attributes, **mesh})}


def _attributes(memory: Memory) -> Yaml:
    found: Yaml = {"word_bits": memory.word_bits, "block_size": memory.block, "cluster_size": memory.cluster}
    if memory.words < math.inf:
        found["entries"] = int(memory.words)
    for name in ("read_bandwidth", "write_bandwidth", "shared_bandwidth"):
        if getattr(memory, name) < math.inf:
            found[name] = getattr(memory, name)
    if memory.cluster > 1:
        found["width"] = memory.word_bits * memory.block * memory.cluster
    return found


def _actions(memory: Memory) -> dict[str, float]:
    return {
        "read": memory.read_pj,
        "write": memory.write_pj,
        "update": memory.update_pj,
        "leak": memory.leak_pj,
    }


def _table(name: str, instances: int, actions: dict[str, float]) -> Yaml:
    listed = [
        OneLine({"name": action, "arguments": {}, "energy": energy}) for action, energy in actions.items()
    ]
    return {"name": f"system.{name}[1..{instances}]", "actions": listed}


def machine_mapping(machine: Machine, workload: Workload, mappings: Mappings) -> Yaml:
    """Root key `mapping` of the first row: what every level keeps, then its loops, outermost level first."""
    return {"mapping": [*_keeps(machine, mappings), *_loops(machine, workload, mappings)]}


def _keeps(machine: Machine, mappings: Mappings) -> Iterator[Yaml]:
    kept = dict(zip((memory.name for memory in machine.memories), mappings.keeps, strict=True))
    for above, below in pairwise(machine.levels):
        if isinstance(above, FanOut) and isinstance(below, FanOut):
            kept[_between(below)] = frozenset()
    for name, operands in kept.items():
        yield {
            "target": name,
            "type": "bypass",
            "keep": OneLine([DATA_SPACES[o] for o in OPERANDS if o in operands]),
            "bypass": OneLine([DATA_SPACES[o] for o in OPERANDS if o not in operands]),
        }


def _loops(machine: Machine, workload: Workload, mappings: Mappings) -> Iterator[Yaml]:
    letters = [d for d in DIMS if d != "G" or workload.dims.G > 1]
    memory = -1
    above = ""
    for place, level in enumerate(machine.levels):
        factors = dict.fromkeys(letters, 1)
        own = zip(workload.active, mappings.factors[0, place], strict=True)
        factors.update({dim: int(factor) for dim, factor in own})
        order: list[Dim] = list(letters)
        if isinstance(level, Memory):
            memory += 1
            inner = [workload.active[at] for at in mappings.orders[0, memory]]
            order = [*inner, *(d for d in letters if d not in inner)]
            above = level.name
            yield {"target": above, "type": "temporal", **_written(factors, order)}
            continue
        if isinstance(machine.levels[place - 1], FanOut):
            above = _between(level)
            ones = _written(dict.fromkeys(letters, 1), order)
            yield {"target": above, "type": "temporal", **ones}
        split = len(letters) if level.axis == "X" else 0
        yield {"target": above, "type": "spatial", **_written(factors, order), "split": split}


def _written(factors: dict[Dim, int], order: list[Dim]) -> Yaml:
    return {"factors": " ".join(f"{d}={n}" for d, n in factors.items()), "permutation": "".join(order)}
