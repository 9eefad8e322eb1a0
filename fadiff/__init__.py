"""FADiff: ONNX model to schedule, Gemmini C and Timeloop mappings.

    import fadiff
    result = fadiff.compile("resnet18.onnx", "build/resnet18", target="gemmini-large", verify=True)
    print(result.document.totals.edp_uj_cycles)

Names are imported on first use, so that `import fadiff` loads neither torch nor onnx.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from converter import Conversion, Graph, ModelError, convert
    from costmodel.group.fusion import ScheduleError
    from costmodel.mapping.mapping import Mapping
    from costmodel.schedule.evaluate import NetworkCost, evaluate
    from costmodel.schedule.schedule import Schedule
    from costmodel.schedule.serialize import (
        read_document,
        schedule_from_document,
        to_document,
        write_document,
    )
    from costmodel.target.params_header import target_from_header
    from costmodel.target.target import Target, TargetError, load_target
    from emulator import VerifyReport, verify
    from fadiff.errors import InputError
    from fadiff.pipeline import CompileResult, ModelOptions, compile
    from fadiff.predictor import Predictor, load
    from fadiff.search import SearchOptions
    from optimizer import SearchResult, optimize

_HOME = {
    "CompileResult": "fadiff.pipeline",
    "Conversion": "converter",
    "Graph": "converter",
    "InputError": "fadiff.errors",
    "Mapping": "costmodel.mapping.mapping",
    "ModelError": "converter",
    "ModelOptions": "fadiff.pipeline",
    "Predictor": "fadiff.predictor",
    "NetworkCost": "costmodel.schedule.evaluate",
    "Schedule": "costmodel.schedule.schedule",
    "ScheduleError": "costmodel.group.fusion",
    "SearchOptions": "fadiff.search",
    "SearchResult": "optimizer",
    "Target": "costmodel.target.target",
    "TargetError": "costmodel.target.target",
    "VerifyReport": "emulator",
    "compile": "fadiff.pipeline",
    "convert": "converter",
    "evaluate": "costmodel.schedule.evaluate",
    "load": "fadiff.predictor",
    "load_target": "costmodel.target.target",
    "optimize": "optimizer",
    "read_document": "costmodel.schedule.serialize",
    "schedule_from_document": "costmodel.schedule.serialize",
    "target_from_header": "costmodel.target.params_header",
    "to_document": "costmodel.schedule.serialize",
    "verify": "emulator",
    "write_document": "costmodel.schedule.serialize",
}

__all__ = [
    "CompileResult",
    "Conversion",
    "Graph",
    "InputError",
    "Mapping",
    "ModelError",
    "ModelOptions",
    "NetworkCost",
    "Predictor",
    "Schedule",
    "ScheduleError",
    "SearchOptions",
    "SearchResult",
    "Target",
    "TargetError",
    "VerifyReport",
    "__version__",
    "compile",
    "convert",
    "evaluate",
    "load",
    "load_target",
    "optimize",
    "read_document",
    "schedule_from_document",
    "target_from_header",
    "to_document",
    "verify",
    "write_document",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("fadiff")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
