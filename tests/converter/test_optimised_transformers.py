"""Transformers as ONNX Runtime's optimiser and exporters leave them keep the float model's answers.

Two layers of 32 numbers each with seeded weights; the oracle is ONNX Runtime running the very file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from fadiff.converter import convert
from fadiff.converter.check.reference import run_reference
from fadiff.converter.check.storage import from_storage, store_inputs
from tests.converter.oracle import session, sqnr_db

HIDDEN, HEADS, LENGTH, WORDS, CLASSES, PAST = 32, 4, 12, 40, 8, 6
SAMPLES, CALIBRATION = (
    int(os.environ.get(name, least)) for name, least in (("SAMPLES", 5), ("CALIBRATION", 2))
)
Feeds = dict[str, np.ndarray]


class Net:
    """Nodes as text, with the weights that they ask for."""

    def __init__(self, header: str, seed: int) -> None:
        self.header = header
        self.lines: list[str] = []
        self.weights: dict[str, np.ndarray] = {}
        self.generator = np.random.default_rng(seed)
        self.count = 0

    def weight(self, *shape: int) -> str:
        """Numbers that keep the variance; vectors are a little of everything."""
        deviation = shape[-2] ** -0.5 if len(shape) > 1 else 0.1
        return self.constant((self.generator.standard_normal(shape) * deviation).astype(np.float32))

    def gain(self) -> str:
        return self.constant((1 + 0.2 * self.generator.standard_normal(HIDDEN)).astype(np.float32))

    def constant(self, array: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = array
        return name

    def op(self, op: str, *inputs: str, outputs: str = "", attributes: str = "") -> str:
        """One node; operators with a capital letter behind a dot are com.microsoft's."""
        self.count += 1
        first = f"v{self.count}"
        settings = f"<{attributes}>" if attributes else ""
        self.lines.append(f"{first}{outputs.format(first)} = {op} {settings} ({', '.join(inputs)})")
        return first

    def ms(self, op: str, *inputs: str, outputs: str = "", attributes: str = "") -> str:
        return self.op(f"com.microsoft.{op}", *inputs, outputs=outputs, attributes=attributes)

    def model(self, result: str, name: str = "y") -> onnx.ModelProto:
        self.lines.append(f"{name} = Identity ({result})")
        body = "\n".join(self.lines)
        text = f'<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> net {self.header} {{ {body} }}'
        model = parser.parse_model(text)
        model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in self.weights.items())
        return model

    def head(self, x: str) -> str:
        """Classes by the first position."""
        first = self.op("Gather", x, self.constant(np.int64(0)), attributes="axis = 1")
        return self.op("Gemm", first, self.weight(HIDDEN, CLASSES), self.weight(CLASSES))

    def block(self, x: str, attended: str, activation: str) -> tuple[str, str]:
        """What follows attention, residuals and norms included: the last norm, and the sum before it."""
        projected = self.op("MatMul", attended, self.weight(HIDDEN, HIDDEN))
        norm = [self.gain(), self.weight(HIDDEN), self.weight(HIDDEN)]
        y = self.ms("SkipLayerNormalization", projected, x, *norm, outputs=", , , {}_sum")
        wide = self.op("MatMul", y, self.weight(HIDDEN, 2 * HIDDEN))
        wide = self.ms(activation, wide, self.weight(2 * HIDDEN))
        down = self.op("MatMul", wide, self.weight(2 * HIDDEN, HIDDEN))
        norm = [self.gain(), self.weight(HIDDEN), self.weight(HIDDEN)]
        residual = y if activation == "BiasGelu" else f"{y}_sum"
        z = self.ms("SkipLayerNormalization", down, residual, *norm, outputs=", , , {}_sum")
        return z, f"{z}_sum"


def bert() -> onnx.ModelProto:
    net = Net(f"(int32[1,{LENGTH}] ids, int32[1,{LENGTH}] kinds, int32[1,{LENGTH}] mask) => (float y)", 1)
    tables = [net.weight(n, HIDDEN) for n in (WORDS, LENGTH, 2)]
    x = net.ms(
        "EmbedLayerNormalization", "ids", "kinds", *tables, net.gain(), net.weight(HIDDEN), "mask",
        outputs=", {}_mask",
    )  # fmt: skip
    ends = f"{x}_mask"
    for _ in range(2):
        weights = net.weight(HIDDEN, 3 * HIDDEN), net.weight(3 * HIDDEN)
        attended = net.ms("Attention", x, *weights, ends, attributes=f"num_heads = {HEADS}")
        x, _ = net.block(x, attended, "BiasGelu")
    return net.model(net.head(x))


