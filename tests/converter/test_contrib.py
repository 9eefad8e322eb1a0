"""Bodies of com.microsoft operators against ONNX Runtime's own kernels, one node at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from fadiff.converter import UnsupportedError, convert
from fadiff.converter.check.noise import sqnr_db
from fadiff.converter.check.reference import run_reference
from fadiff.converter.check.storage import from_storage, store_inputs
from fadiff.converter.decompose.contrib import FUNCTIONS, expand_contrib
from tests.converter.oracle import check, session

GENERATOR = np.random.default_rng(11)
B, S, H, D = 2, 5, 4, 8
WIDE = 16
"""Width of a head where kernels want a multiple of 16."""


def floats(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def integers(low: int, high: int, *shape: int, dtype: Any = np.int32) -> np.ndarray:
    return GENERATOR.integers(low, high, shape).astype(dtype)


def positive(*shape: int) -> np.ndarray:
    return (GENERATOR.random(shape) * 0.02 + 0.005).astype(np.float32)


@dataclass
class Case:
    """One node: `inputs` are given at run time, those named in `fixed` are constants; None is absent."""

    op: str
    inputs: list[np.ndarray | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    fixed: tuple[int, ...] = ()
    outputs: tuple[int, ...] = (0,)
    tolerance: float = 2e-5
    opset: int = 17
    lasts: tuple[int, ...] = ()
    """Of a cache: the last position of each sequence that counts."""

    def model(self) -> onnx.ModelProto:
        names = ["" if array is None else f"i{i}" for i, array in enumerate(self.inputs)]
        outputs = [f"o{i}" if i in self.outputs else "" for i in range(max(self.outputs) + 1)]
        domain = next(entry.domain for entry in FUNCTIONS if entry.op == self.op)
        node = helper.make_node(self.op, names, outputs, name="node", domain=domain, **self.attributes)
        both = enumerate(zip(names, self.inputs, strict=True))
        given = [(n, a, i in self.fixed) for i, (n, a) in both if a is not None]
        graph = helper.make_graph(
            [node],
            "one",
            [
                helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                for n, a, fixed in given
                if not fixed
            ],
            [helper.make_empty_tensor_value_info(name) for name in outputs if name],
            [numpy_helper.from_array(a, n) for n, a, fixed in given if fixed],
        )
        versions = {"": self.opset, "com.microsoft": 1, "ai.onnx.ml": 1}
        opsets = [helper.make_opsetid(*entry) for entry in versions.items()]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def feeds(self) -> dict[str, np.ndarray]:
        return {
            f"i{i}": array for i, array in enumerate(self.inputs) if array is not None and i not in self.fixed
        }


X = floats(B, S, H * D)
WEIGHTS, BIAS = floats(H * D, 3 * H * D) / 4, floats(3 * H * D)
PAST = floats(2, B, H, 3, D)
MASK = np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], np.int32)
LONG_MASK = np.concatenate([np.ones((B, 3), np.int32), MASK], axis=1)
ATTENTION = {"num_heads": H}
Q, K, V = (floats(B, n, H * D) for n in (S, 7, 7))
CACHE = floats(B, H, 3, D), floats(B, H, 3, D)
ANGLES = GENERATOR.random((16, D // 2)).astype(np.float32) * 6
COS, SIN = np.cos(ANGLES), np.sin(ANGLES)


def grouped(length: int, past: int, total: int, lasts: list[int], known: bool = False, **more: Any) -> Case:
    """A GroupQueryAttention with two heads of keys for four of queries."""
    sink, packed = more.pop("sink", None), more.pop("packed", False)
    batch = len(lasts)
    q, k, v = (floats(batch, length, heads * WIDE) for heads in (H, 2, 2))
    rotary = [np.concatenate([table] * 2, axis=1) for table in (COS, SIN)] if more.get("do_rotary") else []
    cache = [floats(batch, 2, past, WIDE), floats(batch, 2, past, WIDE)]
    given = [np.concatenate([q, k, v], axis=2), None, None] if packed else [q, k, v]
    inputs = [*given, *cache, np.array(lasts, np.int32), np.array([total], np.int32), *rotary]
    if sink is not None:
        inputs += [None] * (11 - len(inputs)) + [sink]
    fixed = (5, 6, 7, 8) if known else (6, 7, 8)
    attributes = {"num_heads": H, "kv_num_heads": 2, **more}
    return Case("GroupQueryAttention", inputs, attributes, fixed, (0, 1, 2), lasts=tuple(lasts))


def blocks(bits: int, zeros: str, **more: Any) -> Case:
    """A MatMulNBits with weights [12 columns, 80 rows] in blocks of 32."""
    columns, rows, block = 12, 80, 32
    count = -(-rows // block)
    packed = integers(0, 256, columns, count, block * bits // 8, dtype=np.uint8)
    inputs = [floats(2, 3, rows), packed, positive(columns, count)]
    if zeros == "packed":
        inputs.append(integers(0, 256, columns, -(-count * bits // 8), dtype=np.uint8))
    elif zeros == "float":
        inputs.append(floats(columns, count))
    attributes = {"K": rows, "N": columns, "bits": bits, "block_size": block, **more}
    return Case("MatMulNBits", inputs, attributes, (1, 2, 3), tolerance=1e-4)


QUANTISED = integers(0, 255, B, S, 32, dtype=np.uint8), integers(-60, 60, 32, 96, dtype=np.int8)
TABLES, AFFINE = (floats(9, 32), floats(8, 32)), (floats(32), floats(32))

CLASSES = {"coefficients": floats(12).tolist(), "intercepts": [0.1, -0.2, 0.3]}
CASES = {
    "skip": Case(
        "SkipLayerNormalization", [X, floats(*X.shape), floats(32), floats(32), floats(32)], {}, (2,)
    ),
    "skip, sum, no beta": Case(
        "SkipLayerNormalization", [X, floats(*X.shape), floats(32)], {"epsilon": 1e-3}, outputs=(0, 3)
    ),
    "skip that broadcasts": Case("SkipLayerNormalization", [X, floats(1, S, 32), floats(32), floats(32)]),
    "rms": Case("SimplifiedLayerNormalization", [X, floats(32)], {"epsilon": 1e-3, "axis": -1}),
    "rms, opset 18": Case("SimplifiedLayerNormalization", [X, floats(32)], {"stash_type": 1}, opset=18),
    "skip rms": Case(
        "SkipSimplifiedLayerNormalization", [X, floats(*X.shape), floats(32), floats(32)], outputs=(0, 3)
    ),
    "embedding": Case(
        "EmbedLayerNormalization",
        [integers(0, 9, B, S), integers(0, 2, B, S), *TABLES, floats(2, 32), *AFFINE, MASK],
        {"epsilon": 1e-12},
        (2, 3, 4, 5, 6),
        (0, 1, 2),
    ),
    "embedding at positions": Case(
        "EmbedLayerNormalization",
        [integers(0, 9, B, S), None, *TABLES, None, *AFFINE, None, integers(0, 8, B, S)],
        {},
        (2, 3, 5, 6),
        (0, 1),
    ),
    "gelu": Case("Gelu", [X]),
    "quick gelu": Case("QuickGelu", [X], {"alpha": 1.3}),
    "fast gelu": Case("FastGelu", [X]),
    "fast gelu, bias": Case("FastGelu", [X, floats(32)]),
    "bias gelu": Case("BiasGelu", [X, floats(32)]),
    "conv relu": Case(
        "FusedConv",
        [floats(1, 3, 8, 8), floats(4, 3, 3, 3), floats(4)],
        {"activation": "Relu", "pads": [1, 1, 1, 1], "strides": [2, 2]},
    ),
    "conv sum": Case(
        "FusedConv",
        [floats(1, 4, 8, 8), floats(4, 2, 1, 1), floats(4), floats(1, 4, 8, 8)],
        {"activation": "Relu", "group": 2},
    ),
    **{
        f"conv {name}": Case(
            "FusedConv",
            [floats(1, 3, 8, 8), floats(4, 3, 3, 3)],
            {"activation": name, **({"activation_params": parameters} if parameters else {})},
        )
        for name, parameters in {
            "LeakyRelu": [0.2],
            "Clip": [-0.5, 1.5],
            "HardSigmoid": [0.3, 0.4],
            "Sigmoid": [],
            "Tanh": [],
        }.items()
    },
    "gemm": Case(
        "FusedGemm",
        [floats(5, 8), floats(6, 8), floats(6)],
        {"activation": "LeakyRelu", "activation_alpha": 0.3, "transB": 1, "alpha": 0.5, "beta": 2.0},
    ),
    "gemm relu": Case("FusedGemm", [floats(5, 8), floats(8, 6)], {"activation": "Relu"}),
    "matmul": Case(
        "FusedMatMul", [floats(2, 3, 8, 5), floats(2, 3, 6, 8)], {"transA": 1, "transB": 1, "alpha": 0.3}
    ),
    "matmul plain": Case("FusedMatMul", [floats(2, 5, 8), floats(8, 6)], {"alpha": -2.0}),
    "matmul batches": Case(
        "FusedMatMul", [floats(5, 2, 3, 8), floats(8, 2, 3, 6)], {"transBatchA": 1, "transBatchB": 1}
    ),
    "matmul batches and sides": Case(
        "FusedMatMul",
        [floats(8, 2, 3, 5), floats(6, 2, 3, 8)],
        {"transBatchA": 1, "transBatchB": 1, "transA": 1, "transB": 1},
    ),
    "transposed": Case("TransposeMatMul", [floats(8, 5), floats(6, 8)], {"transA": 1, "transB": 1}),
    "4 bits": blocks(4, ""),
    "4 bits, zero points": blocks(4, "packed"),
    "4 bits, float zero points": blocks(4, "float"),
    "8 bits": blocks(8, "packed"),
    "2 bits": blocks(2, "packed"),
    "attention": Case("Attention", [X, WEIGHTS, BIAS], ATTENTION, (1, 2)),
    "attention, mask": Case("Attention", [X, WEIGHTS, BIAS, MASK], ATTENTION, (1, 2)),
    "attention, mask value": Case(
        "Attention", [X, WEIGHTS, BIAS, MASK], {**ATTENTION, "mask_filter_value": -3.0}, (1, 2)
    ),
    "attention, lengths": Case(
        "Attention", [X, WEIGHTS, BIAS, np.array([4, 2], np.int32)], ATTENTION, (1, 2)
    ),
    "attention, ends and beginnings": Case(
        "Attention", [X, WEIGHTS, BIAS, np.array([5, 3, 1, 0], np.int32)], ATTENTION, (1, 2)
    ),
    "attention, mask of pairs": Case(
        "Attention", [X, WEIGHTS, BIAS, integers(0, 2, B, S, S)], ATTENTION, (1, 2)
    ),
    "attention, causal with past": Case(
        "Attention",
        [X, WEIGHTS, BIAS, LONG_MASK, PAST],
        {**ATTENTION, "unidirectional": 1},
        (1, 2),
        (0, 1),
    ),
    "attention, causal": Case(
        "Attention", [X, WEIGHTS, BIAS], {**ATTENTION, "unidirectional": 1}, (1, 2), (0, 1)
    ),
    "attention, one step": Case(
        "Attention", [X[:, :1], WEIGHTS, BIAS, None, PAST], {**ATTENTION, "unidirectional": 1}, (1, 2), (0, 1)
    ),
    "attention, bias and scale": Case(
        "Attention", [X, WEIGHTS, BIAS, None, None, floats(B, H, S, S)], {**ATTENTION, "scale": 0.2}, (1, 2)
    ),
    "attention, sizes": Case(
        "Attention",
        [X, floats(32, 64) / 4, floats(64)],
        {**ATTENTION, "qkv_hidden_sizes": [16, 16, 32]},
        (1, 2),
    ),
    "heads": Case("MultiHeadAttention", [Q, K, V], ATTENTION),
    "heads, bias": Case("MultiHeadAttention", [Q, K, V, BIAS], ATTENTION, (3,)),
    "heads, cached keys": Case("MultiHeadAttention", [Q, floats(B, H, 7, D), floats(B, H, 7, D)], ATTENTION),
    "heads, mask": Case(
        "MultiHeadAttention", [Q, K, V, None, integers(0, 2, B, 7)], {**ATTENTION, "scale": 0.3}
    ),
    "heads, lengths": Case(
        "MultiHeadAttention", [Q, K, V, BIAS, np.array([4, 7], np.int32)], ATTENTION, (3,)
    ),
    "heads, bias of scores": Case("MultiHeadAttention", [Q, K, V, None, None, floats(1, H, S, 7)], ATTENTION),
    "heads, past": Case(
        "MultiHeadAttention",
        [Q, floats(*Q.shape), floats(*Q.shape), None, None, None, *CACHE],
        {**ATTENTION, "unidirectional": 1},
        outputs=(0, 1, 2),
    ),
    "heads, wide values": Case("MultiHeadAttention", [Q, K, floats(B, 7, 48)], ATTENTION),
    "grouped": grouped(5, 0, 5, [4, 4]),
    "grouped, packed": grouped(5, 0, 5, [4, 4], packed=True, do_rotary=1),
    "grouped, rotary pairs": grouped(5, 0, 5, [4, 4], do_rotary=1, rotary_interleaved=1),
    "grouped, window": grouped(7, 0, 7, [6, 6], local_window_size=3),
    "grouped, softcap": grouped(5, 0, 5, [4, 4], softcap=2.0, scale=0.4),
    "grouped, smooth": grouped(5, 0, 5, [4, 4], smooth_softmax=1),
    "grouped, sink": grouped(5, 0, 5, [4, 4], sink=floats(H)),
    "grouped, step": grouped(1, 6, 7, [6, 6], known=True, do_rotary=1),
    "grouped, step at run time": grouped(1, 6, 7, [6, 6], do_rotary=1),
    "grouped, step into a buffer": grouped(1, 9, 7, [6, 6], known=True, do_rotary=1),
    "grouped, step into a buffer at run time": grouped(1, 9, 7, [6, 4], do_rotary=1, local_window_size=2),
    "grouped, more words": grouped(3, 6, 9, [8], known=True, do_rotary=1),
    "grouped, more words at run time": grouped(3, 6, 9, [8], do_rotary=1),
    "scaler": Case("ImageScaler", [floats(1, 3, 4, 5)], {"bias": [1.0, -2.0, 3.0], "scale": 0.5}, opset=9),
    "affine": Case("Affine", [floats(2, 3)], {"alpha": 0.5, "beta": 2.0}, opset=9),
    "crop": Case("Crop", [floats(1, 2, 9, 8)], {"border": [1, 2, 0, 3]}, opset=9),
    "crop to a size": Case("Crop", [floats(1, 2, 9, 8)], {"border": [1, 2, 0, 0], "scale": [3, 4]}, opset=9),
    "dynamic product": Case(
        "DynamicQuantizeMatMul",
        [
            floats(2, 3, 32),
            integers(0, 255, 32, 12, dtype=np.uint8),
            positive(12),
            integers(100, 150, 12, dtype=np.uint8),
        ],
        {},
        (1, 2, 3),
        tolerance=0.02,
    ),
    "integer product": Case(
        "MatMulIntegerToFloat",
        [
            integers(0, 255, 3, 32, dtype=np.uint8),
            integers(-60, 60, 32, 12, dtype=np.int8),  # more saturate in kernels without VNNI
            positive(1)[0],
            positive(12),
            np.uint8(120),
            None,
            floats(12),
        ],
        {},
        (1, 2, 3, 4),
        tolerance=1e-4,
    ),
    **{
        f"integer attention{name}": Case(
            "QAttention",
            [*QUANTISED, BIAS, np.float32(0.02), scale, *more],
            {**ATTENTION, **({"unidirectional": 1} if len(more) > 3 else {})},
            (1, 2, 3, 4, 6, 7),
            (0, 1) if len(more) > 3 else (0,),
            tolerance=1e-4,
        )
        for name, scale, more in (
            ("", np.asarray(0.01, np.float32), [None, np.uint8(128)]),
            (" by column, mask", positive(96) / 2, [MASK, np.uint8(120), np.zeros(96, np.int8)]),
            (", past", np.float32(0.01), [LONG_MASK, np.uint8(128), np.int8(3), PAST]),
        )
    },
    "integer embedding": Case(
        "QEmbedLayerNormalization",
        [
            *(integers(0, high, B, S) for high in (9, 2)),
            *(integers(0, 255, n, 32, dtype=np.uint8) for n in (9, 8, 2)),
            *(integers(0, 255, 32, dtype=np.uint8) for _ in range(2)),
            MASK,
            *(np.float32(scale) for scale in (0.01, 0.02, 0.03, 0.005, 0.01)),
            *(np.uint8(zero) for zero in (128, 120, 130, 3, 100)),
        ],
        {},
        tuple(i for i in range(2, 18) if i != 7),
        (0, 1),
        tolerance=1e-4,
    ),
    "features, scaler": Case("Scaler", [floats(3, 4)], {"offset": [1.0, 2, 3, 4], "scale": [0.5, 1, 2, 4]}),
    "scaler, one for all": Case("Scaler", [floats(3, 4)], {"offset": [1.0], "scale": [0.5]}),
    **{
        f"normalizer, {norm}": Case("Normalizer", [floats(3, 4)], {"norm": norm})
        for norm in ("MAX", "L1", "L2")
    },
    "binarizer": Case("Binarizer", [floats(3, 4)], {"threshold": 0.3}),
    "features": Case(
        "FeatureVectorizer",
        [floats(3, 4), floats(3, 2), floats(3, 1)],
        {"inputdimensions": [4, 2, 1]},
    ),
    **{
        f"linear regressor, {how}": Case("LinearRegressor", [floats(3, 4)], attributes)
        for how, attributes in {
            "one": {"coefficients": [1.0, -2, 0.5, 3], "intercepts": [0.25]},
            "two": {
                "coefficients": [1.0, -2, 0.5, 3, 0, 1, -1, 2],
                "targets": 2,
                "post_transform": "LOGISTIC",
            },
        }.items()
    },
    **{
        f"linear classifier, {how}": Case(
            "LinearClassifier", [floats(5, 4)], {**CLASSES, **attributes}, outputs=outputs
        )
        for how, attributes, outputs in (
            ("sums", {"classlabels_ints": [0, 1, 2]}, (0, 1)),
            (
                "shares",
                {"classlabels_ints": [7, 5, 6], "post_transform": "SOFTMAX", "multi_class": 1},
                (0, 1),
            ),
            ("each", {"classlabels_ints": [3, 1, 2], "post_transform": "LOGISTIC"}, (0, 1)),
        )
    },
    "features, labels": Case(
        "ArrayFeatureExtractor",
        [integers(0, 99, 7, dtype=np.int64), integers(0, 7, 3, dtype=np.int64)],
        {},
        (0,),
    ),
    "features, columns": Case("ArrayFeatureExtractor", [floats(3, 4), np.array([2, 0], np.int64)], {}, (1,)),
    "rotary": Case("RotaryEmbedding", [X, np.zeros(1, np.int64), COS, SIN], {}, (2, 3)),
    "rotary, offset": Case("RotaryEmbedding", [X, np.full(1, 3, np.int64), COS, SIN], {}, (1, 2, 3)),
    "rotary, positions": Case(
        "RotaryEmbedding",
        [floats(B, H, S, D), integers(0, 16, B, S, dtype=np.int64), COS, SIN],
        {"interleaved": 1},
        (2, 3),
    ),
    "rotary, part": Case(
        "RotaryEmbedding",
        [X, integers(0, 16, B, S, dtype=np.int64), COS[:, :2], SIN[:, :2]],
        {"num_heads": H, "rotary_embedding_dim": 4},
        (2, 3),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_body_computes_what_the_kernel_does(name: str) -> None:
    case = CASES[name]
    model = case.model()
    expected = session(model).run(None, case.feeds())
    model, expansion = expand_contrib(model)
    assert expansion.done == (case.op,) and not expansion.refused
    assert {node.domain for node in model.graph.node} == {""}
    found = session(model).run(None, case.feeds())
    for i, (wanted, real) in enumerate(zip(expected, found, strict=True)):
        for sequence, last in enumerate(case.lasts if i else ()):  # (what is behind is never read)
            wanted[sequence, :, last + 1 :] = real[sequence, :, last + 1 :] = 0
        np.testing.assert_allclose(real, wanted, atol=case.tolerance * max(1, np.abs(wanted).max()))


@pytest.mark.parametrize("labels", [[0, 1, 2], [30, 10, 20]])
def test_a_pipeline_of_scikit_learn(labels: list[int], tmp_path: Path) -> None:
    """Columns in their own units, standardised and classified."""
    middle, spread = np.float32([101325, 25, 1e-3, 40]), np.float32([500, 8, 4e-4, 12])
    learned = {"domain": "ai.onnx.ml"}
    scale = {"offset": middle.tolist(), "scale": (1 / spread).tolist()}
    classes = {**CLASSES, "classlabels_ints": labels, "post_transform": "SOFTMAX"}
    nodes = [
        helper.make_node("FeatureVectorizer", ["a", "b"], ["v"], inputdimensions=[3, 1], **learned),
        helper.make_node("Scaler", ["v"], ["s"], **learned, **scale),
        helper.make_node("LinearClassifier", ["s"], ["label", "shares"], **learned, **classes),
    ]
    ends = {"a": (1, [1, 3]), "b": (1, [1, 1]), "label": (7, [1]), "shares": (1, [1, 3])}
    infos = [helper.make_tensor_value_info(name, *info) for name, info in ends.items()]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph(nodes, "pipeline", infos[:2], infos[2:])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    rows = middle + spread * floats(96, 1, 4)
    samples = [{"a": row[:, :3], "b": row[:, 3:]} for row in rows]
    conversion = convert(tmp_path / "m.onnx", calibration=samples[:64])
    original, same, found, wanted = session(onnx.load(tmp_path / "m.onnx")), 0, [], []
    for sample in samples[64:]:
        label, shares = original.run(None, sample)
        integers = run_reference(conversion.graph, store_inputs(conversion.graph, sample))
        tensors = [conversion.graph.tensors[name] for name in conversion.graph.outputs]
        same += int(from_storage(tensors[0], integers[tensors[0].name], (1,))[0] == label[0])
        found.append(from_storage(tensors[1], integers[tensors[1].name], (1, 3)))
        wanted.append(shares)
    assert same >= 31 and sqnr_db(np.stack(wanted), np.stack(found)) > 30


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({"classlabels_strings": ["a", "b", "c"]}, "its labels are strings"),
        (
            {"classlabels_ints": [0, 1], "intercepts": [0.5], "coefficients": [1.0] * 4},
            "1 row.s. of coefficients for 2 classes",
        ),
        ({"classlabels_ints": [0, 1, 2], "post_transform": "PROBIT"}, "post_transform PROBIT"),
        ({"classlabels_ints": [0, 1, 2], "coefficients": [1.0] * 9}, "i0 has shape .5, 4."),
    ],
)
def test_classifiers_that_are_refused(attributes: dict[str, Any], why: str, tmp_path: Path) -> None:
    model = Case("LinearClassifier", [floats(5, 4)], {**CLASSES, **attributes}, outputs=(0, 1)).model()
    _, expansion = expand_contrib(model)
    assert re.search(why, expansion.refused["node"].reason)


def test_a_model_of_another_domain_alone_has_no_opset_of_onnx(tmp_path: Path) -> None:
    """As the cases of ai.onnx.ml in onnx's suite: nothing but their own domain is imported."""
    model = CASES["features, columns"].model()
    ours = [entry for entry in model.opset_import if entry.domain == "ai.onnx.ml"]
    del model.opset_import[:]
    model.opset_import.extend(ours)
    assert check(model, tmp_path).lsb_to_quantized == 0


