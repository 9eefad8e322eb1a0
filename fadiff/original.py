"""How a quantised model computes here and where it came from: the file itself, run by ONNX Runtime."""

from __future__ import annotations

import numpy as np

from fadiff.converter.check.noise import sqnr_db
from fadiff.output_accuracy import judged_inputs, restored
from fadiff.vectors import TestVectors, onnx_states, run_vectors


def compare_with_file(vectors: TestVectors) -> str:
    """One sentence on the outputs that accuracy is judged on; empty for float models and integer outputs.

    Integers are those of the integer reference, so of the device.
    """
    from fadiff.converter.check.reference import integer_reference, reference_session
    from fadiff.converter.read.runtime import open_session, session_options

    conversion = vectors.conversion
    model = conversion.quantized_file
    if model is None:
        return ""
    options = session_options()
    options.intra_op_num_threads = 0  # all cores
    try:  # (of opset 21 on this optimiser makes what ONNX Runtime 1.31 refuses)
        runtime = open_session(model, options, ["MatMulAddFusion"])
        states = onnx_states(conversion.graph)
        judged = judged_inputs(vectors)
        theirs = run_vectors(runtime, judged.inputs, states=states, length=judged.length(vectors))
    except Exception as error:  # operators that only their own tool runs, integer inputs
        return f"not compared with the file itself: ONNX Runtime does not run it ({type(error).__name__})"
    session = reference_session(integer_reference(conversion.graph))
    length, stored_states = judged.length(vectors), conversion.graph.states
    stored = run_vectors(session, judged.stored(vectors), states=stored_states, length=length)
    ratios, top1 = [], []
    for name in conversion.graph.results:
        onnx_name = conversion.graph.tensors[name].onnx_name
        if onnx_name in theirs and np.issubdtype(theirs[onnx_name].dtype, np.floating):
            expected = theirs[onnx_name]
            found = restored(conversion.graph, name, stored, expected.shape)
            ratio = sqnr_db(expected, found)
            ratios.append(np.inf if ratio is None else ratio)
            if expected.shape[-1] > 1:
                top1.append(float(np.mean(expected.argmax(-1) == found.argmax(-1))))
    if not ratios:
        return ""
    same = f", top-1 equal in {100 * min(top1):.1f} %" if top1 else ""
    return (
        "against the file itself in ONNX Runtime: "
        f"SQNR {min(ratios):.1f} dB{same} ({judged.count} {judged.kind} inputs)"
    )
