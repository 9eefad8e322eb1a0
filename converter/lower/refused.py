"""Operators that are refused on purpose: why, and what the user can do about it."""

from __future__ import annotations

from collections.abc import Mapping

from fadiff.converter.read import sequences

_UNSIZED = "the size of its result depends on the data"
_CUT = "cut the model before its post-processing"
_SAMPLED = "reads pixels at computed positions"
_RANDOM = "draws random numbers"
_TRAINING = "is for training"
_STRINGS = "works on strings"
_CONTAINER = "works on sequences or optional values"
_HOST = "do this step outside of the model"
_EXPORT = "export the model for inference"

REFUSED: Mapping[str, tuple[str, str]] = {
    "If": (
        "its condition is computed at run time",
        "give the input that decides it a value (--dim NAME=VALUE), or export one branch",
    ),
    "Loop": (
        "is a loop whose trip count is not constant",
        "give the input that decides it a value (--dim NAME=VALUE), or export the model with it unrolled",
    ),
    "Scan": ("is a loop", "export the model with its loop unrolled, or with LSTM or GRU nodes"),
    "SequenceMap": (_CONTAINER, _HOST),
    **dict.fromkeys(("NonMaxSuppression", "NonZero", "Unique"), (_UNSIZED, _CUT)),
    "MaxUnpool": ("writes pixels at computed positions", "replace it by Resize or ConvTranspose"),
    **dict.fromkeys(("RoiAlign", "MaxRoiPool", "DeformConv", "GridSample", "AffineGrid"), (_SAMPLED, _CUT)),
    **dict.fromkeys(
        (
            "RandomNormal",
            "RandomNormalLike",
            "RandomUniform",
            "RandomUniformLike",
            "Bernoulli",
            "Multinomial",
        ),
        (_RANDOM, "give the random numbers as an input"),
    ),
    **dict.fromkeys(
        ("Adagrad", "Adam", "Gradient", "Momentum"),
        (_TRAINING, _EXPORT),
    ),
    **dict.fromkeys(
        (
            "LabelEncoder",
            "RegexFullMatch",
            "StringConcat",
            "StringNormalizer",
            "StringSplit",
            "TfIdfVectorizer",
        ),
        (_STRINGS, _HOST),
    ),
    **dict.fromkeys(
        (*sequences.OPS, "Optional", "OptionalGetElement", "OptionalHasElement"),
        (_CONTAINER, _HOST),
    ),
    **dict.fromkeys(("DFT", "STFT", "MelWeightMatrix"), ("is a spectral transform", _HOST)),
    **dict.fromkeys(("ImageDecoder",), ("decodes image files", _HOST)),
    **dict.fromkeys(
        ("ConvInteger", "MatMulInteger"),
        ("multiplies by integer weights that are no constants", "convert the float model"),
    ),
    "BitCast": ("reads bits as another type", _HOST),
}
"""By operator: the reason, and the remedy."""

FOLDED = frozenset(("Constant", "ConstantOfShape", "EyeLike", "Range", "Shape", "Size"))
"""Folded where their inputs are constant or have static shapes: there is no layer for them."""
