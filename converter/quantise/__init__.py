"""Integers: ranges, scales, and quantisation that a file brings along.

`calibrate.py` finds ranges, `scales.py` one scale per stored value, `weights.py` quantises,
`equalise.py` makes channels alike before that.
`imported.py`, `qonnx.py` and `qoperators.py` read the scales of quantised files (`affine.py`: what they
mean), `qdq.py` writes them back.
"""
