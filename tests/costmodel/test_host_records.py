"""Host operators in schedule.json: written, read back equal, and refused in one line when edited badly."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fadiff.converter.ir.graph import HostLayer
from fadiff.converter.ir.host import (
    OPERATORS,
    Add,
    Binary,
    FloatProduct,
    FloatSums,
    Planes,
    Softmax,
    ToInt8,
)
from fadiff.converter.ir.loops import Access, Loops
from fadiff.costmodel.schedule.host_records import operator_of, to_attributes
from tests.emitters.gemmini.host_nets import elementwise, integers, rows, windows

FLAT = {"shape": [12], "strides": [1], "out_strides": [1]}
DENSE = Access(3, (1,))
MORE = [
    Add(0.5, 1.0, 2.0, "relu"),
    Binary(Loops((4,), (DENSE, DENSE), DENSE), "mul", 1.0, 1.0, 1.0, ceiling=6.0),
    FloatProduct(
        (1, 1, 4, 3, 2, 2, 3, 3),
        *((2, 2), (1, 1), (1, 1), (1, 1, 1, 1)),
        *(Access(at, (0, 12, 6, 3, 1)) for at in range(3)),
    ),
    ToInt8(0.25),
    Planes(),
    FloatSums("relu", 6.0),
]


def test_every_operator_reads_back_equal() -> None:
    graphs = [build() for build in (elementwise, windows, rows, integers)]
    operators = [o.operator for graph in graphs for o in graph.layers if isinstance(o, HostLayer)]
    for operator in [*operators, *MORE]:
        written = json.loads(json.dumps(to_attributes(operator)))
        assert operator_of(operator.op, written) == operator
    assert len({type(o) for o in [*operators, *MORE]}) > 20


def test_kinds_have_names_of_their_own() -> None:
    assert len({kind.op for kind in OPERATORS}) == len(OPERATORS)


def test_no_mask_is_no_attribute() -> None:
    operator = operator_of("softmax", {"outer": 2, "length": 3, "inner": 1, "scale": 127.0})
    assert isinstance(operator, Softmax) and not operator.mask_rows
    assert "mask_rows" not in to_attributes(operator)


@pytest.mark.parametrize(
    ("op", "attributes", "says"),
    [
        ("softmix", {}, "no host operator 'softmix'"),
        ("softmax", {"outer": 2, "inner": 1, "scale": 1.0}, "attribute length: Field required"),
        ("lookup", {**FLAT, "stride": 1}, "lookup has no attribute 'stride'"),
        ("lookup", {**FLAT, "strides": [1, 2]}, "1 loops need as many strides"),
        ("lookup", {**FLAT, "shape": "all"}, "attribute shape"),
        (
            "binary",
            {**FLAT, "function": "add", "a_scale": 1, "b_scale": 1, "scale": 1},
            "binary walks 2 inputs",
        ),
    ],
)
def test_a_wrong_attribute_is_named(op: str, attributes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        operator_of(op, attributes)
    assert "\n" not in str(caught.value)
