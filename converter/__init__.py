"""The front end: an ONNX model becomes a Graph of N K C P Q R S layers.

`pipeline.convert` is the entry.  Rooms, each needing only those before it: `ir` (representations),
`read` (file to float model), `rewrites` and `plan` (what becomes one layer), `decompose` (operators in
terms of others, those of ONNX Runtime too), `quantise` (integers), `lower` (operators to layers), `check`
(what the C must compute).

All but errors is imported on first use: `convert` loads onnx and onnxruntime, the graph NumPy.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fadiff.converter.errors import ModelError, Unsupported, UnsupportedError

if TYPE_CHECKING:
    from fadiff.converter.check.reference import integer_reference
    from fadiff.converter.ir.graph import Graph, HostLayer, Tensor, TensorCoreLayer, View
    from fadiff.converter.ir.recurrence import State
    from fadiff.converter.pipeline import Conversion, convert
    from fadiff.converter.read.cut import Cut

# Read when ONNX Runtime is loaded; without it the Linux wheel of 1.31 reports its use to Microsoft.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__all__ = [
    "Conversion",
    "Cut",
    "Graph",
    "HostLayer",
    "ModelError",
    "State",
    "Tensor",
    "TensorCoreLayer",
    "Unsupported",
    "UnsupportedError",
    "View",
    "convert",
    "integer_reference",
]

_LAZY = {
    "Conversion": "fadiff.converter.pipeline",
    "Cut": "fadiff.converter.read.cut",
    "convert": "fadiff.converter.pipeline",
    "State": "fadiff.converter.ir.recurrence",
    "integer_reference": "fadiff.converter.check.reference",
    **dict.fromkeys(("Graph", "HostLayer", "Tensor", "TensorCoreLayer", "View"), "fadiff.converter.ir.graph"),
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
