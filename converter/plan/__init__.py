"""Which nodes become one layer, and which values are therefore stored.

`plan.py` decides it; `norms.py` finds normalisations that an exporter spelled out; `subgraph.py` runs
element-wise pieces to tabulate them.  Needs `ir`, `read` and the names of `rewrites`.
"""
