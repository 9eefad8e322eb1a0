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
    from converter import Conversion as Conversion
    from converter import Graph as Graph
    from converter import ModelError as ModelError
    from converter import convert as convert
    from costmodel.group.fusion import ScheduleError as ScheduleError
    from costmodel.mapping.mapping import Mapping as Mapping
    from costmodel.schedule.evaluate import NetworkCost as NetworkCost
    from costmodel.schedule.evaluate import evaluate as evaluate
    from costmodel.schedule.schedule import Schedule as Schedule
    from costmodel.schedule.serialize import read_document as read_document
    from costmodel.schedule.serialize import schedule_from_document as schedule_from_document
    from costmodel.schedule.serialize import to_document as to_document
    from costmodel.schedule.serialize import write_document as write_document
    from costmodel.target.params_header import target_from_header as target_from_header
    from costmodel.target.target import Target as Target
    from costmodel.target.target import TargetError as TargetError
    from costmodel.target.target import load_target as load_target
    from emulator import VerifyReport as VerifyReport
    from emulator import verify as verify
    from fadiff.errors import InputError as InputError
    from fadiff.pipeline import CompileResult as CompileResult
    from fadiff.pipeline import ModelOptions as ModelOptions
    from fadiff.pipeline import compile as compile
    from fadiff.predictor import Predictor as Predictor
    from fadiff.predictor import load as load
    from fadiff.search import SearchOptions as SearchOptions
    from optimizer import SearchResult as SearchResult
    from optimizer import optimize as optimize

_NAMES = {
    "converter": ("Conversion", "Graph", "ModelError", "convert"),
    "costmodel.group.fusion": ("ScheduleError",),
    "costmodel.mapping.mapping": ("Mapping",),
    "costmodel.schedule.evaluate": ("NetworkCost", "evaluate"),
    "costmodel.schedule.schedule": ("Schedule",),
    "costmodel.schedule.serialize": (
        "read_document",
        "schedule_from_document",
        "to_document",
        "write_document",
    ),
    "costmodel.target.params_header": ("target_from_header",),
    "costmodel.target.target": ("Target", "TargetError", "load_target"),
    "emulator": ("VerifyReport", "verify"),
    "fadiff.errors": ("InputError",),
    "fadiff.pipeline": ("CompileResult", "ModelOptions", "compile"),
    "fadiff.predictor": ("Predictor", "load"),
    "fadiff.search": ("SearchOptions",),
    "optimizer": ("SearchResult", "optimize"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
if not TYPE_CHECKING:
    __all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("fadiff")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return ["__version__", *sorted(_HOME)]