@pytest.mark.parametrize("parts", [2, 3])
def test_packed_heads_are_the_same_side_by_side(parts: int) -> None:
    """Packed keys and values, or all three: [batch, length, heads, parts, width], which no CPU kernel has."""
    packed = floats(B, S, H, parts, D)
    apart = [packed[:, :, :, i].reshape(B, S, H * D) for i in range(parts)]
    inputs = [packed, None, None] if parts == 3 else [Q, packed, None]
    kernel = Case("MultiHeadAttention", apart if parts == 3 else [Q, *apart], ATTENTION)
    (expected,) = session(kernel.model()).run(None, kernel.feeds())
    case = Case("MultiHeadAttention", inputs, ATTENTION)
    model = case.model()
    model, expansion = expand_contrib(model)
    assert expansion.done
    (found,) = session(model).run(None, case.feeds())
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (Case("FusedConv", CASES["conv relu"].inputs, {"activation": "Mish"}), "activation Mish"),
        (Case("MatMulNBits", blocks(4, "").inputs, {**blocks(4, "").attributes}, ()), "at run time"),
        (Case("Attention", CASES["attention"].inputs, {**ATTENTION, "do_rotary": 1}, (1, 2)), "do_rotary=1"),
        (Case("SkipLayerNormalization", CASES["skip"].inputs, {}, outputs=(0, 2)), "output o2"),
        (grouped(1, 6, 7, [6]), "total_sequence_length"),
    ],
)
def test_what_a_body_does_not_say_is_refused_by_name(case: Case, why: str, tmp_path: Path) -> None:
    """With what to do about it, before anything behind it needs its shape."""
    if case.op == "GroupQueryAttention":
        case.fixed = ()
    onnx.save(case.model(), tmp_path / "m.onnx")
    with pytest.raises(UnsupportedError, match=why) as caught:
        convert(tmp_path / "m.onnx", calibrate=False)
    (problem,) = caught.value.problems
    assert problem.op == case.op and "save the model" in problem.remedy
