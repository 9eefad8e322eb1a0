"""What can go wrong when firmware is built and run."""

from __future__ import annotations

from fadiff.converter.errors import BadInput


class EmulatorError(BadInput):
    """Something that the caller can act on, in one line."""


class NoCompilerError(EmulatorError):
    """No C compiler on this machine."""


class BuildError(EmulatorError):
    """C that does not compile; the message carries the compiler's first error."""


class FirmwareError(EmulatorError):
    """A folder that holds no firmware this runner understands; the message names file and field."""


class ExecutionError(EmulatorError):
    """The program broke a rule of the hardware; the message names instruction and layer."""
