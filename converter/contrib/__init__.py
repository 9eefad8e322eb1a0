"""ONNX Runtime's own operators (com.microsoft), each written as standard ones: one module per family.

What its exporters, quantisers and optimisers leave in files.  `table.py` lists them, `expand.py` replaces
them.
"""

from fadiff.converter.contrib.expand import Expansion, expand_contrib
from fadiff.converter.contrib.table import FUNCTIONS, REFUSED

__all__ = ["FUNCTIONS", "REFUSED", "Expansion", "expand_contrib"]
