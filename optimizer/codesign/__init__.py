"""Hardware and schedules together: which Gemmini of a given area runs some networks best.

`area.py` says how large a design is, `designs.py` which there are, `score.py` what one costs when the
networks are searched on it, `search.py` how designs are found; `hardware.py` and `descent.py` are the
relaxed side: sizes as trainable tensors beside tiles, orders and fusion of all networks.
"""
