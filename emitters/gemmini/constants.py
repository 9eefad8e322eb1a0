"""C spellings of the graph's element types and activations."""

from __future__ import annotations

C_TYPES = {"int8": "int8_t", "uint8": "uint8_t", "int32": "int32_t", "float32": "float"}
ACTIVATIONS = {"none": "NO_ACTIVATION", "relu": "RELU", "igelu": "IGELU"}
INTERFACE_VERSION = 2
"""Of the header (docs/firmware-interface.md): 2 since hooks have a context and can stop a run."""
STACK_BYTES = 12288
"""More than `run` and everything below it needs on riscv64 at any optimisation, whatever the network.

Loop tables are constants, tensors static, calls a few deep.  Checked along the call graph in the tests.
"""
