"""Integers: ranges, scales, and what is decided by samples.

`calibrate.py` reads samples, `observe.py` runs the float model on them, `choose.py` decides between
`ranges.py` and corrections of `biases.py` by what `judge.py` says of a run in `simulate.py`.
`scales.py` finds one scale per stored value, `weights.py` quantises; before that `equalise.py` makes
channels alike; `doubts.py` says what speaks against the samples.
`qdq.py` writes scales and zero points back into a model.
"""
