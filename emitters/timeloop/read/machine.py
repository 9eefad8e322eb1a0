"""A machine from Timeloop's files, v0.2 to v0.4: native (`subtree`) or front-end (`nodes`) dialect.

What is read: memories, fan-outs, bandwidths, constraints of loops and operands, energies (an ERT, or
`read_energy`, `write_energy`, `update_energy`, `compute_energy` among a component's attributes).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from fadiff.costmodel.nests.machine import (
    DATA_SPACES,
    OPERANDS,
    FanOut,
    Level,
    Machine,
    MachineError,
    Memory,
    Operand,
)
from fadiff.emitters.timeloop.read.constraints import KEYS, Limits, limits_of, targets
from fadiff.emitters.timeloop.read.yaml_lines import Entry, TimeloopFormatError, read_entries, read_root

BUFFERS = ("DRAM", "SRAM", "regfile", "smartbuffer", "storage", "register")
MULTIPLIERS = ("mac", "compute")
"""Parts of class names by which Timeloop knows memories and multipliers (include/model/topology.hpp)."""
VERSIONS = ("0.2", "0.3", "0.4")
ATTRIBUTES = (
    *("word_bits", "word_width", "datawidth", "cluster_size", "width", "memory_width", "block_size"),
    *("n_words", "depth", "memory_depth", "entries", "sizeKB", "multiple_buffering", "bandwidth"),
    *("read_bandwidth", "write_bandwidth", "shared_bandwidth", "read_energy", "write_energy"),
    "update_energy",
)
"""Of a memory, those that are read; the energy estimator's own are not."""
SPREADS = "dummy_storage"
"""Class of a level that the front end puts at every fan-out."""
LIKE = 0.9
"""How alike a misspelt attribute is to the one that was meant."""
_RANGE = re.compile(r"^(?P<name>.*?)\[(?P<first>\d+)\.\.(?P<last>\d+)\]$")


@dataclass
class _Node:
    """A component or fan-out as written, outermost first."""

    entry: Entry
    name: str
    kind: str
    """Its class; `fan-out` of a container that spreads."""
    attributes: dict[str, Entry]
    mesh: tuple[int, int] = (1, 1)
    """Instances along X and Y, in all."""
    constraints: list[Entry] = field(default_factory=list)
    in_parallel: bool = False


def read_machine(architecture: Path, constraints: Sequence[Path] = (), ert: Path | None = None) -> Machine:
    """Read an architecture, with further files of constraints and a table of energies.

    Raises:
        TimeloopFormatError: an entry that is wrong, `file:line: field: what and remedy`.
        MachineError: a machine that cannot be.
    """
    entries = read_entries(architecture)
    if "architecture" not in entries:
        raise TimeloopFormatError(
            f"{architecture}:1: no `architecture:` (found {', '.join(entries)}); give a Timeloop "
            "architecture of version 0.2 to 0.4"
        )
    keys = entries["architecture"].keys()
    if "version" in keys and (version := keys["version"].text()) not in VERSIONS:
        keys["version"].fail(f"{version} is not read; write one of {', '.join(VERSIONS)}")
    if "nodes" in keys:
        nodes = list(_frontend(keys["nodes"], (1, 1), in_parallel=False))
    elif "subtree" in keys:
        nodes = list(_native(keys["subtree"], 1))
    else:
        entries["architecture"].fail("neither `nodes:` nor `subtree:`; write one (Timeloop 0.2 to 0.4)")
    for target in targets(entries):
        _attach(nodes, target)
    for file in constraints:
        listed = list(targets(read_entries(file)))
        if not listed:
            raise TimeloopFormatError(
                f"{file}: it constrains nothing; list `targets:` under `{KEYS[0]}:`, or leave it out"
            )
        for target in listed:
            _attach(nodes, target)
    energies = {} if ert is None else _energies(ert)
    return _machine(architecture, nodes, energies)


