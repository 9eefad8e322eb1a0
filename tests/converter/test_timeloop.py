"""Problem files: stock shapes, other letters, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fadiff.converter.ir.loops import Dims
from fadiff.emitters.timeloop.read.problem import read_problem
from fadiff.emitters.timeloop.read.yaml_lines import TimeloopFormatError
from tests.emitters.timeloop.examples import PROBLEM, load_pair, replaced


def test_the_stock_shape_names_its_strides_the_other_way_round(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        "problem: {shape: cnn-layer, N: 1, K: 8, C: 4, P: 6, Q: 5, R: 3, S: 2, Wstride: 2, Hdilation: 3}\n"
    )
    layer = read_problem(tmp_path / "p.yaml").layer
    assert (layer.stride, layer.dilation) == ((2, 1), (1, 3))
    assert layer.input_size == ((6 - 1) * 2 + 3, (5 - 1) + (2 - 1) * 3 + 1)


def test_coefficients_fall_back_to_the_default_of_the_shape(tmp_path: Path) -> None:
    text = replaced(PROBLEM, "{name: Hstride, default: 1}", "{name: Hstride, default: 3}")
    (tmp_path / "p.yaml").write_text(replaced(text, ", Hstride: 1", ""))
    assert read_problem(tmp_path / "p.yaml").layer.stride == (3, 1)


def test_depthwise_inputs_that_project_on_k(tmp_path: Path) -> None:
    problem = PROBLEM.replace(
        "{name: Inputs, projection: [[[N]], [[C]],", "{name: Inputs, projection: [[[N]], [[K]],"
    )
    (tmp_path / "p.yaml").write_text(problem.replace("C: 32", "C: 1"))
    read = read_problem(tmp_path / "p.yaml")
    assert read.layer.op == "depthwise"
    assert read.layer.dims == Dims(G=32, P=8)
    assert read.letters["K"] == "G"


def test_batched_product_with_its_own_letters(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        """\
problem:
  shape:
    dimensions: [B, M, N, K]
    data_spaces:
    - {name: Weights, projection: [[[B]], [[K]], [[N]]]}
    - {name: Inputs, projection: [[[B]], [[M]], [[K]]]}
    - {name: Outputs, projection: [[[B]], [[M]], [[N]]], read_write: true}
  instance: {B: 12, M: 197, N: 64, K: 80}
"""
    )
    read = read_problem(tmp_path / "p.yaml")
    assert read.layer.op == "bmm"
    assert read.layer.dims == Dims(G=12, P=197, K=64, C=80)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("problem:", "problem: [", r"p.yaml:3: not YAML"),
        ("problem:", "layer:", r"p.yaml:1: no `problem:` entry \(found layer\)"),
        ("K: 32", "K: 3.5", r"p.yaml:12: problem.instance.K: '3.5' is not a positive integer"),
        ("K: 32, ", "", r"p.yaml:12: problem.instance: no bound for dimension K"),
        (
            "[[[K]], [[C]]",
            "[[[X]], [[C]]",
            r"p.yaml:9: problem.shape.data_spaces\[0\].projection\[0\]\[0\]: unknown dim",
        ),
        (", read_write: true", "", r"p.yaml:11: .*Outputs, and only Outputs, need `read_write: true`"),
        (
            "name: Weights",
            "name: Filter",
            r"p.yaml:9: .*unknown data space 'Filter'; rename it to one of Weights",
        ),
        (
            "  - {name: Weights",
            "  - {nmae: Weights",
            r"p.yaml:9: .*a data space needs `name:` and `projection:`",
        ),
        (
            "[N, K, C, P, Q, R, S]",
            "[N, K, C, P, Q, R, SS]",
            r"p.yaml:4: problem.shape.dimensions: dimension 'SS'",
        ),
        (
            "[P, Hstride]",
            "[P, Stride]",
            r"p.yaml:10: .*unknown coefficient 'Stride'; the shape has Hstride Wstride",
        ),
        ("Hstride, default", "Hstride, value", r"p.yaml:6: .*a coefficient needs `name:` and `default:`"),
        ("  shape:", "  shape: gemm\n  was:", r"p.yaml:2: problem.shape: stock shape 'gemm' is not known"),
    ],
)
def test_problem_errors_name_file_line_and_field(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(TimeloopFormatError, match=message) as caught:
        load_pair(tmp_path, problem=replaced(PROBLEM, old, new))
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TimeloopFormatError, match=r"no.yaml: cannot read: No such file"):
        read_problem(tmp_path / "no.yaml")
