"""The representations: an ONNX program as plain data, and the Graph that all later stages see.

`program.py` is the ONNX graph as frozen records, `graph.py` the layers over tensors with their
`dims.py` (N K C P Q R S) or `host.py` (operators of the core, one record per kind), `builder.py` grows one,
`strided.py` describes values as access patterns, `loops.py` what walks several at once,
`operators.py` names classes of operators, `repeats.py` finds the equal steps of a recurrence, `stored.py` and
`weight_file.py` keep large weights on disk.
Needs no other room.
"""
