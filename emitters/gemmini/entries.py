"""Writes one firmware of several entries: a function for each, weights and states in common."""

from __future__ import annotations

from collections.abc import Mapping as MappingABC
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.costmodel.target.target import target_yaml
from fadiff.emitters.gemmini.constants import INTERFACE_VERSION
from fadiff.emitters.gemmini.emit import (
    banner,
    checks_file,
    descriptor,
    library_files,
    pack_vectors,
    plain,
    program_files,
    program_values,
    require_target,
    write_blob,
    write_files,
)
from fadiff.emitters.gemmini.link import Linked, link
from fadiff.emitters.gemmini.memory_map import memory_map
from fadiff.emitters.gemmini.names import model_identifier
from fadiff.emitters.gemmini.plan import plan_firmware
from fadiff.emitters.gemmini.skeletons import render
from fadiff.emitters.gemmini.tokens import TokenProgram, prompt_programs, step_programs, token_program
from fadiff.emitters.gemmini.weights import BlobSums
from fadiff.emitters.memory_map import memory_map_json

NEW_TOKENS = 16
"""Tokens that main.c generates."""


@dataclass(frozen=True)
class Entry:
    """A function of the firmware; `steps` are its calls in one run, as `emit` takes them."""

    name: str
    schedule: Schedule
    steps: Sequence[MappingABC[str, np.ndarray]]


def map_name(entry: str) -> str:
    """The file with the memory map of an entry."""
    return f"{entry}.memory_map.json"


def emit_entries(
    entries: Sequence[Entry], *, model_name: str, out_dir: Path, generator: str = "FADiff"
) -> Path:
    """Write the firmware of schedules of profile hw, for one target, into the folder `out_dir`; returns it.

    Functions are called `<model>_<entry>_run`.  `main.c` resets the states and runs all steps in turn.

    Raises:
        EmitError: a schedule that this backend cannot express, naming the layer.
    """
    model = model_identifier(model_name)
    for entry in entries:
        require_target(entry.schedule)
    linked = link(model, [plan_firmware(e.schedule, f"{model_name}_{e.name}") for e in entries])
    folder = Path(out_dir)
    sums = write_blob(folder, model, linked.weights)
    write_files(folder, _files(entries, model, linked, generator, sums))
    return folder


def _loop(graphs: Sequence[Graph], values: Sequence[MappingABC[str, Any]]) -> dict[str, Any]:
    """What skeletons say of the entries as a language model: prompts by size, and those that take one token
    at a time by the rows that they see; nothing where they are none, or their scores have no common scale."""
    found = [token_program(graph) for graph in graphs]
    last = found[-1]
    if last is None or last.count != 1:
        return {}
    known, programs = [], []
    for graph, program, of_entry in zip(graphs, found, values, strict=True):
        if program is None or program.vocabulary != last.vocabulary:
            return {}
        call = [_argument(program, name) for name in graph.arguments]
        masks = [graph.tensors[name].size for name in program.masks]
        known.append({**of_entry, "program": program, "call": call, "masks": masks})
        programs.append(program)
    if len({values_of["outputs"][0]["scale_hex"] for values_of in known}) > 1:
        return {}
    steps = step_programs(programs)
    return {
        "steps": [known[number] for number in steps],
        "prompts": [known[number] for number in prompt_programs(programs)],
        "context": programs[steps[-1]].context,
    }


def _argument(program: TokenProgram, name: str) -> str:
    """What the loop calls an argument of an entry."""
    if name in program.masks:
        return f"mask{program.masks.index(name)}"
    return "given" if name == program.tokens else "places"


def _files(
    entries: Sequence[Entry], model: str, linked: Linked, generator: str, sums: BlobSums
) -> dict[str, str | bytes]:
    """Content of every file but the weights, by name."""
    programs: dict[str, str] = {}
    maps: dict[str, str] = {}
    checks: dict[str, str] = {}
    values: list[dict[str, Any]] = []
    vectors = b""
    for entry, plan in zip(entries, linked.plans, strict=True):
        steps, places = pack_vectors(entry.schedule.graph, entry.steps)
        of_entry = program_values(plan, generator, places) | {"guard": f"{plan.model.upper()}_H"}
        programs |= program_files(plan, of_entry)
        document = memory_map(plan)
        maps[map_name(entry.name)] = memory_map_json(document)
        checks |= checks_file(plan, of_entry, document, entry.steps[0])
        calls = {
            "steps": len(entry.steps),
            "first": len(vectors),
            "step_bytes": len(steps) // len(entry.steps),
        }
        values.append(of_entry | calls | {"entry": plain(entry.name)})
        vectors += steps
    target = entries[0].schedule.target
    shared: dict[str, Any] = {
        "banner": banner(model, entries[0].schedule, generator),
        "generator": plain(generator),
        "guard": f"{model.upper()}_H",
        "model": model,
        "entries": values,
        "outputs": [output for entry in values for output in entry["outputs"]],
        "target": target,
        "target_name": plain(target.name),
        "interface_version": INTERFACE_VERSION,
        "is_float": target.element_type == "float32",
        "arena_bytes": linked.arena_bytes,
        "tile_buffer_bytes": linked.tile_buffer_bytes,
        "weight_bytes": linked.weights.nbytes,
        "weight_crc32": sums.crc32,
        "weight_sha256": sums.sha256,
        "state_bytes": linked.state_bytes,
        "states": [descriptor(tensor, offset) for tensor, offset in linked.states],
        "vector_bytes": len(vectors),
    }
    programs |= {
        f"{model}.h": render("entries.h.j2", **shared),
        f"{model}.c": render("entries.c.j2", **shared),
    }
    loop = _loop([entry.schedule.graph for entry in entries], values)
    if loop:
        for ending in ("h", "c"):
            programs[f"{model}_generate.{ending}"] = render(f"generate.{ending}.j2", **shared, **loop)
    return {
        **programs,
        "main.c": render("entries_main.c.j2", **shared, **loop, new_tokens=NEW_TOKENS),
        **library_files(shared, programs),
        "test_vectors.bin": vectors,
        **checks,
        **maps,
        "target.yaml": target_yaml(target),
    }
