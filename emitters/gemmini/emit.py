"""Writes the firmware folder: C, header, weights, memory map, test vectors, Makefile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Mapping as MappingABC
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fadiff.converter.ir.graph import Graph, Tensor, TensorCoreLayer
from fadiff.costmodel.group.allocation import align
from fadiff.costmodel.group.resident_tensors import lifetimes, resident_tensors
from fadiff.costmodel.schedule.clock import program_cycles
from fadiff.costmodel.schedule.evaluate import NetworkCost, evaluate
from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.costmodel.target.target import target_yaml
from fadiff.emitters.gemmini.constants import C_TYPES, INTERFACE_VERSION, STACK_BYTES
from fadiff.emitters.gemmini.errors import EmitError
from fadiff.emitters.gemmini.functions import FunctionPrinter
from fadiff.emitters.gemmini.layer_checks import layer_checks
from fadiff.emitters.gemmini.memory_map import memory_map
from fadiff.emitters.gemmini.plan import FirmwarePlan, plan_firmware
from fadiff.emitters.gemmini.run import parameters
from fadiff.emitters.gemmini.skeletons import render
from fadiff.emitters.gemmini.weights import BlobSums, WeightBlob
from fadiff.emitters.memory_map import MEMORY_MAP, MemoryMap, memory_map_json

_RUNTIME = Path(__file__).parent / "runtime"
"""C that every firmware brings: host operators, the console of simulators."""


_ZEPHYR = ("module.yml", "CMakeLists.txt", "Kconfig")


def emit(
    schedule: Schedule,
    *,
    model_name: str,
    out_dir: Path,
    test_vectors: MappingABC[str, np.ndarray] | None = None,
    later_steps: Sequence[MappingABC[str, np.ndarray]] = (),
    library_calls: bool = False,
    generator: str = "FADiff",
) -> Path:
    """Write the firmware of a schedule of profile hw into the folder `out_dir`; returns it.

    `test_vectors` has one array in storage order per argument and result (expected values); without it the
    vectors are zero and main.c reports a difference.  Outputs of layers that it has besides can be compared
    on the device.  `later_steps` are vectors of the runs that follow, for graphs with states.
    `library_calls` runs unfused layers through the automatically
    tiled functions of gemmini.h instead of the schedule's loop nests: for comparison, their traffic is
    not what the schedule predicts.  `generator` is the program and version that the files name.

    Raises:
        EmitError: a schedule that this backend cannot express, naming the layer.
    """
    require_target(schedule)
    plan = plan_firmware(schedule, model_name, library_calls)
    folder = Path(out_dir)
    sums = write_blob(folder, plan.model, plan.memory.weights)
    write_files(folder, firmware_files(plan, test_vectors or {}, later_steps, generator, sums))
    return folder


def write_blob(folder: Path, model: str, blob: WeightBlob) -> BlobSums:
    """Make the folder and put the weights into it, if there are any."""
    folder.mkdir(parents=True, exist_ok=True)
    return blob.write(folder / f"{model}_weights.bin") if blob.nbytes else BlobSums()


def write_files(folder: Path, files: MappingABC[str, str | bytes]) -> None:
    """Text and bytes by name."""
    for name, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)


def require_target(schedule: Schedule) -> None:
    """Raises EmitError where the schedule's graph is none for its target."""
    graph, target = schedule.graph, schedule.target
    if graph.element_type != target.element_type:
        raise EmitError(
            f"{graph.name}: its tensors are {graph.element_type}, but target {target.name} "
            f"computes in {target.element_type}: convert the model for this target"
        )
    adds = [layer.name for layer in graph.layers if layer.op == "add"]
    if adds and target.accumulator_rows < 2 * target.side:
        raise EmitError(
            f"layer {adds[0]}: an addition needs {2 * target.side} accumulator rows, "
            f"target {target.name} has {target.accumulator_rows}: give it accumulator_bytes of at least "
            f"{8 * target.side**2}"
        )


def firmware_files(
    plan: FirmwarePlan,
    test_vectors: MappingABC[str, np.ndarray],
    later_steps: Sequence[MappingABC[str, np.ndarray]],
    generator: str,
    sums: BlobSums,
) -> dict[str, str | bytes]:
    """Content of every file but the weights, by name."""
    graph, model = plan.schedule.graph, plan.model
    vectors, places = pack_vectors(graph, [test_vectors, *later_steps])
    document = memory_map(plan)
    values = program_values(plan, generator, places) | {
        "guard": f"{model.upper()}_H",
        "weight_crc32": sums.crc32,
        "weight_sha256": sums.sha256,
        "vector_bytes": len(vectors),
        "steps": 1 + len(later_steps),
        "step_bytes": len(vectors) // (1 + len(later_steps)),
        "states": [
            descriptor(graph.tensors[state.input], plan.memory.tensors[state.input].offset)
            for state in graph.states
        ],
    }
    programs = program_files(plan, values)
    return {
        **programs,
        **checks_file(plan, values, document, test_vectors),
        "main.c": render("main.c.j2", **values),
        **library_files(values, programs),
        "test_vectors.bin": vectors,
        MEMORY_MAP: memory_map_json(document),
        "target.yaml": target_yaml(plan.schedule.target),
    }


