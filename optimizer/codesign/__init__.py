"""Hardware and schedules together: which Gemmini, or other machine, of a given area runs some networks best.

`area.py` says how large a design is, `designs.py` which there are, `score.py` what one costs when the
networks are searched on it, `search.py` how designs are found; `descent.py` descends on sizes of other
machines beside factors and orders (`machine_descent.py`).
"""
