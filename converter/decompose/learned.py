"""Linear models and what stands before them in pipelines of scikit-learn, as networks (ai.onnx.ml)."""

from __future__ import annotations

from functools import partial

import numpy as np
from onnx import TensorProto

from fadiff.converter.decompose.nodes import LEARNING, Function, Nodes
from fadiff.converter.ir.program import Node, Program

_TRANSFORMS = {"NONE": "", "SOFTMAX": "Softmax", "LOGISTIC": "Sigmoid"}
_LINEAR = ("coefficients", "intercepts", "post_transform")
_LABELS = "classlabels_ints"


def linear_regressor(nodes: Nodes, program: Program, node: Node) -> None:
    """A product with a row of coefficients for each target."""
    nodes.give(_transformed(nodes, node, _sums(nodes, node)), node.output(0))


def linear_classifier(nodes: Nodes, program: Program, node: Node) -> None:
    """The same for each class; the label is that of the largest sum."""
    sums = _sums(nodes, node)
    if node.output(0):
        place, labels = nodes.op("ArgMax", sums, axis=1, keepdims=0), node.attributes.get(_LABELS, ())
        known = np.array(labels, np.int64)
        is_place = np.array_equal(known, np.arange(known.size))
        nodes.give(place if is_place else nodes.op("Gather", nodes.constant(known), place), node.output(0))
    if node.output(1):
        nodes.give(_transformed(nodes, node, sums), node.output(1))


def binarizer(nodes: Nodes, program: Program, node: Node) -> None:
    """1 above a threshold, else 0."""
    threshold = nodes.number(node.attributes.get("threshold", 0.0))
    above = nodes.op("Greater", node.input(0), threshold)
    nodes.give(nodes.op("Cast", above, to=TensorProto.FLOAT), node.output(0))


def feature_vectorizer(nodes: Nodes, program: Program, node: Node) -> None:
    """The columns of all inputs side by side."""
    columns = [nodes.op("Cast", name, to=TensorProto.FLOAT) for name in node.inputs]
    nodes.give(nodes.op("Concat", *columns, axis=1), node.output(0))


def _rows(node: Node) -> int:
    """Targets, or classes."""
    return int(node.attributes.get("targets", 1)) if node.op == "LinearRegressor" else len(_intercepts(node))


def _intercepts(node: Node) -> np.ndarray:
    return np.asarray(node.attributes.get("intercepts", ()), np.float32)


def _sums(nodes: Nodes, node: Node) -> str:
    weight = np.asarray(node.attributes["coefficients"], np.float32).reshape(_rows(node), -1)
    product = nodes.op(
        "MatMul", nodes.op("Cast", node.input(0), to=TensorProto.FLOAT), nodes.constant(weight.T)
    )
    bias = _intercepts(node)
    return nodes.op("Add", product, nodes.constant(bias)) if bias.size else product


def _transformed(nodes: Nodes, node: Node, sums: str) -> str:
    function = _TRANSFORMS[node.attributes.get("post_transform", "NONE")]
    return nodes.op(function, sums) if function else sums


def known_columns(program: Program, node: Node) -> str | None:
    """Inputs are matrices as wide as the coefficients or `inputdimensions` say."""
    widths = node.attributes.get("inputdimensions")
    if widths is None:
        widths = [len(node.attributes["coefficients"]) // max(1, _rows(node))]
    for name, width in zip(node.inputs, widths, strict=False):
        shape = program.shapes.get(name, (1, width))  # (unknown behind others that are written anew)
        if len(shape) != 2 or shape[1] != width:
            return f"its input {name} has shape {shape}"
    return None if len(widths) == len(node.inputs) else f"it has {len(node.inputs)} inputs"


def known_transform(program: Program, node: Node) -> str | None:
    """`post_transform` is NONE, SOFTMAX or LOGISTIC."""
    name = node.attributes.get("post_transform", "NONE")
    return None if name in _TRANSFORMS else f"post_transform {name}"


def known_labels(program: Program, node: Node) -> str | None:
    """Every class has a row of coefficients; labels that are read are integers."""
    labels = [len(node.attributes.get(name, ())) for name in (_LABELS, "classlabels_strings")]
    if _rows(node) != max(labels) or _rows(node) < 2:
        return f"{_rows(node)} row(s) of coefficients for {max(labels)} classes"
    return "its labels are strings" if node.output(0) and not labels[0] else None


_page = partial(Function, domain=LEARNING)

FUNCTIONS = (
    _page("Binarizer", binarizer, 1, ("threshold",)),
    _page("FeatureVectorizer", feature_vectorizer, 2**10, ("inputdimensions",), (known_columns,)),
    _page(
        "LinearClassifier",
        linear_classifier,
        1,
        (*_LINEAR, _LABELS, "classlabels_strings", "multi_class"),
        (known_transform, known_columns, known_labels),
        outputs=(0, 1),
    ),
    _page("LinearRegressor", linear_regressor, 1, (*_LINEAR, "targets"), (known_transform, known_columns)),
)
