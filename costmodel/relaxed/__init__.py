"""The differentiable model: energy, latency and penalties of real-valued mappings [restart, layer], in torch.

`model.py` is the entry; `network.py` holds a network's constants, `terms.py` evaluates one point,
`penalties.py` says how far it is from legal, `groups.py` and `regions.py` are soft fusion, `clock.py` the
latency model `clock`; `nests.py` is one layer on any machine.  Held equal to the exact model by property
tests.  Only `optimizer.gradient` imports this room.
"""
