"""Mappings of layers on any machine (costmodel/nests).

`space.py` where factors may go, and a mapping's neighbours; `layer.py` one layer's search by any method;
`local.py` local search, `bound.py` and `proof.py` branch and bound, `auto.py` the two together;
`fusion.py` groups that hand tensors over on chip; `network.py` all of a network.
"""
