"""One layer, tiled: what a mapping is, and how a dimension falls into tiles.

`shape.py` is all the cost model knows of a layer, `mapping.py` how it is tiled, ordered and unrolled,
`columns.py` many mappings at once and `numbers.py` what formulas need for both, `tiling.py` and
`intervals.py` the exact integer geometry of ragged tiles, `decision.py` the mappings and groups of a
whole graph before anything is checked, `counting.py` what the profiles differ in.  Read by every other
room; needs only `target`.
"""
