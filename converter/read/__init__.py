"""From the file to a float model of plain operators with fixed shapes.

`load.py` reads a file, `dimensions.py` pins its shapes, `validate.py` finds what is wrong with it at the door
(`external_data.py`: with weights beside it), `opsets.py` and `precision.py` bring it
to one opset and float32, `control_flow.py` unrolls, `fold.py` and `normalise.py` evaluate constants,
`ceil_mode.py` rewrites pools, `inputs.py` reads samples, `piecewise.py` runs models whose weights stay
on disk.  Needs `ir`.
"""
