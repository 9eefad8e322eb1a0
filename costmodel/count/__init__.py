"""What a mapping makes one layer do: loop nest, bytes at every level, energy.

`nest.py` turns a mapping into trip counts and fetches, `traffic.py` into bytes per memory, `energy.py` into
picojoules; `row_layout.py` says how tiles lie in Gemmini's rows, `sliding_window.py` and `timeloop_counts.py`
count as Timeloop does.  Needs `mapping` and `target`.
"""
