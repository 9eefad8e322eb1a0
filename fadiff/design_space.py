"""A hardware design space in YAML, and what every point of it costs.

base: gemmini-default            # preset, target .yaml, machine of `fadiff map`, or Timeloop architecture
vary:                            # every combination is one design
  side: [8, 16, 32]
  scratchpad_bytes: [131072, 262144]
  bandwidth.dram_bytes: [8, 16]
search:                          # optional; names and defaults of `fadiff compile` or `fadiff map`
  method: auto
  time_budget: 5
area:                            # optional, for `fadiff codesign`: constants of optimizer.codesign.area
  dram_byte: 0.05

Sizes of a machine are `buffer.entries`, `rows.meshY`... (costmodel.nests.sizes); `constraints` and `ert` name
further files of it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, Field, ValidationError

from fadiff import errors
from fadiff.converter.names import printable
from fadiff.costmodel.nests.machine import Machine, MachineError
from fadiff.costmodel.nests.sizes import resized, sizes_of
from fadiff.costmodel.target.record import Record
from fadiff.costmodel.target.text_file import load_yaml
from fadiff.costmodel.target.validation import one_line
from fadiff.errors import InputError, is_bad_input
from fadiff.optimizer.codesign.area import Area
from fadiff.workers import WorkerDied

if TYPE_CHECKING:
    from fadiff.converter.ir.graph import Graph
    from fadiff.costmodel.target.target import Target
    from fadiff.optimizer.mapping_methods import MapOptions
    from fadiff.search import SearchOptions

    Search = SearchOptions | MapOptions


MOST_DESIGNS = 100_000


class DesignSpace(Record):
    """The YAML file; what is infinite is a design that cannot exist."""

    model_config = ConfigDict(allow_inf_nan=True)

    base: str
    vary: dict[str, list[int | float | bool | str]] = Field(min_length=1)
    search: dict[str, Any] = Field({})
    area: Area = Area()
    constraints: list[str] = Field([])
    ert: str | None = None


@dataclass(frozen=True)
class Design:
    """One point: what it changes, and the hardware; None, with the problem, if it cannot exist."""

    changes: dict[str, int | float | bool | str]
    hardware: Target | Machine | None
    problem: str = ""


@dataclass(frozen=True)
class Result:
    """What one model costs on one design; None, with the problem, where that is not known."""

    edp_uj_cycles: float | None = None
    energy_uj: float | None = None
    latency_cycles: float | None = None
    problem: str = ""

    @classmethod
    def failed(cls, error: BaseException) -> Result:
        """Of a search that did not end well."""
        known = is_bad_input(error) or isinstance(error, WorkerDied)
        said = errors.one_line(error)
        return cls(problem=printable(said if known else f"internal error: {type(error).__name__}: {said}"))

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Result:
        """Read back from a row of a table."""

        def number(name: str) -> float | None:
            return None if row[name] in ("", None) else float(row[name])

        return cls(number("edp_uj_cycles"), number("energy_uj"), number("latency_cycles"), row["problem"])


def read_space(path: Path) -> DesignSpace:
    """Read and validate the YAML file.

    Raises:
        InputError: unreadable, not YAML, or a field that does not validate.
    """
    try:
        space = DesignSpace.model_validate(load_yaml(path))
    except OSError as error:
        raise InputError(f"{path}: cannot read the design space: {error.strerror}") from error
    except ValidationError as error:
        raise InputError(f"{path}: {one_line(error, DesignSpace)}") from error
    empty = [name for name, values in space.vary.items() if not values]
    if empty:
        raise InputError(f"{path}: vary.{empty[0]}: give at least one value")
    count = math.prod(map(len, space.vary.values()))
    if count > MOST_DESIGNS:
        raise InputError(f"{path}: vary: {count:,} combinations, at most {MOST_DESIGNS:,}: leave out values")
    return space


def named_search(options: Mapping[str, Any], path: Path, base: Target | Machine) -> Search:
    """Options of a search by their names in Python.

    Raises:
        InputError: `path` names one that there is not, or gives it a wrong value.
    """
    from fadiff.optimizer.mapping_methods import MapOptions
    from fadiff.search import SearchOptions

    made = MapOptions if isinstance(base, Machine) else SearchOptions
    kinds = get_type_hints(made)
    for name, value in options.items():
        if name not in kinds:
            raise InputError(f"{path}: search.{name}: unknown option; choose from {', '.join(kinds)}")
        if problem := _problem(value, kinds[name]):
            raise InputError(f"{path}: search.{name}: {problem}")
    return made(**options)


def _problem(value: Any, kind: Any) -> str:
    """Why a field of that type cannot have the value, nothing where it can."""
    if not isinstance(value, bool | int | float | str):
        return "should be one value"
    if kind is bool:
        return "" if isinstance(value, bool) else f"{value!r} is not true or false"
    if get_origin(kind) is Literal:
        listed = ", ".join(map(repr, get_args(kind)))
        return "" if value in get_args(kind) else f"{value!r} is not one of {listed}"
    if isinstance(value, bool | str) or (kind is int and (value != int(value) or value < 0)):
        return f"{value!r} is not a number that it can have"
    return "" if kind is int or value > 0 else f"{value} is not a number of seconds"


def base_hardware(space: DesignSpace, path: Path) -> Target | Machine:
    """What designs vary: a file beside the one that describes the space, a preset, or a shipped machine.

    Raises:
        TargetError, TimeloopFormatError, MachineError: there is none, or it cannot be used.
        InputError: constraints or energies of a Gemmini.
    """
    from fadiff.costmodel.target.target import load_target
    from fadiff.emitters.timeloop.machines import machine_names, machine_of

    beside = path.parent / space.base
    if space.base in machine_names() or (beside.is_file() and _is_architecture(beside)):
        constraints = [path.parent / name for name in space.constraints]
        ert = None if space.ert is None else path.parent / space.ert
        return machine_of(space.base if not beside.is_file() else str(beside), constraints, ert)
    if space.constraints or space.ert is not None:
        raise InputError(f"{path}: constraints, ert: {space.base} is a Gemmini; only machines have them")
    return load_target(beside if beside.is_file() else space.base)


def _is_architecture(file: Path) -> bool:
    content = load_yaml(file)
    return isinstance(content, dict) and "architecture" in content


def designs(space: DesignSpace, path: Path, base: Target | Machine) -> Iterator[Design]:
    """Every combination of what `base_hardware` gave, in the order of the file.

    Raises:
        InputError: `vary` names a field that the base does not have.
    """
    for field in space.vary:
        _check_field(field, base, path)
    for values in itertools.product(*space.vary.values()):
        changes = dict(zip(space.vary, values, strict=True))
        try:
            yield Design(changes, _changed(base, space, changes))
        except (ValidationError, MachineError) as error:
            yield Design(changes, None, _said(error))


def _changed(
    base: Target | Machine, space: DesignSpace, changes: Mapping[str, int | float | bool | str]
) -> Target | Machine:
    if not isinstance(base, Machine):
        return base.changed(_name(space.base, changes), changes)
    for name, value in changes.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise MachineError(f"{name}: {value!r} is no whole number")
    return resized(base, {name: int(value) for name, value in changes.items()})


def _said(error: ValidationError | MachineError) -> str:
    from fadiff.costmodel.target.target import Target

    return one_line(error, Target) if isinstance(error, ValidationError) else str(error)


def _check_field(field: str, base: Target | Machine, path: Path) -> None:
    from fadiff.costmodel.target.target import Bandwidth, Energy, Target

    if isinstance(base, Machine):
        if field not in sizes_of(base):
            raise InputError(f"{path}: vary.{field}: {base.name} has {', '.join(sizes_of(base))}")
        return
    known = {*Target.model_fields, *(f"energy.{f}" for f in Energy.model_fields)}
    known |= {f"bandwidth.{f}" for f in Bandwidth.model_fields}
    if field not in known - {"name", "energy", "bandwidth"}:
        raise InputError(f"{path}: vary.{field}: targets have no such field; see `fadiff targets show NAME`")


def _name(base: str, changes: Mapping[str, int | float | bool | str]) -> str:
    return "-".join(
        [Path(base).stem, *(f"{field.rpartition('.')[2]}{value}" for field, value in changes.items())]
    )


def key(model: Path, design: Design, search: Search, dims: Mapping[str, int]) -> str:
    """What tells a point of a sweep from all others, also in a later sweep: 16 hexadecimal digits.

    Raises:
        InputError: the model cannot be read.
    """
    try:
        content = hashlib.sha256(model.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"{model}: {error.strerror}: give the path of an ONNX model") from error
    parts = (version("fadiff"), model.stem, content, _described(design), asdict(search), dict(dims))
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=sorted).encode()).hexdigest()[:16]


def _described(design: Design) -> Any:
    if isinstance(design.hardware, Machine):
        return asdict(design.hardware)
    return design.hardware.model_dump(mode="json") if design.hardware else design.changes


def explore(graph: Graph, design: Design, search: Search) -> Result:
    """Search one model on one design.

    Raises:
        Exception: what the search raises, also where the model does not fit.
    """
    from fadiff.console import Console
    from fadiff.optimizer.mapping_methods import MapOptions
    from fadiff.search import find_schedule

    if design.hardware is None:
        return Result(problem=design.problem)
    if isinstance(design.hardware, Machine):
        assert isinstance(search, MapOptions)
        best = search.search(graph, design.hardware).best
        return Result(best.edp, best.energy * 1e-6, best.cycles)
    assert not isinstance(search, MapOptions)
    cost = find_schedule(graph, design.hardware, search, Console(verbosity=-1)).cost
    return Result(cost.edp_uj_cycles, cost.energy_pj * 1e-6, cost.latency_cycles)


def without_weights(graph: Graph) -> Graph:
    """The same graph with constants that take no memory: all that a search in another process needs."""
    from dataclasses import replace

    import numpy as np

    tensors = {
        name: tensor
        if tensor.data is None
        else replace(tensor, data=np.broadcast_to(tensor.data.dtype.type(0), tensor.shape))
        for name, tensor in graph.tensors.items()
    }
    return replace(graph, tensors=tensors)
