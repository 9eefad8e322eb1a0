"""Mappings of layers on any machine (costmodel/nests).

`space.py` where factors may go; `search.py` one layer; `network.py` all of a network.
"""
