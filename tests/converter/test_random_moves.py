"""Random chains of moves, functions and products, and of layers on images, exactly as ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

from fadiff.converter import convert
from fadiff.converter.check.reference import run_reference
from fadiff.converter.check.storage import from_storage, store_inputs
from tests.converter.oracle import ints, model_of, session, weights
from tests.converter.test_operators import chains as images

MOVES = ("transpose", "reshape", "slice", "concat", "pad", "gather", "expand", "tile", "split")
OTHERS = ("tanh", "sum", "mean", "softmax", "product")


class _Chain:
    """Nodes and constants of a model that grows at its end."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.shape = tuple(draw(st.lists(st.integers(1, 4), min_size=2, max_size=4)))
        self.input, self.value = self.shape, "x"
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def axis(self) -> int:
        return self.draw(st.integers(0, len(self.shape) - 1))

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def add(self, op: str, *inputs: str, outputs: int = 1, **attributes: object) -> None:
        names = [f"v{len(self.nodes)}.{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, [self.value, *inputs], names, **attributes))
        self.value = names[-1]

    def become(self, result: np.ndarray) -> None:
        self.shape = result.shape

    def grow(self, kind: str) -> None:
        draw, axis, shape = self.draw, self.axis(), self.shape
        probe = np.zeros(shape)
        match kind:
            case "transpose":
                perm = draw(st.permutations(range(len(shape))))
                self.add("Transpose", perm=perm)
                self.become(probe.transpose(perm))
            case "reshape":
                merged = [*shape[:axis], int(np.prod(shape[axis : axis + 2])), *shape[axis + 2 :]]
                halves = [*shape[:axis], 2, shape[axis] // 2, *shape[axis + 1 :]]
                split = shape[axis] % 2 == 0 and len(shape) < 5 and draw(st.booleans())
                self.add("Reshape", self.constant(ints(*(halves if split else merged))))
                self.become(probe.reshape(halves if split else merged))
            case "slice":
                step = draw(st.sampled_from([1, 2, -1, -2]))
                first = draw(st.integers(0, shape[axis] - 1))
                start, end = (first, shape[axis]) if step > 0 else (first, -shape[axis] - 1)
                self.add("Slice", *(self.constant(ints(n)) for n in (start, end, axis, step)))
                picked = range(*slice(start, end, step).indices(shape[axis]))
                self.become(np.take(probe, list(picked), axis))
            case "concat" if shape[axis] < 9:
                self.add("Concat", self.value, axis=axis)
                self.become(np.concatenate([probe, probe], axis))
            case "pad" if shape[axis] < 9:
                pads = draw(st.tuples(st.integers(0, 2), st.integers(0, 1)))
                begin, end = np.zeros((2, len(shape)), np.int64)
                begin[axis], end[axis] = pads
                self.add("Pad", self.constant(np.concatenate([begin, end])), self.constant(np.float32(0.5)))
                self.become(np.pad(probe, [pads if i == axis else (0, 0) for i in range(len(shape))]))
            case "gather":
                places = draw(st.lists(st.integers(-shape[axis], shape[axis] - 1), min_size=1, max_size=4))
                self.add("Gather", self.constant(ints(*places)), axis=axis)
                self.become(np.take(probe, places, axis))
            case "expand" if len(shape) < 5:
                self.add("Unsqueeze", self.constant(ints(axis)))
                wanted = [*shape[:axis], 2, *shape[axis:]]
                self.add("Expand", self.constant(ints(*wanted)))
                self.become(np.zeros(wanted))
            case "tile" if shape[axis] < 9:
                repeats = [2 if i == axis else 1 for i in range(len(shape))]
                self.add("Tile", self.constant(ints(*repeats)))
                self.become(np.tile(probe, repeats))
            case "split" if shape[axis] > 1:
                self.add("Split", self.constant(ints(1, shape[axis] - 1)), outputs=2, axis=axis)
                self.become(np.take(probe, range(1, shape[axis]), axis))
            case "tanh":
                self.add("Tanh")
            case "sum":
                self.add("Add", self.constant(weights(len(self.nodes), *shape[axis:])))
            case "mean":
                self.add("ReduceMean", axes=[axis], keepdims=draw(st.integers(0, 1)) if len(shape) > 2 else 1)
                self.become(probe.mean(axis, keepdims=self.nodes[-1].attribute[-1].i == 1))
            case "softmax":
                self.add("Softmax", axis=axis)
            case "product":
                self.add("MatMul", self.constant(weights(len(self.nodes), shape[-1], 3)))
                self.become(np.zeros((*shape[:-1], 3)))


@st.composite
def chains(draw: st.DrawFn) -> onnx.ModelProto:
    """At least one function, so that something is computed."""
    chain = _Chain(draw)
    kinds = draw(st.lists(st.sampled_from(MOVES + OTHERS), min_size=2, max_size=7))
    for kind in [*kinds, draw(st.sampled_from(OTHERS))]:
        chain.grow(kind)
    chain.add("Identity")
    chain.nodes[-1].output[0] = "y"
    return model_of(chain.nodes, {"x": chain.input}, {"y": None}, chain.constants)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(model=st.one_of(chains(), images()))
def test_elements_are_where_they_belong(model: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    feeds = {"x": weights(99, *(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim))}
    (wanted,) = session(model).run(None, feeds)
    graph = convert(path, element="float32").graph
    found = run_reference(graph, store_inputs(graph, feeds))
    (name,) = graph.outputs
    ours = from_storage(graph.tensors[name], found[name], wanted.shape)
    np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-5 * max(1, np.abs(wanted).max(initial=0)))
