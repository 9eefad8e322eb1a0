"""What a mapping, or columns of many, makes one layer do: loop nest, bytes at every level, space, energy.

`nest.py` turns a mapping into trip counts and fetches, `traffic.py` into bytes per memory, `energy.py` into
picojoules, `capacity.py` into space; `row_layout.py` says how tiles lie in Gemmini's rows,
`sliding_window.py` and `timeloop_counts.py` count as Timeloop does.  Needs `mapping` and `target`.
"""
