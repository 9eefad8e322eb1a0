"""Integers: ranges, scales, and what is decided by samples.

`calibrate.py` reads samples, `doubts.py` says what speaks against them.  Before scales `equalise.py` makes
channels alike, `parted.py` parts of one value, `columns.py` those of an input, by `factors.py` in the
weights.  `choose.py` decides between `ranges.py`, `bias_correction.py`, `rounding.py` (GPTQ) and `zeros.py`
by runs in `simulate.py`, `mixed.py` what stays in float32.  `scales.py` finds one scale per stored value,
`prescribed.py` what of a file's stays, `weights.py` quantises; `qdq.py` writes all of it back into a model.
"""
