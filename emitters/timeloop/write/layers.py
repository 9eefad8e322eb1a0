"""The mapped layers of a network as files that timeloop-model runs unchanged, with an index and a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from fadiff.costmodel.nests.count import Nests
from fadiff.costmodel.nests.machine import DATA_SPACES, OPERANDS, Machine, Memory
from fadiff.costmodel.nests.mapping import Mappings
from fadiff.costmodel.nests.workload import Workload
from fadiff.emitters.gemmini.names import c_identifier
from fadiff.emitters.layers_csv import safe_cell
from fadiff.emitters.timeloop.index import FORMAT, Index, IndexEntry, Predicted
from fadiff.emitters.timeloop.write.machine import machine_architecture, machine_mapping
from fadiff.emitters.timeloop.write.problem import problem
from fadiff.emitters.timeloop.write.script import native_script
from fadiff.emitters.timeloop.write.yaml_text import yaml_text
from fadiff.optimizer.nests.network import MappedLayer, MappedNetwork

COLUMNS = (
    "layer",
    "op",
    "dims",
    "runs",
    "macs",
    "cycles",
    "energy_pj",
    "edp_uj_cycles",
    "bound",
    "proven",
    "fused_with",
)


def write_layers(network: MappedNetwork, model: str, folder: Path) -> None:
    """Write architecture, problems, mappings, `index.yaml`, a script that runs them all, and `layers.csv`."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = network.machine
    (folder / "arch.yaml").write_text(architecture_text(machine), encoding="utf-8")
    entries = []
    for number, mapped in enumerate(network.best.layers):
        name = f"{number:03d}_{c_identifier(mapped.layer.name)[:60]}"
        about = (f"layer {mapped.layer.name}: {mapped.layer.op} {mapped.layer.dims}".replace("\n", " "),)
        files = {
            "problem": problem(mapped.layer, mapped.run.workload.dims),
            "mapping": machine_mapping(machine, mapped.run.workload, mapped.found.mapping),
        }
        for kind, content in files.items():
            (folder / f"{name}.{kind}.yaml").write_text(yaml_text(content, about), encoding="utf-8")
        entries.append(
            IndexEntry(
                layer=mapped.layer.name,
                arch="arch.yaml",
                problem=f"{name}.problem.yaml",
                mapping=f"{name}.mapping.yaml",
                runs=mapped.run.times,
                factors="perfect",
                notes=tuple(_notes(network, mapped)),
                predicted=predicted(mapped.nests(machine)),
            )
        )
    index = Index(
        format=FORMAT,
        model=model,
        target=machine.name,
        profile="dosa",
        dialect="native",
        layers=tuple(entries),
    )
    (folder / "index.yaml").write_text(yaml_text(index.model_dump(mode="json")), encoding="utf-8")
    script, text = native_script(index)
    (folder / script).write_text(text, encoding="utf-8")
    (folder / script).chmod(0o755)
    (folder / "layers.csv").write_text(_table(network), encoding="utf-8")


def architecture_text(machine: Machine) -> str:
    """A file that timeloop-model takes; what constrains a search stands only in the mappings."""
    title = f"{machine.name}: energies in pJ an access, bandwidths in words per cycle and instance"
    return yaml_text(machine_architecture(machine), (title,))


def predicted(nests: Nests) -> Predicted:
    """What timeloop-model should print of the first row; accesses that are none left out."""
    accesses = {}
    for place, memory in enumerate(nests.machine.memories):
        for operand in OPERANDS:
            counts = nests.accesses(operand, place)
            if counts is not None:
                words = [
                    int((counts.instances * n)[0]) for n in (counts.reads, counts.fills + counts.updates)
                ]
                if any(words):
                    accesses[f"{memory.name}.{DATA_SPACES[operand]}"] = (words[0], words[1])
    return Predicted(cycles=int(nests.cycles[0]), energy_pj=float(nests.energy[0]), accesses=accesses)


def _table(network: MappedNetwork) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow((*COLUMNS, *(f"{m.name}_bytes" for m in network.machine.memories), "mapping"))
    for mapped in network.best.layers:
        layer, found, run = mapped.layer, mapped.found, mapped.run
        together = next((group for group in network.best.groups if layer.name in group), ())
        fused_with = " ".join(safe_cell(name) for name in together if name != layer.name)
        cost = (mapped.cycles, f"{mapped.energy:.2f}", f"{mapped.edp:.6g}")
        known = (f"{found.bound:.6g}", found.proven, fused_with)
        about = (safe_cell(layer.name), layer.op, str(run.workload.dims), run.times, layer.macs)
        moved = (f"{nbytes:.0f}" for nbytes in mapped.traffic(network.machine).values())
        rows.writerow(
            (*about, *cost, *known, *moved, nest_text(network.machine, run.workload, found.mapping))
        )
    return text.getvalue()


def _notes(network: MappedNetwork, mapped: MappedLayer) -> Iterator[str]:
    """What Timeloop is not told of a fused layer."""
    for layers in network.best.groups:
        if mapped.layer.name in layers:
            stay = " and ".join(DATA_SPACES[operand] for operand in sorted(mapped.run.inside))
            yield (
                f"fused with {', '.join(name for name in layers if name != mapped.layer.name)}: run "
                f"{mapped.run.times} times, once per group tile; {stay} pass the outermost memory by; "
                f"the group saves {network.saved(layers):.0f} bytes there"
            )
            if mapped.run.reserved:
                yield f"{mapped.run.reserved} more words of the shared memory wait for other members"


def nest_text(machine: Machine, workload: Workload, mappings: Mappings) -> str:
    """The loops of the first row, outermost first: `DRAM: K4 P2 | GLB: C8 | PE X: K16 | ...`."""
    parts = []
    memory = -1
    for place, level in enumerate(machine.levels):
        factors = mappings.factors[0, place]
        if isinstance(level, Memory):
            memory += 1
            order, name = list(mappings.orders[0, memory][::-1]), level.name
        else:
            order, name = list(range(len(workload.active))), f"{level.name} {level.axis}"
        loops = " ".join(f"{workload.active[at]}{factors[at]}" for at in order if factors[at] > 1)
        parts.append(f"{name}: {loops}".rstrip(": ") if not loops else f"{name}: {loops}")
    return " | ".join(parts)
