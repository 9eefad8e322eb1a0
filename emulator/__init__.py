"""Functional model of the Gemmini instruction set: runs emitted C, checks it, counts what it moves."""

from emulator.params import params_header

__all__ = ["params_header"]