def distilbert() -> onnx.ModelProto:
    net = Net(f"(int64[1,{LENGTH}] ids, int32[1,{LENGTH}] mask) => (float y)", 2)
    words = net.op("Gather", net.weight(WORDS, HIDDEN), "ids")
    places = net.weight(1, LENGTH, HIDDEN)
    x = net.ms("SkipLayerNormalization", words, places, net.gain(), net.weight(HIDDEN))
    for _ in range(2):
        parts = [net.op("MatMul", x, net.weight(HIDDEN, HIDDEN)) for _ in range(3)]
        attended = net.ms(
            "MultiHeadAttention", *parts, net.weight(3 * HIDDEN), "mask", attributes=f"num_heads = {HEADS}"
        )
        x, _ = net.block(x, attended, "BiasGelu")
    return net.model(net.head(x))


def gpt2() -> onnx.ModelProto:
    past = f"2,1,{HEADS},{PAST},{HIDDEN // HEADS}"
    net = Net(f"(int64[1,1] ids, float[{past}] past0, float[{past}] past1) => (float y, float present0)", 3)
    total = net.op("Gather", net.weight(WORDS, HIDDEN), "ids")
    total = net.op("Add", total, net.weight(1, 1, HIDDEN))
    x = net.op("LayerNormalization", total, net.gain(), net.weight(HIDDEN))
    for i in range(2):
        weights = net.weight(HIDDEN, 3 * HIDDEN), net.weight(3 * HIDDEN)
        attended = net.ms(
            "Attention", x, *weights, "", f"past{i}",
            outputs=", {}_present", attributes=f"num_heads = {HEADS}, unidirectional = 1",
        )  # fmt: skip
        if not i:
            net.lines.append(f"present0 = Identity ({attended}_present)")
        x, total = net.block(total, attended, "FastGelu")
    logits = net.op("MatMul", x, net.weight(HIDDEN, CLASSES))
    return net.model(net.op("Reshape", logits, net.constant(np.array([1, CLASSES]))))


def whisper_encoder() -> onnx.ModelProto:
    net = Net(f"(float[1,{LENGTH},{HIDDEN}] x) => (float y)", 4)
    total = net.op("Add", "x", net.weight(1, LENGTH, HIDDEN))
    x = net.op("LayerNormalization", total, net.gain(), net.weight(HIDDEN))
    for _ in range(2):
        parts = [net.op("MatMul", x, net.weight(HIDDEN, HIDDEN)) for _ in range(3)]
        heads = f"num_heads = {HEADS}"
        attended = net.ms("MultiHeadAttention", *parts, net.weight(3 * HIDDEN), attributes=heads)
        x, total = net.block(total, attended, "FastGelu")
    return net.model(net.head(x))