def program_values(plan: FirmwarePlan, generator: str, places: MappingABC[str, int]) -> dict[str, Any]:
    """What skeletons say of one program; `places` are those of arguments and results in its test vectors."""
    schedule, memory = plan.schedule, plan.memory
    graph = schedule.graph
    cost = evaluate(schedule)
    printer = FunctionPrinter(plan, cost)
    functions = printer.print()
    return {
        "banner": banner(plan.model, schedule, generator),
        "generator": plain(generator),
        "sha256": graph.sha256 or "unknown",
        "target_name": plain(schedule.target.name),
        "model": plan.model,
        "owner": plan.owner,
        "target": schedule.target,
        "arena_bytes": memory.arena.nbytes,
        "live_bytes": memory.arena.lower_bound,
        "tile_buffer_bytes": memory.tile_buffer_bytes,
        "weight_bytes": memory.weights.nbytes,
        "state_bytes": memory.state_bytes,
        "headers": sorted(printer.headers),
        "is_float": schedule.target.element_type == "float32",
        "functions": functions,
        "needs_row_packing": any(layer.form.repeats > 1 for layer in plan.layers.values()),
        "needs_full_width": bool(memory.psums),
        "needs_normalizations": any(layer.form.layer.polynomial for layer in plan.layers.values()),
        "inputs": [descriptor(graph.tensors[name], places[name]) for name in graph.arguments],
        "outputs": [descriptor(graph.tensors[name], places[name]) for name in graph.results],
        "has_parts": any(graph.tensors[name].along for name in (*graph.arguments, *graph.results)),
        "layer_count": len(graph.layers),
        "interface_version": INTERFACE_VERSION,
        "stack_bytes": STACK_BYTES,
        "signature": parameters(graph),
        "arguments": ", ".join(
            [f"input{i}" for i in range(len(graph.arguments))]
            + [f"output{i}" for i in range(len(graph.results))]
        ),
        "packs_rows": any(layer.form.repeats > 1 for layer in plan.layers.values()),
        "arena_rows": [
            f"{memory.arena.offsets[b.name]:>10} {b.nbytes:>10} {b.first:>4} {b.last:>4}  {plain(b.name)}"
            for b in memory.arena.blocks
        ],
        "tile_buffer_rows": _tile_buffer_rows(plan),
        "weight_rows": [
            f"{offset:>10} {memory.weights.sizes[name]:>10}  {plain(name)}"
            for name, offset in memory.weights.offsets.items()
        ],
        "layer_rows": _layer_rows(plan),
        "layers": _layer_figures(plan, cost),
        "states": bool(graph.states),
        "state_rows": [
            f"{memory.tensors[name].offset:>10} {graph.tensors[name].nbytes:>10}  {plain(name)}"
            for state in graph.states
            for name in (state.input, state.output)
        ],
    }


def program_files(plan: FirmwarePlan, values: MappingABC[str, Any]) -> dict[str, str]:
    """The sources of one program."""
    return {
        f"{plan.model}.h": render("model.h.j2", **values),
        f"{plan.model}.c": render("model.c.j2", **values),
        f"{plan.model}_layers.c": render("layers.c.j2", **values),
        f"{plan.model}_self_test.c": render("self_test.c.j2", **values),
    }


def checks_file(
    plan: FirmwarePlan,
    values: MappingABC[str, Any],
    document: MemoryMap,
    vectors: MappingABC[str, np.ndarray],
) -> dict[str, str]:
    """What layers leave in memory for `vectors`, which main.c compares on demand."""
    checks = layer_checks(document, vectors, exact=plan.schedule.target.element_type == "int8")
    known = {**values, "checks": [replace(check, tensor=plain(check.tensor)) for check in checks]}
    known["guard"] = f"{plan.model.upper()}_LAYER_CHECKS_H"
    return {f"{plan.model}_layer_checks.h": render("layer_checks.h.j2", **known)}


def library_files(values: MappingABC[str, Any], programs: Iterable[str]) -> dict[str, str | bytes]:
    """What makes a library of programs and their weights, and what every firmware brings."""
    model = values["model"]
    known = {
        **values,
        "sources": [name for name in programs if name.endswith(".c")],
        "public": [name for name in programs if name.endswith(".h")],
    }
    weights = {f"{model}_weights.S": render("weights.S.j2", **known)} if values["weight_bytes"] else {}
    return {
        **weights,
        **{f"runtime/{file.name}": file.read_bytes() for file in sorted(_RUNTIME.glob("*.[ch]"))},
        "Makefile": render("Makefile.j2", **known),
        "CMakeLists.txt": render("CMakeLists.txt.j2", **known),
        **{f"zephyr/{name}": render(f"zephyr/{name}.j2", **known) for name in _ZEPHYR},
        "test_vectors.h": render("test_vectors.h.j2", **{**known, "guard": "TEST_VECTORS_H"}),
    }


