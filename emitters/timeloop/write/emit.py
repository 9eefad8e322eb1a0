"""Write a schedule as Timeloop files: the same loop nests that are scored and executed."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.emitters.timeloop.index import FORMAT, Index, IndexEntry
from fadiff.emitters.timeloop.write.architecture import architecture
from fadiff.emitters.timeloop.write.frontend import frontend_architecture, frontend_mapping, frontend_problem
from fadiff.emitters.timeloop.write.mapping import mapping
from fadiff.emitters.timeloop.write.problem import problem
from fadiff.emitters.timeloop.write.script import frontend_script, native_script
from fadiff.emitters.timeloop.write.units import Unit, units_of
from fadiff.emitters.timeloop.write.yaml_text import with_hyphens, yaml_text

Dialect = Literal["native", "frontend", "both"]


def emit(schedule: Schedule, out_dir: Path, dialect: Dialect = "native", hyphenated: bool = False) -> Index:
    """Write architecture, problems, mappings, `index.yaml` and a script that runs them all.

    `native` is what the binaries read; `frontend` what timeloopfe and pytimeloop read; `both`
    writes native files into `out_dir` and the others into `out_dir/frontend`.  `hyphenated` is for
    releases before 2024-02.  The caller makes the whole folder atomic.

    Raises:
        OSError: the folder cannot be written.
    """
    units = units_of(schedule)
    if dialect == "both":
        _write(schedule, units, out_dir / "frontend", "frontend", hyphenated=False)
    return _write(schedule, units, out_dir, "frontend" if dialect == "frontend" else "native", hyphenated)


def _write(
    schedule: Schedule,
    units: tuple[Unit, ...],
    out_dir: Path,
    dialect: Literal["native", "frontend"],
    hyphenated: bool,
) -> Index:
    out_dir.mkdir(parents=True, exist_ok=True)
    native = dialect == "native"

    def write(name: str, content: object, *comments: str) -> str:
        content = with_hyphens(content) if hyphenated and native else content
        (out_dir / name).write_text(yaml_text(content, comments), encoding="utf-8")
        return name

    target = schedule.target
    describe = architecture if native else frontend_architecture
    title = f"target {target.name}: {target.side}x{target.side} processing elements"
    write(
        "arch.yaml",
        describe(target),
        title,
        "energies: pJ per word; bandwidths: words per cycle and instance",
    )
    if any(unit.uses_tile_buffer for unit in units):
        note = "for tensors that stay on chip: the cache with the tile buffer is between DRAM and scratchpad"
        write("arch.fused.yaml", describe(target, tile_buffer=True), title, note)
    entries = []
    for unit in units:
        problem_content = problem(unit.layer, unit.dims)
        about = _about(unit)
        problem_file = write(
            f"{unit.file_name}.problem.yaml",
            problem_content if native else frontend_problem(problem_content),
            *about,
        )
        mapping_file = None
        if unit.nest is not None:
            content = mapping(unit, unit.nest)
            mapping_file = write(
                f"{unit.file_name}.mapping.yaml",
                content if native else frontend_mapping(content),
                *about,
                *unit.notes,
            )
        entries.append(
            IndexEntry(
                layer=unit.layer.name,
                arch="arch.fused.yaml" if unit.uses_tile_buffer else "arch.yaml",
                problem=problem_file,
                mapping=mapping_file,
                runs=unit.runs,
                factors="none" if unit.nest is None else "perfect" if unit.nest.is_perfect else "imperfect",
                notes=unit.notes,
            )
        )
    index = Index(
        format=FORMAT,
        model=schedule.graph.name,
        target=target.name,
        profile=schedule.profile,
        dialect=dialect,
        layers=tuple(entries),
    )
    listed = index.model_dump(mode="json", exclude={"layers": {"__all__": {"predicted"}}})
    write("index.yaml", listed, "what there is to run; see docs/timeloop.md")
    script, text = native_script(index) if native else frontend_script(index)
    path = out_dir / script
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return index


def _about(unit: Unit) -> tuple[str, ...]:
    """First comment lines of a unit's files."""
    nodes = f" (ONNX: {', '.join(unit.layer.onnx_nodes)})" if unit.layer.onnx_nodes else ""
    lines = [f"layer {unit.layer.name}: {unit.layer.op} {unit.dims}{nodes}".replace("\n", " ")]
    if unit.is_fused or unit.runs > 1:
        lines.append(f"runs {unit.runs} time{'s' if unit.runs > 1 else ''}, once per group tile of this size")
    return tuple(lines)
