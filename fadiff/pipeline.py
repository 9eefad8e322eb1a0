"""The main job as a Python call: ONNX -> Graph -> Schedule -> C, YAML, report -> verified.

Heavy packages are imported inside the functions: `import fadiff` stays light.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fadiff.console import Console
from fadiff.errors import InputError
from fadiff.output import check_free, replacing_folder

if TYPE_CHECKING:
    from converter import Conversion
    from costmodel import Schedule, Target
    from costmodel.schedule_document import ScheduleDocument
    from emulator import VerifyReport
    from optimizer import SearchResult

Quantize = Literal["auto", "int8", "none"]


@dataclass(frozen=True)
class SearchOptions:
    """What to search for and how; the names and defaults of the command line."""

    method: str = "gradient"
    objective: str = "edp"
    fusion: bool = True
    profile: str = "hw"
    latency: str = "roofline"
    fusion_model: str = "sound"
    tiling: str = "ragged"
    seed: int = 0
    time_budget: float | None = None


@dataclass(frozen=True)
class ModelOptions:
    """How to read the model; calibration and test inputs are .npz files, one array per model input."""

    quantize: Quantize = "auto"
    calibration: Path | None = None
    test_inputs: Path | None = None
    dims: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class CompileResult:
    """What `compile` wrote, and what it knows about it."""

    out: Path
    document: ScheduleDocument
    verification: VerifyReport | None = None


def quiet_console() -> Console:
    """The console of a Python caller: warnings only."""
    return Console(verbosity=-1)


def compile(
    model: str | Path,
    out: str | Path,
    *,
    target: str | Path | Target = "gemmini-default",
    model_options: ModelOptions | None = None,
    search: SearchOptions | None = None,
    schedule: str | Path | None = None,
    verify: bool = False,
    force: bool = False,
    console: Console | None = None,
) -> CompileResult:
    """Convert, search and emit; `out` appears complete or not at all.

    Args:
        model: An ONNX file.
        out: Folder to make.
        target: Preset name, target file or Target.
        model_options: Quantisation, calibration, symbolic dimensions.
        search: Method, objective, profile, budget.
        schedule: A schedule.json to execute instead of searching; it brings its own target.
        verify: Also build the C for the host and run it on the functional model.
        force: Replace `out` if it is an output folder.
        console: Where progress goes; none by default.

    Raises:
        InputError, ModelError, TargetError, ScheduleError: the input cannot be used; one line says why.
    """
    model, out = Path(model), Path(out)
    console = console or quiet_console()
    options = search or SearchOptions()
    check_free(out, force=force)
    if verify and options.profile != "hw":
        raise InputError("--verify needs --profile hw: the dosa profile is for comparison and emits no C")
    if schedule is None:
        conversion = read_model(model, load(target), model_options or ModelOptions(), console)
        result = find_schedule(conversion, load(target), options, console)
        decision, document = result.schedule, describe_search(conversion, result, options)
    else:
        conversion, decision, document = given_schedule(model, Path(schedule), model_options, console)
    with replacing_folder(out, force=force) as work:
        verification = write_output(work, conversion, decision, document, verify=verify, console=console)
    return CompileResult(out, document, verification)
