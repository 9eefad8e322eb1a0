"""Functional model of the Gemmini instruction set: runs emitted C, checks it, counts what it moves.

from fadiff.emulator import verify
report = verify(Path("build/resnet18"))
assert report.passed, report.first_divergence
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fadiff.emulator.errors import BuildError as BuildError
    from fadiff.emulator.errors import EmulatorError as EmulatorError
    from fadiff.emulator.errors import ExecutionError as ExecutionError
    from fadiff.emulator.errors import FirmwareError as FirmwareError
    from fadiff.emulator.params import params_header as params_header
    from fadiff.emulator.report import VerifyReport as VerifyReport
    from fadiff.emulator.verification import verify as verify
    from fadiff.emulator.verification import verify_entries as verify_entries

_HOME = {
    **dict.fromkeys(
        ("BuildError", "EmulatorError", "ExecutionError", "FirmwareError"), "fadiff.emulator.errors"
    ),
    "VerifyReport": "fadiff.emulator.report",
    "params_header": "fadiff.emulator.params",
    "verify": "fadiff.emulator.verification",
    "verify_entries": "fadiff.emulator.verification",
}


def __getattr__(name: str) -> Any:
    """Import on first use: params_header must not cost an import of onnxruntime."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
