"""How long what was counted takes: the roofline, and the clock, which is fitted to cycles on RTL.

`roofline.py` is the slowest of array and memories; `clock.py` prices what the emitted program makes core and
Gemmini do, as `clock_work.py` counts it with the cache lines of `cache.py`.  Needs `count`.
"""
