"""C spellings of the graph's element types and activations."""

from __future__ import annotations

C_TYPES = {"int8": "int8_t", "int32": "int32_t", "float32": "float"}
ACTIVATIONS = {"none": "NO_ACTIVATION", "relu": "RELU"}