def llama() -> onnx.ModelProto:
    """A step with a cache: grouped heads, rotary positions, RMS norms, 4-bit weights."""
    width = 16
    cache = f"1,1,{PAST},{width}"
    names = [f"{kind}{i}" for i in range(2) for kind in ("keys", "values")]
    inputs = ", ".join(f"float[{cache}] {name}" for name in names)
    net = Net(f"(int64[1,1] ids, int64[1,{PAST + 1}] seen, {inputs}) => (float y, float present)", 5)
    angles = np.outer(np.arange(16), 0.3 ** np.arange(width // 2)).astype(np.float32)
    cos, sin = net.constant(np.cos(angles)), net.constant(np.sin(angles))
    lasts = net.constant(np.array([PAST], np.int32))
    # As ONNX Runtime's replace_mha_with_gqa writes it: the length of the mask.
    length = net.op("Gather", net.op("Shape", "seen"), net.constant(np.int64(1)), attributes="axis = 0")
    all_of = net.op("Cast", length, attributes="to = 6")
    total = net.op("Gather", net.weight(WORDS, HIDDEN), "ids")
    x = net.op("SimplifiedLayerNormalization", total, net.gain(), attributes="axis = -1")
    for i in range(2):
        q, k, v = (net.op("MatMul", x, net.weight(HIDDEN, n)) for n in (HIDDEN, width, width))
        attended = net.ms(
            "GroupQueryAttention", q, k, v, f"keys{i}", f"values{i}", lasts, all_of, cos, sin,
            outputs=", {0}_k, {0}_v",
            attributes=f"num_heads = {HIDDEN // width}, kv_num_heads = 1, do_rotary = 1",
        )  # fmt: skip
        if not i:
            net.lines.append(f"present = Identity ({attended}_k)")
        packed = net.generator.integers(0, 256, (HIDDEN, 1, 16)).astype(np.uint8)
        scales = (0.02 + 0.02 * net.generator.random(HIDDEN)).astype(np.float32)
        bits = f"K = {HIDDEN}, N = {HIDDEN}, bits = 4, block_size = 32"
        projected = net.ms(
            "MatMulNBits", attended, net.constant(packed), net.constant(scales), attributes=bits
        )
        x = net.ms("SkipSimplifiedLayerNormalization", projected, total, net.gain(), outputs=", , , {}_sum")
        total = f"{x}_sum"
        gate, up = (net.op("MatMul", x, net.weight(HIDDEN, 2 * HIDDEN)) for _ in range(2))
        gated = net.op("Mul", net.ms("QuickGelu", gate, attributes="alpha = 1.0"), up)
        down = net.op("MatMul", gated, net.weight(2 * HIDDEN, HIDDEN))
        x = net.ms("SkipSimplifiedLayerNormalization", down, total, net.gain(), outputs=", , , {}_sum")
        total = f"{x}_sum"
    logits = net.op("MatMul", x, net.weight(HIDDEN, CLASSES))
    return net.model(net.op("Reshape", logits, net.constant(np.array([1, CLASSES]))))


def vit() -> onnx.ModelProto:
    net = Net("(float[1,3,16,16] image) => (float y)", 6)
    kernel = net.constant((net.generator.standard_normal((HIDDEN, 3, 4, 4)) * 0.15).astype(np.float32))
    patches = net.op("Conv", "image", kernel, net.weight(HIDDEN), attributes="strides = [4, 4]")
    rows = net.op("Reshape", patches, net.constant(np.array([1, HIDDEN, 16])))
    rows = net.op("Transpose", rows, attributes="perm = [0, 2, 1]")
    total = net.op("Add", rows, net.weight(1, 16, HIDDEN))
    x = net.op("LayerNormalization", total, net.gain(), net.weight(HIDDEN))
    for _ in range(2):
        weights = net.weight(HIDDEN, 3 * HIDDEN), net.weight(3 * HIDDEN)
        attended = net.ms("Attention", x, *weights, attributes=f"num_heads = {HEADS}")
        x, total = net.block(total, attended, "FastGelu")
    pooled = net.op("ReduceMean", x, attributes="axes = [1], keepdims = 0")
    return net.model(net.op("Gemm", pooled, net.weight(HIDDEN, CLASSES), net.weight(CLASSES)))


def _feeds(model: onnx.ModelProto, generator: np.random.Generator) -> Feeds:
    feeds: Feeds = {}
    for value in model.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if value.name == "mask":  # padded behind
            feeds[value.name] = (np.arange(LENGTH) < generator.integers(4, LENGTH + 1))[None].astype(kind)
        elif kind.kind == "i":
            feeds[value.name] = generator.integers(0, 2 if value.name == "kinds" else WORDS, shape).astype(
                kind
            )
        else:
            feeds[value.name] = generator.standard_normal(shape).astype(kind)
    return feeds


@pytest.mark.parametrize("make", [bert, distilbert, gpt2, whisper_encoder, llama, vit])
def test_an_optimised_transformer_keeps_its_answers(
    make: Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    model = make()
    onnx.save(model, tmp_path / "m.onnx")
    generator = np.random.default_rng(0)
    original = session(model)
    samples = [_feeds(model, generator) for _ in range(CALIBRATION)]
    conversion = convert(tmp_path / "m.onnx", calibration=samples, without=["round-weights"])
    graph, floats = conversion.graph, session(conversion.float_model)
    agree, worst = 0, np.inf
    for _ in range(SAMPLES):
        feeds = _feeds(model, generator)
        expected = original.run(None, feeds)
        for wanted, real in zip(expected, floats.run(None, feeds), strict=True):
            np.testing.assert_allclose(real, wanted, atol=1e-4)
        found = run_reference(graph, store_inputs(graph, feeds))
        (name, wanted) = next(
            (n, w) for n, w in zip(graph.outputs, expected, strict=True) if w.shape[-1] == CLASSES
        )
        restored = from_storage(graph.tensors[name], found[name], wanted.shape)
        agree += int(restored.argmax() == wanted.argmax())
        worst = min(worst, sqnr_db(wanted, restored))
    print(make.__name__, agree, worst)  # (docs/wild-models.md has the counts with more samples)
    assert agree >= 0.6 * SAMPLES