def _native(subtree: Entry, copies: int) -> Iterator[_Node]:
    for tree in subtree.items():
        keys = tree.keys()
        _, count = _name_and_count(keys["name"].text() if "name" in keys else "")
        inside = copies * count
        for local in keys["local"].items() if "local" in keys else ():
            own = local.required("a component", "name", "class")
            name, times = _name_and_count(own["name"].text())
            attributes = own["attributes"].keys() if "attributes" in own else {}
            total = attributes["instances"].positive() if "instances" in attributes else inside * times
            x = attributes["meshX"].positive() if "meshX" in attributes else total
            if total % x:
                attributes["meshX"].fail(f"{x} along X do not divide {total} instances; change one of them")
            yield _Node(local, name, own["class"].text(), attributes, (x, total // x))
        if "subtree" in keys:
            yield from _native(keys["subtree"], inside)


def _name_and_count(text: str) -> tuple[str, int]:
    found = _RANGE.match(text)
    if not found:
        return text, 1
    return found["name"], int(found["last"]) - int(found["first"]) + 1


def _frontend(nodes: Entry, mesh: tuple[int, int], *, in_parallel: bool) -> Iterator[_Node]:
    x, y = mesh
    for entry in nodes.items():
        tag = entry.node.tag.removeprefix("!")
        keys = entry.keys()
        if tag in ("Parallel", "Hierarchical", "Pipelined"):
            inside = entry.required("a group of nodes", "nodes")["nodes"]
            yield from _frontend(inside, (x, y), in_parallel=tag == "Parallel")
            continue
        if tag == "Nothing":
            continue
        if tag not in ("Container", "Component"):
            entry.fail(
                f"unknown node {entry.node.tag}; expected !Container, !Component, !Parallel or !Nothing"
            )
        name = entry.required("a node", "name")["name"].text()
        constraints = [keys["constraints"]] if "constraints" in keys else []
        if "spatial" in keys:
            spread = keys["spatial"].keys()
            for name in spread.keys() - {"meshX", "meshY"}:
                spread[name].fail(f"no {name}; a fan-out has meshX and meshY")
            x *= spread["meshX"].positive() if "meshX" in spread else 1
            y *= spread["meshY"].positive() if "meshY" in spread else 1
            yield _Node(entry, name, "fan-out", {}, (x, y), constraints)
        if tag == "Component":
            attributes = keys["attributes"].keys() if "attributes" in keys else {}
            kinds = [keys[key].text() for key in ("subclass", "class") if key in keys]
            kind = " ".join(kinds)
            yield _Node(entry, name, kind, attributes, (x, y), constraints, in_parallel)


def _attach(nodes: list[_Node], constraint: Entry) -> None:
    target = constraint.required("a constraint", "target")["target"].text()
    named = [node for node in nodes if node.name == target]
    if not named:
        constraint.fail(f"no level {target}; there are {', '.join(node.name for node in nodes)}")
    named[-1].constraints.append(constraint)


def _energies(file: Path) -> dict[str, dict[str, float]]:
    """{component: {action: pJ}} of an energy reference table."""
    tables = read_root(file, "ERT").required("an energy reference table", "tables")["tables"]
    found: dict[str, dict[str, float]] = {}
    for table in tables.items():
        keys = table.required("a table", "name", "actions")
        # (a range has dots of its own: system.PE[0..15].buffer)
        name = re.sub(r".*\.", "", re.sub(r"\[\d+\.\.\d+\]", "", keys["name"].text()))
        actions = [action.required("an action", "name", "energy") for action in keys["actions"].items()]
        found[name] = {action["name"].text(): action["energy"].number() for action in actions}
    return found


def _machine(file: Path, nodes: list[_Node], energies: Mapping[str, Mapping[str, float]]) -> Machine:
    if not nodes:
        raise MachineError("no component; list memories and a multiplier")
    multiplier = nodes[-1]
    if not any(part in multiplier.kind.lower() for part in MULTIPLIERS):
        multiplier.entry.fail(
            f"the last component must multiply: class {multiplier.kind!r} is not known; use intmac"
        )
    levels: list[Level] = []
    x, y = 1, 1
    spatial = Limits().across
    """Of the fan-out below the level read last."""
    mesh_name = file.stem
    for node in nodes:
        limits = limits_of(node.constraints)
        if node.kind == "fan-out":
            spatial, mesh_name = limits.across, node.name
        parts = [("X", node.mesh[0], x, spatial[0]), ("Y", node.mesh[1], y, spatial[1])]
        for axis, now, before, loops in parts:
            if now % before:
                node.entry.fail(f"{now} instances along {axis} under {before}: no whole number in each")
            if now > before:
                levels.append(FanOut(mesh_name, "X" if axis == "X" else "Y", now // before, loops))
        x, y = node.mesh
        if node.kind != "fan-out":
            spatial, mesh_name = limits.across, f"below {node.name}"
        if node is not multiplier and node.kind not in ("fan-out", SPREADS):
            levels.append(_memory(node, limits, energies, is_outermost=not levels))
    table = energies.get(multiplier.name, {})
    mac = _energy(multiplier, table, "compute", "compute_energy")
    bits = _number(multiplier, ("datawidth", "word_bits", "multiplier_width"), 8)
    return Machine(file.stem, tuple(levels), mac, int(bits))


def _memory(
    node: _Node, limits: Limits, energies: Mapping[str, Mapping[str, float]], *, is_outermost: bool
) -> Memory:
    if not any(part.lower() in node.kind.lower() for part in BUFFERS):
        node.entry.fail(
            f"class {node.kind!r} of {node.name} is not known; a memory is one of {', '.join(BUFFERS)}"
        )
    for name, entry in node.attributes.items():
        if name not in ATTRIBUTES and (meant := get_close_matches(name, ATTRIBUTES, 1, LIKE)):
            entry.fail(f"{name} is not read; write {meant[0]}, or leave it out")
    bits = _number(node, ("word_bits", "word_width", "datawidth"), 8)
    cluster = _number(node, ("cluster_size",), 1)
    width = _number(node, ("width", "memory_width"), math.nan)
    block = _number(node, ("block_size", "n_words"), 1 if math.isnan(width) else width / bits / cluster)
    if block != int(block):
        node.entry.fail(f"{node.name} reads {block:g} words at once; let width be a multiple of word_bits")
    depth = _number(node, ("depth", "memory_depth"), math.nan)
    words = _number(node, ("entries",), math.nan)
    if math.isnan(words):
        kilobytes = _number(node, ("sizeKB",), math.nan)
        words = depth * block if not math.isnan(depth) else kilobytes * 1024 * 8 / bits
    if math.isnan(words):
        if "dram" not in node.kind.lower():
            node.entry.fail(f"{node.name} has no size; give entries, depth or sizeKB")
        words = math.inf
    buffers = _number(node, ("multiple_buffering",), 1)
    keeps, may_keep = _kept(node, limits, is_outermost=is_outermost)
    table = energies.get(node.name, {})
    both = _number(node, ("bandwidth",), math.inf) / 2
    return Memory(
        node.name,
        keeps,
        may_keep,
        math.floor(words / buffers) if words < math.inf else words,
        int(block),
        int(cluster),
        int(bits),
        _number(node, ("read_bandwidth",), both),
        _number(node, ("write_bandwidth",), both),
        _number(node, ("shared_bandwidth",), math.inf),
        _energy(node, table, "read", "read_energy"),
        _energy(node, table, "write", "write_energy"),
        _energy(node, table, "update", "update_energy"),
        table.get("leak", 0.0),
        limits.temporal,
    )


def _kept(
    node: _Node, limits: Limits, *, is_outermost: bool
) -> tuple[frozenset[Operand], frozenset[Operand]]:
    """What it keeps and what it may: the rest where nothing is said; of parallel memories, what is said."""
    everything = frozenset(OPERANDS)
    if is_outermost:
        if limits.bypass:
            missing = ", ".join(DATA_SPACES[o] for o in OPERANDS if o in limits.bypass)
            node.entry.fail(
                f"{node.name} is outermost and bypasses {missing}, kept nowhere else; take it out of `bypass`"
            )
        return everything, frozenset()
    said = limits.keep or frozenset()
    if node.in_parallel and limits.keep is not None:
        return said, frozenset()
    return said, everything - said - limits.bypass


def _number(node: _Node, names: tuple[str, ...], default: float) -> float:
    for name in names:
        if name in node.attributes:
            found = node.attributes[name].number()
            if not found and not name.endswith("energy"):
                node.attributes[name].fail("0; give a positive number")
            return found
    return default


def _energy(node: _Node, table: Mapping[str, float], action: str, attribute: str) -> float:
    if action in table:
        return table[action]
    if action == "update" and "write" in table:
        return table["write"]
    found = _number(node, (attribute,), math.nan)
    if math.isnan(found):
        node.entry.fail(
            f"no energy of {node.name}'s {action}: give an energy reference table (--ert), or {attribute} "
            "among its attributes (pJ an access)"
        )
    return found
