"""Fusion groups: which sets of layers can run together, every way to run one, and its hull of costs.

`candidates.py` lists the sets, `tiles.py` their group tiles, `spaces.py` and `least_regions.py` the
members' spaces and floors, `open_ways.py` what can be chosen at a tile; `ways.py` prices all ways to run a
group down to `hull.py`;
`residency.py` adds tensors that stay on chip between groups, `paper.py` groups as the literature counts
them, `network.py` the fusable edges.  Needs `layer`.
"""
