"""The table of contrib operators: what their bodies understand, and which are refused on purpose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fadiff.converter.contrib import (
    activations,
    attention,
    features,
    grouped,
    legacy,
    norms,
    products,
    quantised,
    rotary,
)
from fadiff.converter.contrib.call import Call
from fadiff.converter.decompose.nodes import Nodes

Constraint = Callable[[Call], str | None]
MICROSOFT = "com.microsoft"
LEARNING = "ai.onnx.ml"


@dataclass(frozen=True)
class Function:
    """One operator with a body in standard ones.

    The docstrings of the constraints are the rules in docs/SUPPORTED_OPS.md.

    Attributes:
        inputs: how many of them the body reads; further ones are refused.
        attributes: those that it reads.
        neutral: further attributes, by the values that change nothing; others are refused.
        outputs: by index, those it gives; others are refused where somebody reads them.
    """

    op: str
    write: Callable[[Nodes, Call], None]
    inputs: int
    attributes: tuple[str, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    neutral: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    outputs: tuple[int, ...] = (0,)
    domain: str = MICROSOFT

    def refuses(self, call: Call) -> str | None:
        """Why the body does not say what a node does; None where it does."""
        for attribute in call.proto.attribute:
            value = call.attribute(attribute.name)
            if attribute.name not in self.attributes and value not in self.neutral.get(attribute.name, ()):
                return f"attribute {attribute.name}={value}"
        extra = next((v for v in call.proto.input[self.inputs :] if v), None)
        if extra is not None:
            return f"input {extra} is not understood"
        asked = next((i for i, v in enumerate(call.proto.output) if v and i not in self.outputs), None)
        if asked is not None:
            return f"its output {call.output(asked)} is not computed"
        return next((why for c in self.constraints if (why := c(call)) is not None), None)


_CONV = (
    "activation",
    "activation_params",
    "auto_pad",
    "dilations",
    "group",
    "kernel_shape",
    "pads",
    "strides",
)
_FUSED_GEMM = (
    "activation",
    "activation_alpha",
    "activation_beta",
    "activation_gamma",
    "alpha",
    "beta",
    "transA",
    "transB",
)
_MATMUL = ("alpha", "transA", "transB", "transBatchA", "transBatchB")
_ATTENTION = ("mask_filter_value", "num_heads", "scale", "unidirectional")
_ALONE = {"do_rotary": (0,), "past_present_share_buffer": (0,)}

FUNCTIONS: tuple[Function, ...] = (
    Function(
        "ArrayFeatureExtractor",
        features.array_feature_extractor,
        2,
        constraints=(features.known_array,),
        domain=LEARNING,
    ),
    Function("Normalizer", features.normalizer, 1, ("norm",), domain=LEARNING),
    Function("Scaler", features.scaler, 1, ("offset", "scale"), domain=LEARNING),
    Function("Affine", legacy.affine, 1, ("alpha", "beta"), domain=""),
    Function(
        "Attention",
        attention.attention,
        6,
        (*_ATTENTION, "qkv_hidden_sizes"),
        (attention.known_attention,),
        {**_ALONE, "rotary_embedding_dim": (0,)},
        outputs=(0, 1),
    ),
    Function("BiasGelu", activations.bias_gelu, 2),
    Function("Crop", legacy.crop, 1, ("border", "scale"), domain=""),
    Function(
        "DynamicQuantizeMatMul", quantised.dynamic_quantize_matmul, 5, (), (quantised.constant_weights,)
    ),
    Function(
        "EmbedLayerNormalization",
        norms.embed_layer_norm,
        9,
        ("epsilon",),
        (norms.known_words,),
        {"mask_index_type": (0, 1)},
        outputs=(0, 1, 2),
    ),
    Function("FastGelu", activations.fast_gelu, 2),
    Function("FusedConv", products.fused_conv, 4, _CONV, (activations.known_activation,)),
    Function("FusedGemm", products.fused_gemm, 3, _FUSED_GEMM, (activations.known_activation,)),
    Function("FusedMatMul", products.fused_matmul, 2, _MATMUL, (products.known_operands,)),
    Function("Gelu", activations.plain_gelu, 1),
    Function("GemmFastGelu", activations.gemm_fast_gelu, 3),
    Function(
        "GroupQueryAttention",
        grouped.group_query_attention,
        12,
        (
            "do_rotary",
            "kv_num_heads",
            "local_window_size",
            "num_heads",
            "rotary_interleaved",
            "scale",
            "smooth_softmax",
            "softcap",
        ),
        (grouped.known_groups,),
        {
            "causal": (1,),
            "k_quant_type": ("NONE",),
            "kv_cache_bit_width": (0,),
            "qk_output": (0,),
            "v_quant_type": ("NONE",),
        },
        outputs=(0, 1, 2),
    ),
    Function("ImageScaler", legacy.image_scaler, 1, ("bias", "scale"), domain=""),
    Function("MatMulIntegerToFloat", quantised.matmul_integer_to_float, 7, (), (quantised.constant_weights,)),
    Function(
        "MatMulNBits",
        products.matmul_n_bits,
        6,
        ("K", "N", "bits", "block_size"),
        (products.constant_blocks, products.plain_bits),
        {"accuracy_level": (0, 1, 2, 3, 4), "weight_prepacked": (0,)},
    ),
    Function(
        "MultiHeadAttention",
        attention.multi_head_attention,
        8,
        _ATTENTION,
        (attention.known_heads,),
        outputs=(0, 1, 2),
    ),
    Function(
        "QAttention",
        quantised.q_attention,
        9,
        _ATTENTION,
        (quantised.known_quantised_attention,),
        _ALONE,
        outputs=(0, 1),
    ),
    Function(
        "QEmbedLayerNormalization",
        quantised.q_embed_layer_norm,
        18,
        ("epsilon",),
        (norms.known_words,),
        outputs=(0, 1),
    ),
    Function("QuickGelu", activations.quick_gelu, 1, ("alpha",)),
    Function(
        "RotaryEmbedding",
        rotary.rotary_embedding,
        4,
        ("interleaved", "num_heads", "rotary_embedding_dim"),
        (rotary.known_angles,),
        {"is_packed_batching": (0,), "scale": (1.0,)},
    ),
    Function(
        "SimplifiedLayerNormalization",
        norms.simplified_layer_norm,
        2,
        ("axis", "epsilon"),
        (norms.over_the_last_axis,),
        {"stash_type": (1,)},
        domain="",
    ),
    Function("SkipLayerNormalization", norms.skip_layer_norm, 5, ("epsilon",), outputs=(0, 3)),
    Function(
        "SkipSimplifiedLayerNormalization",
        norms.skip_simplified_layer_norm,
        4,
        ("epsilon",),
        outputs=(0, 3),
    ),
    Function("TransposeMatMul", products.fused_matmul, 2, _MATMUL, (products.known_operands,)),
)
"""Every operator with a body."""

_LAID_OUT = (
    "is laid out for one kind of processor",
    "save the model with graph_optimization_level ORT_ENABLE_EXTENDED, or before optimising",
)
_TRAINING = ("is for training", "export the model for inference")
_PROCESSING = ("reads or writes files, or works on text or sound", "do this step outside of the model")
_GENERATES = (
    "generates a sequence by a search",
    "convert the decoder model in its attribute, with the weights that it reads from outside, on its own",
)

REFUSED: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("NhwcConv", "NhwcFusedConv", "NhwcMaxPool", "QLinearConv"), _LAID_OUT),
    **dict.fromkeys(("BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"), _GENERATES),
    **dict.fromkeys(("ConcatTraining", "Recv", "Send", "SoftmaxCrossEntropyLossGrad"), _TRAINING),
    "DecoderMaskedMultiHeadAttention": (
        "reads and writes a cache at a place that is computed at run time",
        "export the model with MultiHeadAttention or GroupQueryAttention",
    ),
}
"""Operators of com.microsoft that are refused on purpose: why, and what the user can do about it."""

REFUSED_DOMAINS: Mapping[str, tuple[str, str]] = {
    "com.microsoft.nchwc": _LAID_OUT,
    "com.ms.internal.nhwc": _LAID_OUT,
    LEARNING: (
        "is no neural network operator",
        "do this step outside of the model (skl2onnx: options={'zipmap': False} leaves ZipMap out)",
    ),
    "ai.onnx.contrib": _PROCESSING,
    "com.microsoft.extensions": _PROCESSING,
    "ai.onnx.training": _TRAINING,
    "ai.onnx.preview.training": _TRAINING,
}
"""The same, of whole domains."""
