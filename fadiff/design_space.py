"""A hardware design space in YAML, and what every point of it costs.

base: gemmini-default            # preset or target .yaml
vary:                            # every combination is one design
  side: [8, 16, 32]
  scratchpad_bytes: [131072, 262144]
  bandwidth.dram_bytes: [8, 16]
search:                          # optional; names and defaults of `fadiff compile`
  method: auto
  time_budget: 5
area:                            # optional, for `fadiff codesign`: constants of optimizer.codesign.area
  dram_byte: 0.05
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
from fadiff.converter.printable import printable
from fadiff.costmodel.target.record import Record
from fadiff.costmodel.target.text_file import load_yaml
from fadiff.costmodel.target.validation import one_line
from fadiff.errors import InputError, is_bad_input
from fadiff.optimizer.codesign.area import Area
from fadiff.workers import WorkerDied

if TYPE_CHECKING:
    from fadiff.converter.ir.graph import Graph
    from fadiff.costmodel.target.target import Target
    from fadiff.search import SearchOptions


MOST_DESIGNS = 100_000


class DesignSpace(Record):
    """The YAML file; what is infinite is a design that cannot exist."""

    model_config = ConfigDict(allow_inf_nan=True)

    base: str
    vary: dict[str, list[int | float | bool | str]] = Field(min_length=1)
    search: dict[str, Any] = Field({})
    area: Area = Area()


@dataclass(frozen=True)
class Design:
    """One point: what it changes, and the hardware; None, with the problem, if it cannot exist."""

    changes: dict[str, int | float | bool | str]
    target: Target | None
    problem: str = ""


@dataclass(frozen=True)
class Result:
    """What one model costs on one design; None, with the problem, where that is not known."""

    edp_uj_cycles: float | None = None
    energy_uj: float | None = None
    latency_cycles: float | None = None
    problem: str = ""
    layers: int = 0
    """Layers, at their places in groups, that the search had to solve,"""
    known: int = 0
    """and those of them that an earlier search had solved."""

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


def named_search(options: Mapping[str, Any], path: Path) -> SearchOptions:
    """Options of a search by their names in Python, without those settled after it.

    Raises:
        InputError: `path` names one that there is not, or gives it a wrong value.
    """
    from fadiff.search import SearchOptions

    kinds = get_type_hints(SearchOptions)
    del kinds["prefetch"]
    for name, value in options.items():
        if name not in kinds:
            raise InputError(f"{path}: search.{name}: unknown option; choose from {', '.join(kinds)}")
        if problem := _problem(value, kinds[name]):
            raise InputError(f"{path}: search.{name}: {problem}")
    return SearchOptions(**options)


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


def base_target(space: DesignSpace, path: Path) -> Target:
    """The target that designs vary: a file beside the one that describes the space, or a preset.

    Raises:
        TargetError: there is none, or it cannot be used.
    """
    from fadiff.costmodel.target.target import load_target

    beside = path.parent / space.base
    return load_target(beside if beside.is_file() else space.base)


def designs(space: DesignSpace, path: Path) -> Iterator[Design]:
    """Every combination, in the order of the file.

    Raises:
        InputError: the base is unknown, or `vary` names a field that targets do not have.
    """
    from fadiff.costmodel.target.target import Target

    base = base_target(space, path)
    for field in space.vary:
        _check_field(field, path)
    for values in itertools.product(*space.vary.values()):
        changes = dict(zip(space.vary, values, strict=True))
        try:
            yield Design(changes, base.changed(_name(space.base, changes), changes))
        except ValidationError as error:
            yield Design(changes, None, one_line(error, Target))


def _check_field(field: str, path: Path) -> None:
    from fadiff.costmodel.target.target import Bandwidth, Energy, Target

    known = {*Target.model_fields, *(f"energy.{f}" for f in Energy.model_fields)}
    known |= {f"bandwidth.{f}" for f in Bandwidth.model_fields}
    if field not in known - {"name", "energy", "bandwidth"}:
        raise InputError(f"{path}: vary.{field}: targets have no such field; see `fadiff targets show NAME`")


def _name(base: str, changes: dict[str, int | float | bool | str]) -> str:
    return "-".join(
        [Path(base).stem, *(f"{field.rpartition('.')[2]}{value}" for field, value in changes.items())]
    )


def key(model: Path, design: Design, search: SearchOptions, dims: Mapping[str, int]) -> str:
    """What tells a point of a sweep from all others, also in a later sweep: 16 hexadecimal digits.

    Raises:
        InputError: the model cannot be read.
    """
    try:
        content = hashlib.sha256(model.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"{model}: {error.strerror}: give the path of an ONNX model") from error
    hardware = design.target.model_dump(mode="json") if design.target else design.changes
    parts = (version("fadiff"), model.stem, content, hardware, asdict(search), dict(dims))
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def explore(graph: Graph, design: Design, search: SearchOptions, cache: Path | None = None) -> Result:
    """Search one model on one design; `cache` is a file of layers that other searches solved.

    Raises:
        Exception: what the search raises, also where the model does not fit.
    """
    from fadiff.console import Console
    from fadiff.optimizer.layer.solved import SolvedLayers
    from fadiff.search import find_schedule

    if design.target is None:
        return Result(problem=design.problem)
    with SolvedLayers(cache) as solved:
        cost = find_schedule(graph, design.target, search, Console(verbosity=-1), solved=solved).cost
    energy_uj = cost.energy_pj * 1e-6
    return Result(cost.edp_uj_cycles, energy_uj, cost.latency_cycles, layers=solved.asked, known=solved.found)


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
