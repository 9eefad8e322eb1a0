"""ONNX Runtime's own operators (com.microsoft), each written as standard ones: one module per family.

What its exporters, quantisers and optimisers leave in files.  Every page ends with its records; `expand.py`
replaces them.
"""

from fadiff.converter.contrib.expand import FUNCTIONS, REFUSED, Expansion, expand_contrib

__all__ = ["FUNCTIONS", "REFUSED", "Expansion", "expand_contrib"]
