"""C spellings of the graph's element types and activations."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fadiff.converter.ir.graph import TensorCoreLayer

C_TYPES = {"int8": "int8_t", "uint8": "uint8_t", "int32": "int32_t", "float32": "float"}
ACTIVATIONS = {"none": "NO_ACTIVATION", "relu": "RELU"}
INTERFACE_VERSION = 2
"""Of the header (docs/firmware-interface.md): 2 since hooks have a context and can stop a run."""
STACK_BYTES = 12288
"""More than `run` and everything below it needs on riscv64 at any optimisation, whatever the network.

Loop tables are constants, tensors static, calls a few deep.  Checked along the call graph in the tests.
"""


def stored_through(layer: TensorCoreLayer) -> str:
    """The activation in C with which a layer's results leave the accumulator."""
    return ACTIVATIONS[layer.activation] if layer.polynomial is None else "IGELU"
