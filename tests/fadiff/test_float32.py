"""float32 arrays through the command line: nothing is quantised, ONNX Runtime's float model is the judge."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from fadiff.costmodel.target.target import load_target
from fadiff.emulator.build import include_flags

TARGET = """\
name: float
side: 4
element_type: float32
element_bytes: 4
scratchpad_bytes: 65536
accumulator_bytes: 16384
"""

IMAGES = """\
<ir_version: 8, opset_import: ["" : 18]>
g (float[1,3,12,12] image) => (float[1,7] scores, float[1,8,3,3] edges)
<float[8,3,3,3] w1, float[8] b1, float[8,1,3,3] w2, float[16,8,1,1] w3, float[8,8,1,1] w4, float[7,8] w5,
 float[8] one, float[8] mean, int64[8] pads = {0,0,1,1,0,0,1,1}, float fill = {-0.5},
 float zero = {0}, float six = {6}, float half = {0.5}, float[0] roi, float[4] up = {1,1,2,2}>
{
  c1 = Conv <kernel_shape=[3,3], pads=[1,1,1,1]> (image, w1, b1)
  r1 = Clip (c1, zero, six)
  d1 = Conv <kernel_shape=[3,3], group=8, pads=[1,1,1,1], strides=[2,2]> (r1, w2)
  h1 = HardSwish (d1)
  c3 = Conv <kernel_shape=[1,1]> (h1, w3)
  a3, b3 = Split <axis=1, num_outputs=2> (c3)
  g3 = Sigmoid (b3)
  m3 = Mul (a3, g3)
  s3 = Add (m3, h1)
  x3 = MaxPool <kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]> (s3)
  v3 = AveragePool <kernel_shape=[2,2], strides=[2,2]> (s3)
  t3 = ConvTranspose <kernel_shape=[1,1], strides=[2,2], output_padding=[1,1]> (v3, w4)
  n3 = BatchNormalization (t3, one, mean, mean, one)
  u3 = Resize <mode="linear"> (x3, roi, up)
  e3 = Elu <alpha=0.5> (u3)
  big = Greater (u3, zero)
  k3 = Where (big, u3, e3)
  o3 = Max (k3, half, zero)
  l3 = LeakyRelu <alpha=0.1> (o3)
  y3 = Sub (l3, n3)
  p3 = Pad (y3, pads, fill)
  edges = MaxPool <kernel_shape=[3,3], strides=[3,3], ceil_mode=1> (p3)
  pooled = GlobalAveragePool (edges)
  flat = Flatten (pooled)
  f2 = Mul (flat, half)
  scores = Gemm <alpha=0.5, transB=1> (f2, w5)
}
"""

ROWS = """\
<ir_version: 8, opset_import: ["" : 18]>
g (float[6,8] x, int64[6] ids) => (float[6,8] y, int64[6] best)
<float[8,8] wq, float[8,8] wk, float[8] bias, float[8] gamma, float[8] beta, float[5,8] table,
 float half = {0.5}, float one = {1}, float root = {1.41421356}, float zero = {0}, int64[1] last = {1}>
{
  e = Gather (table, ids)
  z = Add (x, e)
  n = LayerNormalization <axis=-1> (z, gamma, beta)
  q0 = MatMul (n, wq)
  q = Add (q0, bias)
  k = MatMul (n, wk)
  kt = Transpose <perm=[1,0]> (k)
  s = MatMul (q, kt)
  a = Softmax (s)
  v = MatMul (a, n)
  d = Div (v, root)
  e1 = Erf (d)
  e2 = Add (e1, one)
  g1 = Mul (v, e2)
  g2 = Mul (g1, half)
  is_small = Less (g2, z)
  w = Where (is_small, g2, z)
  m = ReduceMean (w, last)
  y = Sub (w, m)
  best = ArgMax <axis=1, keepdims=0> (y)
}
"""


def write(path: Path, text: str) -> Path:
    """The model; what has a type and no value gets a seeded one."""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(3)
    for value in model.graph.value_info:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        array = rng.standard_normal(shape).astype(np.float32)
        array = np.abs(array) + np.float32(0.5) if value.name in ("one", "gamma") else array
        model.graph.initializer.append(numpy_helper.from_array(array, value.name))
    del model.graph.value_info[:]
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "float.yaml"
    path.write_text(TARGET)
    return path


@pytest.mark.parametrize("text", [IMAGES, ROWS], ids=["images", "rows"])
def test_every_layer_and_the_outputs_agree(fadiff, target: Path, tmp_path: Path, text: str) -> None:
    model = write(tmp_path / "net.onnx", text)
    arguments = ["--target", target, "--out", tmp_path / "out", "--method", "layerwise", "--verify"]
    ended = fadiff("compile", model, *arguments)
    assert ended.code == 0, ended.out + ended.err
    assert "within 1e-5" in ended.out and "bit-exact" not in ended.out
    result = json.loads((tmp_path / "out" / "verify" / "result.json").read_text())
    assert result["passed"] and result["traffic_exact"] and result["tolerance"] == 1e-5
    assert all(layer["max_relative_error"] <= 1e-5 for layer in result["layers"])
    assert result["sqnr_db"] is None or result["sqnr_db"] > 100
    document = json.loads((tmp_path / "out" / "schedule.json").read_text())
    for compiler in filter(shutil.which, ("gcc", "clang")):
        warnings = ("-Wall", "-Wextra", "-Wconversion", "-Werror")
        include = include_flags(load_target(target), tmp_path / "params")
        done = subprocess.run(
            [compiler, "-std=gnu11", "-O1", *warnings, *include, "-c", "net.c", "-o", tmp_path / "net.o"],
            cwd=tmp_path / "out" / "firmware",
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    kinds = {tensor["dtype"] for tensor in document["tensors"] if tensor["onnx_name"] != "ids"}
    assert kinds <= {"float32", "int32"} and all(t["scale"] is None for t in document["tensors"])


def test_sums_that_cancel_may_err_as_their_terms_do(fadiff, target: Path, tmp_path: Path) -> None:
    """Behind the ReLU 3e-5 is left of terms of up to 10, whose sums are rounded in another order."""
    rng = np.random.default_rng(0)
    half, terms = rng.standard_normal((8, 16)), rng.standard_normal((16, 1))
    first = np.concatenate([half, -half], 1)
    second = np.concatenate([np.concatenate([terms, terms]), rng.standard_normal((32, 2))], 1)
    text = """<ir_version: 8, opset_import: ["" : 18]>
        g (float[1,8] x) => (float[1,3] y)
        { h = MatMul (x, first) s = Gemm (h, second, bias) r = Relu (s)
          t = MatMul (x, third) y = Add (r, t) }"""
    model = onnx.parser.parse_model(text)
    bias = np.array([3e-5, -100, -100])
    arrays = {"first": first, "second": second, "bias": bias, "third": rng.standard_normal((8, 3))}
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    onnx.save(model, tmp_path / "net.onnx")
    ended = fadiff(
        "compile", tmp_path / "net.onnx", "--target", target, "--out", tmp_path / "out", "--verify"
    )
    assert ended.code == 0, ended.out + ended.err


GATED = """\
<ir_version: 8, opset_import: ["" : 18]>
g (float[1,1,9,9] x) => (float[1,4,9,9] y)
<int64[2] axes = {2,3}, float[1,1,1,1] w1, float[1,1,1,1] w2, float[4,1,1,1] w3>
{
  m = ReduceMean (x, axes)
  a = Conv <kernel_shape=[1,1]> (m, w1)
  r = Relu (a)
  b = Conv <kernel_shape=[1,1]> (r, w2)
  s = Sigmoid (b)
  z = Mul (x, s)
  y = Conv <kernel_shape=[1,1]> (z, w3)
}
"""


def test_a_gate_of_one_channel_builds(fadiff, tmp_path: Path) -> None:
    """GCC 12 warns of indices out of bounds in a branch that the gate's strides never take."""
    model = write(tmp_path / "net.onnx", GATED)
    ended = fadiff("compile", model, "--target", "gemmini-fp32", "--out", tmp_path / "out", "--verify")
    assert ended.code == 0, ended.out + ended.err


