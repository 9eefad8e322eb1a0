"""FADiff: ONNX model to schedule."""
