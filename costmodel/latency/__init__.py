"""How long what was counted takes: the roofline, and two models fitted to measured cycles.

`roofline.py` is the slowest of array and memories; `rtl.py` prices the work that `rtl_work.py` counts,
with the coefficients of rtl_coefficients.json; `clock.py` prices emitted programs as they are issued.
Needs `count`.
"""
