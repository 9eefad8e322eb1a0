"""The representations: an ONNX program as plain data, and the Graph that all later stages see.

`program.py` is the ONNX graph as frozen records, `edit.py` changes a model, `kinds.py` says what operators
do, `operators.py` what follows from a node, `scale.py` what integers mean.  `graph.py` has the layers over
tensors with their `loops.py` (N K C P Q R S) or `host.py` (operators of the core, one record per kind),
`builder.py` grows one, `strided.py` describes values as access patterns, `recurrence.py` finds the equal
steps of a recurrence and runs states from step to step, `stored.py` keeps large weights on disk.  Needs no
other room.
"""
