"""FADiff: ONNX model to schedule, Gemmini C and Timeloop mappings.

    import fadiff
    result = fadiff.compile("resnet18.onnx", "build/resnet18", target="gemmini-large", verify=True)
    print(result.document.totals.edp_uj_cycles)

Names are imported on first use, so that `import fadiff` loads neither torch nor onnx.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fadiff.api.accuracy import Accuracy as Accuracy
    from fadiff.api.accuracy import accuracy as accuracy
    from fadiff.api.codesign import Codesign as Codesign
    from fadiff.api.codesign import codesign as codesign
    from fadiff.api.comparison import Comparison as Comparison
    from fadiff.api.comparison import compare as compare
    from fadiff.api.difference import Difference as Difference
    from fadiff.api.difference import diff as diff
    from fadiff.api.evaluation import evaluate as evaluate
    from fadiff.api.inspection import Inspection as Inspection
    from fadiff.api.inspection import inspect as inspect
    from fadiff.api.mapping import map_model as map_model
    from fadiff.api.measurement import measure as measure
    from fadiff.api.sweep import Sweep as Sweep
    from fadiff.api.sweep import sweep as sweep
    from fadiff.console import Console as Console
    from fadiff.converter import Conversion as Conversion
    from fadiff.converter import Graph as Graph
    from fadiff.converter import ModelError as ModelError
    from fadiff.converter import convert as convert
    from fadiff.costmodel.group.fusion import ScheduleError as ScheduleError
    from fadiff.costmodel.mapping.mapping import Mapping as Mapping
    from fadiff.costmodel.schedule.evaluate import NetworkCost as NetworkCost
    from fadiff.costmodel.schedule.schedule import Schedule as Schedule
    from fadiff.costmodel.schedule.serialize import read_document as read_document
    from fadiff.costmodel.schedule.serialize import schedule_from_document as schedule_from_document
    from fadiff.costmodel.schedule.serialize import to_document as to_document
    from fadiff.costmodel.schedule.serialize import write_document as write_document
    from fadiff.costmodel.target.params_header import target_from_header as target_from_header
    from fadiff.costmodel.target.target import Target as Target
    from fadiff.costmodel.target.target import TargetError as TargetError
    from fadiff.costmodel.target.target import load_target as load_target
    from fadiff.emulator import VerifyReport as VerifyReport
    from fadiff.entries import EntriesResult as EntriesResult
    from fadiff.entries import Entry as Entry
    from fadiff.entries import compile_entries as compile_entries
    from fadiff.errors import InputError as InputError
    from fadiff.generation import top_k as top_k
    from fadiff.optimizer import SearchResult as SearchResult
    from fadiff.optimizer import optimize as optimize
    from fadiff.pipeline import CompileResult as CompileResult
    from fadiff.pipeline import ModelOptions as ModelOptions
    from fadiff.pipeline import compile as compile
    from fadiff.pipeline import verify as verify
    from fadiff.predictor import Predictor as Predictor
    from fadiff.predictor import load as load
    from fadiff.search import SearchOptions as SearchOptions

if (Path(__file__).parent / "converter").is_file():
    raise ImportError(
        f"{Path(__file__).parent} has files where symbolic links should be: clone with "
        "`git clone -c core.symlinks=true` (on Windows: in developer mode), or install the wheel"
    )

_NAMES = {
    "fadiff.api.accuracy": ("Accuracy", "accuracy"),
    "fadiff.api.codesign": ("Codesign", "codesign"),
    "fadiff.api.comparison": ("Comparison", "compare"),
    "fadiff.api.difference": ("Difference", "diff"),
    "fadiff.api.evaluation": ("evaluate",),
    "fadiff.api.inspection": ("Inspection", "inspect"),
    "fadiff.api.mapping": ("map_model",),
    "fadiff.api.measurement": ("measure",),
    "fadiff.api.sweep": ("Sweep", "sweep"),
    "fadiff.console": ("Console",),
    "fadiff.converter": ("Conversion", "Graph", "ModelError", "convert"),
    "fadiff.costmodel.group.fusion": ("ScheduleError",),
    "fadiff.costmodel.mapping.mapping": ("Mapping",),
    "fadiff.costmodel.schedule.evaluate": ("NetworkCost",),
    "fadiff.costmodel.schedule.schedule": ("Schedule",),
    "fadiff.costmodel.schedule.serialize": (
        "read_document",
        "schedule_from_document",
        "to_document",
        "write_document",
    ),
    "fadiff.costmodel.target.params_header": ("target_from_header",),
    "fadiff.costmodel.target.target": ("Target", "TargetError", "load_target"),
    "fadiff.emulator": ("VerifyReport",),
    "fadiff.entries": ("EntriesResult", "Entry", "compile_entries"),
    "fadiff.errors": ("InputError",),
    "fadiff.pipeline": ("CompileResult", "ModelOptions", "compile", "verify"),
    "fadiff.generation": ("top_k",),
    "fadiff.predictor": ("Predictor", "load"),
    "fadiff.search": ("SearchOptions",),
    "fadiff.optimizer": ("SearchResult", "optimize"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
if not TYPE_CHECKING:
    __all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("fadiff")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return ["__version__", *sorted(_HOME)]
