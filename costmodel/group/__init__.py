"""Layers that run together: which region of each member a group tile needs, and where every tensor lives.

`fusion.py` plans a group (`group_tile.py`: what its tiles divide), `legality.py` checks one mapping,
`scratchpad.py` and `tile_buffer.py` hand out on-chip memory (`allocation.py` places the buffers),
`resident_tensors.py` keeps whole tensors between groups, `pooling.py` and `row_operators.py` are members
that are no products, `host.py` what the core moves, `copies.py` what Gemmini moves for it; `pipeline.py` and
`side_by_side.py` say when the core may work while Gemmini does.
`issue.py` says who can issue a layer; `loop_products.py` and `loop_convolutions.py` what the loop units ask.
Needs `count` and `latency`.
"""
