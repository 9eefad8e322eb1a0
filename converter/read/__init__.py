"""From the file to a float model of plain operators with fixed shapes.

`load.py` reads a file (`external_data.py`: with weights beside it), `dimensions.py` pins its shapes, `cut.py`
takes a part, `validate.py` finds what is wrong with it at the door, `opsets.py` brings it to one opset and
float32, `flatten.py` and `growing.py` unroll, `fold.py` and `normalise.py` evaluate
constants, `windows.py` writes windows out, `inputs.py` reads samples, `interface.py` says what callers hand
over, `runtime.py` runs models, also those whose weights stay on disk.  Needs `ir`.
"""