def test_main_compares_within_the_tolerance(fadiff, target: Path, tmp_path: Path) -> None:
    model = write(tmp_path / "net.onnx", ROWS)
    ended = fadiff("compile", model, "--target", target, "--out", tmp_path / "out", "--method", "layerwise")
    assert ended.code == 0, ended.err
    firmware = tmp_path / "out" / "firmware"
    done = check(firmware, "CHECK_LAYERS=1")
    assert done.returncode == 0 and "all outputs agree" in done.stdout, done.stdout + done.stderr
    assert "layers compared, all agree" in done.stdout
    weights = bytearray((firmware / "net_weights.bin").read_bytes())
    weights[3] ^= 0x40  # an exponent
    (firmware / "net_weights.bin").write_bytes(weights)
    done = check(firmware)
    assert done.returncode != 0 and "differs" in done.stdout
    done = check(firmware, "CHECK_LAYERS=1")
    assert done.returncode != 0 and "is wrong in bytes 0 to" in done.stdout
    assert "net: layer 0, " in done.stdout


def check(firmware: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """`make check` with this checkout's functional model."""
    return subprocess.run(
        ["make", "-s", "check", f"PYTHON={sys.executable}", *flags],
        cwd=firmware,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )


def test_quantising_for_a_float_array_is_refused(fadiff, target: Path, tmp_path: Path) -> None:
    model = write(tmp_path / "net.onnx", ROWS)
    ended = fadiff("compile", model, "--target", target, "--out", tmp_path / "out", "--quantize", "int8")
    assert ended.code == 2 and "float32: leave out --quantize int8" in ended.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "text",
    [
        "g (float[4,4] x) => (float[4,4] y) <float two = {2}> { y = Mod <fmod=1> (x, two) }",
        "g (float[4,4] x) => (int32[4,4] y) <float two = {2}> { Mod = Mul (x, two) y = Cast <to=6> (Mod) }",
    ],
)
def test_functions_without_a_formula_are_named(fadiff, target: Path, tmp_path: Path, text: str) -> None:
    model = write(tmp_path / "net.onnx", f'<ir_version: 8, opset_import: ["" : 18]> {text}')
    ended = fadiff("compile", model, "--target", target, "--out", tmp_path / "out")
    assert (
        ended.code == 2 and ("Mod" in ended.err or "Cast" in ended.err) and "use an int8 target" in ended.err
    )