def _layer_figures(plan: FirmwarePlan, cost: NetworkCost) -> list[dict[str, Any]]:
    """What the table of layers says of each."""
    cycles = program_cycles(plan.schedule)
    return [
        {
            "op": layer.op,
            "name": plain(layer.name),
            "nodes": plain(", ".join(layer.onnx_nodes)),
            "macs": layer.macs if isinstance(layer, TensorCoreLayer) else 0,
            "dram_bytes": cost.by_name[layer.name].total_bytes("dram"),
            "tile_buffer_bytes": cost.by_name[layer.name].total_bytes("tile-buffer"),
            "cycles": round(cycles[layer.name]),
        }
        for layer in plan.schedule.graph.layers
    ]


def _tile_buffer_rows(plan: FirmwarePlan) -> list[str]:
    """Boxes of fused tensors, each while its group runs, and resident tensors."""
    graph, memory, groups = plan.schedule.graph, plan.memory, plan.schedule.groups
    spans = lifetimes(graph, groups, resident_tensors(groups))
    rows = []
    for step, group in enumerate(plan.groups):
        for name in (o for member in group.group.layers for o in graph.by_name[member].outputs):
            if name in memory.boxes:
                rows.append((memory.boxes[name], step, step, f"{name} (tiles)"))
            elif name in group.group.resident_tensors:
                rows.append((memory.tensors[name], *spans[name], name))
    return [
        f"{place.offset:>10} {place.nbytes:>10} {first:>4} {last:>4}  {plain(name)}"
        for place, first, last, name in rows
    ]


def _layer_rows(plan: FirmwarePlan) -> list[str]:
    rows = []
    for index, layer in enumerate(plan.schedule.graph.layers):
        outputs = []
        for name in layer.outputs:
            place = plan.memory.tensors.get(name)
            at = "never whole" if place is None else f"{place.symbol.replace('_', ' ')} {place.offset}"
            if place is not None and place.symbol == "output":
                at = f"output{place.index}"
            outputs.append(f"{name} ({at})")
        rows.append(plain(f"{index:>4}  {layer.op}  {layer.name}: {', '.join(outputs)}"))
    return rows


def banner(model: str, schedule: Schedule, generator: str) -> str:
    """The comment above every file."""
    graph, target = schedule.graph, schedule.target
    return "\n".join(
        (
            f"/* {model}: generated by {plain(generator)} from {plain(graph.name)}.",
            f" * Model sha256 {graph.sha256 or 'unknown'}; target {plain(target.name)}.",
            " * The generated files are yours: no licence of the generator applies to them. */",
        )
    )


def plain(text: str) -> str:
    """A name inside a C comment or string: printable, no quotes, no comment ends."""
    safe = "".join(c if c.isprintable() and c.isascii() and c not in '"\\' else "_" for c in text)
    return safe.replace("*/", "*_").replace("/*", "/_").replace("//", "/_")


def descriptor(tensor: Tensor, vector_offset: int) -> dict[str, Any]:
    """What skeletons say of an argument, a result or a state, and where it is."""
    along = tensor.along
    scale = 0.0 if along else 1.0 if tensor.scale is None else tensor.scale
    shape = tensor.shape or (1,)
    return {
        "c_name": plain(tensor.onnx_name or tensor.name),
        "dtype": tensor.dtype,
        "ctype": C_TYPES[tensor.dtype],
        "rank": len(shape),
        "shape": ", ".join(str(n) for n in shape),
        "axes": " ".join(str(axis) for axis in tensor.onnx_axes or ()),
        "nbytes": tensor.nbytes,
        "scale_hex": f"{float(scale).hex()}f",
        "scale_decimal": f"{scale:.9e}f",
        "vector_offset": vector_offset,
        "part_axis": along and along.axis,
        "parts": [
            {"count": part.count, "scale": f"{part.scale:.9e}f", "offset": f"{part.offset:.9e}f"}
            for part in (along.parts if along else ())
        ],
    }


def pack_vectors(graph: Graph, steps: Sequence[MappingABC[str, np.ndarray]]) -> tuple[bytes, dict[str, int]]:
    """Of every step arguments, then results, each aligned; zeros where no vector is given.

    Places are those of the first step.
    """
    places: dict[str, int] = {}
    parts, size = [], 0
    for vectors in steps:
        for name in (*graph.arguments, *graph.results):
            tensor = graph.tensors[name]
            array = vectors.get(name)
            content = np.zeros(tensor.shape) if array is None else np.asarray(array).reshape(tensor.shape)
            raw = content.astype(tensor.dtype).tobytes()
            places.setdefault(name, size)
            parts += [raw, bytes(align(len(raw)) - len(raw))]
            size += align(len(raw))
    return b"".join(parts), places
