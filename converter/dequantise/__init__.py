"""A quantised file as a float model, and what the file says of its integers.

`strip.py` takes QuantizeLinear and DequantizeLinear out and keeps their scales (`affine.py`: what they mean),
after `qonnx.py` and `qoperators.py` have written other formats so.
"""
