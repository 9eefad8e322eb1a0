"""What single operators are refused for, rule by rule, on both sides of each bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fadiff.converter.ir.program import Node, Program
from fadiff.converter.lower import constraints as c
from tests.converter.programs import program

IMAGE = "float[1,2,4,6] x"
INTEGERS = "int64[2,4] x"


def _says(constraint: Callable[[Program, Node], str | None], net: Program, at: int = 0) -> str:
    return constraint(net, net.nodes[at]) or ""


@pytest.mark.parametrize(
    ("constraint", "body", "given", "gives", "says"),
    [
        (c.image, "y = GlobalAveragePool (x)", IMAGE, "float[1,2,1,1] y", ""),
        (c.image, "y = GlobalAveragePool (x)", "float[1,2,6] x", "float[1,2,1] y", ""),
        (c.image, "y = GlobalAveragePool (x)", "float[1,2,3,4,5] x", "float[1,2,1,1,1] y", "neither N C W"),
        (c.one_output, "y, m = Dropout (x)", IMAGE, "float[1,2,4,6] y", ""),
        (c.one_output, "y, m = Dropout (x)", IMAGE, "float[1,2,4,6] y, bool[1,2,4,6] m", "output m is used"),
        (c.one_output, "a, m = Dropout (x) y = Not (m)", IMAGE, "bool[1,2,4,6] y", "output m is used"),
        (c.spatial_mean, "y = ReduceMean <axes = [2, 3]> (x)", IMAGE, "float[1,2,1,1] y", ""),
        (c.spatial_mean, "y = ReduceMean <axes = [-1, -2]> (x)", IMAGE, "float[1,2,1,1] y", ""),
        (c.spatial_mean, "y = ReduceMean <axes = [2]> (x)", "float[1,2,6] x", "float[1,2,1] y", ""),
        (c.spatial_mean, "y = ReduceMean <axes = [2]> (x)", IMAGE, "float[1,2,1,6] y", "axes [2] of rank 4"),
        (c.spatial_mean, "y = ReduceMean <axes = [1, 2]> (x)", IMAGE, "float[1,1,1,6] y", "axes [1, 2]"),
        (c.row_major_indices, "y, i = MaxPool <kernel_shape = [2, 2]> (x)", IMAGE, "float[1,2,3,5] y", ""),
        (
            c.row_major_indices,
            "y, i = MaxPool <kernel_shape = [2, 2], storage_order = 1> (x)",
            IMAGE,
            "float[1,2,3,5] y",
            "storage_order=1",
        ),
        (c.same_elements, "y = Flatten (x)", "float[2,4] x", "float[2,4] y", ""),
        (c.bare_matrices, "y = MatMul (x, w)", "float[2,4] x", "float[2,4] y", ""),
        (c.bare_matrices, "y = MatMul (w, v)", "float[2,4] x", "float[4,4] y", "both operands are constant"),
        (c.constant_inputs, "y = MatMul (x, w)", "float[2,4] x", "float[2,4] y", ""),
        (
            c.constant_inputs,
            "y = MatMul (x, a)",
            "float[2,4] x, float[4,4] a",
            "float[2,4] y",
            "a is computed",
        ),
        (
            c.constant_weight,
            "y = MatMul (x, a)",
            "float[2,4] x, float[4,4] a",
            "float[2,4] y",
            "weights a are",
        ),
        (c.rows_of_gemm, "y = Gemm (x, w)", "float[2,4] x", "float[2,4] y", ""),
        (c.numbers, "y = Add (x, x)", "float[2,4] x", "float[2,4] y", ""),
        (c.numbers, "y = Add (x, x)", INTEGERS, "int64[2,4] y", ""),
        (c.numbers, "y = Add (x, x)", "int32[2,4] x", "int32[2,4] y", ""),
        (c.numbers, "y = Add (x, x)", "int8[2,4] x", "int8[2,4] y", "8 or 16 bits and may overflow"),
        (c.numbers, "y = Mul (x, x)", "uint16[2,4] x", "uint16[2,4] y", "8 or 16 bits and may overflow"),
        (c.numbers, "y = Max (x, x)", "int8[2,4] x", "int8[2,4] y", ""),
        (c.numbers, "y = Equal (x, x)", INTEGERS, "bool[2,4] y", ""),
        (c.integers, "y = Relu (x)", "float[2,4] x", "float[2,4] y", "x is no integer"),
        (c.integers, "y = Div (x, x)", INTEGERS, "int64[2,4] y", "x is computed at run time"),
        (c.integers, "y = Div (x, three)", INTEGERS, "int64[2,4] y", ""),
        (c.integers, "y = Div (x, some)", INTEGERS, "int64[2,4] y", "some has a zero"),
        (c.integers, "y = Mod (x, some)", INTEGERS, "int64[2,4] y", "some has a zero"),
        (
            c.integers,
            'y = BitShift <direction = "LEFT"> (x, few)',
            "uint32[2,4] x",
            "uint32[2,4] y",
            "",
        ),
        (
            c.integers,
            'y = BitShift <direction = "RIGHT"> (x, many)',
            "uint32[2,4] x",
            "uint32[2,4] y",
            "many shifts by more than 31",
        ),
        (c.integers, 'y = BitShift <direction = "RIGHT"> (x, bits)', "uint8[2,4] x", "uint8[2,4] y", ""),
        (
            c.integers,
            'y = BitShift <direction = "LEFT"> (x, bits)',
            "uint8[2,4] x",
            "uint8[2,4] y",
            "may overflow",
        ),
        (c.booleans, "y = And (x, x)", "bool[2,4] x", "bool[2,4] y", ""),
        (c.booleans, "y = Add (x, x)", "float[2,4] x", "float[2,4] y", "x is not boolean"),
        (c.comparable, "y = Less (x, x)", "float[2,4] x", "bool[2,4] y", ""),
        (c.comparable, "y = Less (x, x)", INTEGERS, "bool[2,4] y", ""),
        (c.comparable, "y = Equal (x, x)", "bool[2,4] x", "bool[2,4] y", ""),
        (c.comparable, "y = Where (b, x, x)", "float[2,4] x, bool[2,4] b", "float[2,4] y", ""),
        (c.comparable, "y = Add (x, b)", "float[2,4] x, int64[2,4] b", "float[2,4] y", "not of one kind"),
        (c.of_integers, "y = Cast <to = 1> (x)", INTEGERS, "float[2,4] y", ""),
        (
            c.of_integers,
            "y = Cast <to = 1> (x)",
            "bool[2,4] x",
            "float[2,4] y",
            "no function of one value|alone",
        ),
        (c.of_integers, "y = Cast <to = 8> (x)", INTEGERS, "string[2,4] y", "or no numbers"),
        (c.float_values, "y = Relu (x)", "float[2,4] x", "float[2,4] y", ""),
        (c.float_values, "y = Add (x, x)", INTEGERS, "int64[2,4] y", "x is not floating point"),
        (c.int32_indices, "y = Gather (x, i)", "float[4] x, int64[2] i", "float[2] y", ""),
        (c.int32_indices, "y = Gather (x, i)", "float[4] x, int32[2] i", "float[2] y", ""),
        (c.int32_indices, "y = Gather (x, i)", "float[4] x, float[2] i", "float[2] y", "i is no integer"),
        (c.int32_indices, "y = Gather (x, three)", "float[9] x", "float y", ""),
        (c.slopes, "y = PRelu (x, s)", "float[2,4] x, float[4] s", "float[2,4] y", ""),
        (c.slopes, "y = PRelu (x, s)", "float[2,4] x, float[2,1] s", "float[2,4] y", ""),
        (c.slopes, "y = PRelu (x, s)", "float[2,4] x, float[2] s", "float[2,4] y", "do not broadcast"),
        (c.slopes, "y = PRelu (x, s)", "float[2,4] x, float[1,2,4] s", "float[2,4] y", "do not broadcast"),
        (c.slopes, "y = PRelu (x, s)", "float[3,4] x, float[4,4] s", "float[3,4] y", "do not broadcast"),
        (c.parts_of_all, "y, z = Split (x, two)", "float[4,3] x", "float[2,3] y, float[2,3] z", ""),
        (
            c.parts_of_all,
            "y, z = Split <axis = 1> (x, two)",
            "float[3,4] x",
            "float[3,2] y, float[3,2] z",
            "",
        ),
        (
            c.parts_of_all,
            "y, z = Split (x, two)",
            "float[3,9] x",
            "float[2,9] y, float[2,9] z",
            "does not fall into",
        ),
        (
            c.known_resize,
            'y = Resize <mode = "linear"> (x, none, twice)',
            IMAGE,
            "float[1,2,8,12] y",
            "",
        ),
        (
            c.known_resize,
            'y = Resize <mode = "linear"> (x, none, channels)',
            IMAGE,
            "float[1,4,4,6] y",
            "linear from [1, 2, 4, 6] to [1, 4, 4, 6]",
        ),
        (c.inference_mode, "y = Dropout (x)", "float[2,4] x", "float[2,4] y", ""),
        (c.inference_mode, "y, m = Dropout (x)", "float[2,4] x", "float[2,4] y", "training mode"),
        (c.not_empty, "y = Relu (x)", "float[2,4] x", "float[2,4] y", ""),
        (c.not_empty, "y = Relu (x)", "float[0,4] x", "float[0,4] y", "x has shape [0, 4]"),
    ],
)
def test_rules(
    constraint: Callable[[Program, Node], str | None], body: str, given: str, gives: str, says: str
) -> None:
    constants = {
        "three": np.int64(3),
        "some": np.array([1, 2, 0, 4]),
        "few": np.array([0, 1, 2, 31], np.uint32),
        "many": np.array([0, 1, 2, 32], np.uint32),
        "bits": np.array([0, 1, 2, 3], np.uint8),
        "two": np.array([2, 2]),
        "none": np.zeros(0, np.float32),
        "twice": np.float32([1, 1, 2, 2]),
        "channels": np.float32([1, 2, 1, 1]),
    }
    found = _says(constraint, program(body, given, gives, **constants))
    assert bool(found) == bool(says) and any(part in found for part in says.split("|"))


@pytest.mark.parametrize(
    ("bias", "says"),
    [
        (np.ones(3), ""),
        (np.ones(1), ""),
        (np.array(1.0), ""),
        (np.ones((2, 3)), "has shape [2, 3], expected 3 values"),
        (np.ones(2), "expected 3 values"),
        (None, "bias b is computed at run time"),
    ],
)
def test_a_bias_has_a_value_for_each_channel(bias: np.ndarray | None, says: str) -> None:
    given = {} if bias is None else {"b": bias}
    inputs = "float[1,2,6] x" + (", float[3] b" if bias is None else "")
    net = program("y = Conv (x, k, b)", inputs, "float[1,3,6] y", k=np.ones((3, 2, 1)), **given)
    found = _says(c.constant_bias, net)
    assert bool(found) == bool(says) and says in found
    assert (
        _says(c.constant_bias, program("y = Conv (x, k)", inputs, "float[1,3,6] y", k=np.ones((3, 2, 1))))
        == ""
    )


@pytest.mark.parametrize(
    ("strides", "dilations", "says"),
    [
        ((64, 64), (1, 1), ""),
        ((64, 65), (1, 1), "strides [64, 65]"),
        ((1, 1), (1, 32767), ""),
        ((1, 1), (1, 32768), "windows over 65537 pixels"),
        ((1, 1), (32768, 1), "windows over 65537 pixels"),
    ],
)
def test_phases_and_reach_are_bounded(
    strides: tuple[int, int], dilations: tuple[int, int], says: str
) -> None:
    net = program("y = Relu (x)", "float[1,2,3,3] x", "float[1,2,3,3] y", k=np.ones((2, 2, 3, 3)))
    attributes = {"strides": strides, "dilations": dilations}
    node = replace(net.nodes[0], op="ConvTranspose", inputs=("x", "k"), attributes=attributes)
    net = replace(net, shapes={**net.shapes, "k": (2, 2, 3, 3)})
    found = c.few_phases(net, node) or ""
    assert bool(found) == bool(says) and says in found
    assert ("antialias" in found) == bool(attributes.get("antialias"))
