"""Whether the Graph computes what the model does.

`reference/` is the Graph as an ONNX model of explicit integer arithmetic, run by ONNX Runtime: what the
C must equal to the bit.  `agreement.py` compares it with the quantised model, `storage.py` quantises
inputs and restores outputs.
"""
