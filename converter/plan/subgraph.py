"""Run element-wise pieces of the float model, to tabulate them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from converter.plan.plan import Step
from converter.read.normalise import session_options


@dataclass(frozen=True)
class Subgraph:
    """The float model a program was read from, to run pieces of it."""

    model: onnx.ModelProto

    def run(self, step: Step, values: np.ndarray) -> np.ndarray:
        """Outputs of the step's element-wise nodes for the given inputs [n]."""
        names = set(step.onnx_nodes)
        nodes = [n for i, n in enumerate(self.model.graph.node) if (n.name or f"{n.op_type}_{i}") in names]
        needed = {v for n in nodes for v in n.input}
        constants = []
        for tensor in self.model.graph.initializer:
            if tensor.name in needed:
                # constants of a region hold one element: the region has the shape of its source
                array = numpy_helper.to_array(tensor)
                constants.append(
                    numpy_helper.from_array(array.reshape(()) if array.ndim else array, tensor.name)
                )
        kind = helper.np_dtype_to_tensor_dtype(values.dtype)
        graph = helper.make_graph(
            nodes,
            "lookup",
            [helper.make_tensor_value_info(step.source, kind, [values.size])],
            [helper.make_empty_tensor_value_info(step.output)],
            constants,
        )
        model = helper.make_model(
            graph, opset_imports=self.model.opset_import, ir_version=self.model.ir_version
        )
        session = onnxruntime.InferenceSession(model.SerializeToString(), session_options())
        return np.asarray(session.run(None, {step.source: values})[0])
