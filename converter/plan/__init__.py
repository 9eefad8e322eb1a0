"""Which nodes become one layer, and which values are therefore stored.

`plan.py` decides it; `norms.py` finds normalisations that an exporter spelled out, by what `moments.py`
says they compute.  Needs `ir`, `read` and the names of `rewrites`.
"""
