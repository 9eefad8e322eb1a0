"""`map_model`: Timeloop mappings of a network for a machine that need not be a Gemmini."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fadiff.console import Console
from fadiff.errors import naming
from fadiff.output import check_free, replacing_folder

if TYPE_CHECKING:
    from fadiff.costmodel.nests.machine import Machine
    from fadiff.optimizer.cut.partition import Objective
    from fadiff.optimizer.mapping_methods import MethodName
    from fadiff.optimizer.nests.network import MappedNetwork


def map_model(
    model: str | Path,
    arch: str | Path | Machine,
    out: str | Path | None = None,
    *,
    constraints: Sequence[str | Path] = (),
    ert: str | Path | None = None,
    sizes: Mapping[str, int] | None = None,
    objective: Objective = "edp",
    method: MethodName = "auto",
    time_budget: float | None = None,
    fusion: bool = True,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    console: Console | None = None,
) -> MappedNetwork:
    """Map every product of an ONNX model onto a machine that Timeloop describes.

    Args:
        model: ONNX file.
        arch: Timeloop architecture (v0.2 to v0.4), a shipped machine's name, or a machine.
        out: Folder to make, with what timeloop-model runs, a table and a report.
        constraints: Further files of Timeloop constraints.
        ert: Energy reference table.
        sizes: Other sizes of the machine, by the names of `costmodel.nests.sizes`: {"buffer.entries": 65536}.
        objective: What is minimised.
        method: How layers are searched.
        time_budget: Seconds of the whole search; None: until restarts find nothing better.
        fusion: Whether layers may hand tensors over on chip.
        seed: Seed of the search.
        dims: Sizes of symbolic dimensions.
        inputs: Tensors at which to begin.
        outputs: Tensors at which to end.
        console: Where progress goes.

    Raises:
        ModelError, UnsupportedError: the model cannot be read.
        TimeloopFormatError, MachineError: the machine cannot be read, or a layer does not fit it.
        InputError: the folder is there already.
    """
    from fadiff.converter import Cut, convert
    from fadiff.costmodel.nests.machine import Machine
    from fadiff.costmodel.nests.sizes import resized
    from fadiff.emitters.report.machine import machine_report
    from fadiff.emitters.timeloop.machines import machine_of
    from fadiff.emitters.timeloop.write.layers import write_layers
    from fadiff.optimizer.mapping_methods import MapOptions

    console, file = console or Console(verbosity=-1), Path(model)
    folder = None if out is None else Path(out)
    if folder is not None:
        check_free(folder, force=None)
    named = arch.name if isinstance(arch, Machine) else str(arch)
    with naming(named):
        machine = arch if isinstance(arch, Machine) else machine_of(named, _paths(constraints), _path(ert))
        machine = resized(machine, sizes) if sizes else machine
    with console.stage(f"reading {file.name}"):
        conversion = convert(
            file,
            calibrate=False,
            dims=dims or {},
            cut=Cut(tuple(inputs), tuple(outputs)),
            progress=console.update,
        )
    options = MapOptions(objective, method, time_budget, fusion, seed)
    with naming(named), console.stage(f"mapping onto {machine.name}", time_budget):
        found = options.search(conversion.graph, machine, console.update)
    if folder is not None:
        with replacing_folder(folder, force=None) as made:
            write_layers(found, conversion.graph.name, made)
            page = machine_report(found, conversion.graph.name)
            (made / "report.html").write_text(page, encoding="utf-8")
    return found


def _paths(files: Sequence[str | Path]) -> list[Path]:
    return [Path(file) for file in files]


def _path(file: str | Path | None) -> Path | None:
    return None if file is None else Path(file)
