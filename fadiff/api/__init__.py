"""The commands as Python functions, one module each; `fadiff.commands` prints what they return.

`compile` is in `fadiff.pipeline`.  Paths are str or Path; a model is an ONNX file, an onnx.ModelProto or a
torch.nn.Module with example inputs.  Progress goes to a Console; by default only warnings are shown.
"""
