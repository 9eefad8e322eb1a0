"""Mappings of layers on any machine (costmodel/nests): `space.py` where factors may go, `search.py` the search."""
