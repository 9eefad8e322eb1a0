"""One layer alone: its map-space, every mapping that can be on its energy-latency front, floors under them.

`space.py` bounds the space, `enumerate.py` lists it in columns (`canonical.py`: whole mappings of tiles,
`footprint.py`: what fits, `pricing.py`: what it costs), `fronts.py` keeps the front of each distinct layer,
`floors.py` is what no mapping beats, `legalise.py` makes free choices legal, `hull.py` is the geometry of
fronts.
"""
