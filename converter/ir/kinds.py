"""Kinds of operators: one record of what each does, which all rooms ask."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Flag, auto
from functools import cache

from fadiff.converter.ir.program import Node


class Kind(Flag):
    """What an operator does; most are of several kinds."""

    UNARY = auto()
    """An element of the result depends on the same element of one input only."""
    BINARY = auto()
    """It depends on the same element of each input only."""
    ARITHMETIC = auto()
    """Add, Sub, Mul, Div."""
    SAME = auto()
    """The result is the input."""
    HOMOGENEOUS = auto()
    """Functions of one element with f(s x) = s f(x) for every s > 0."""
    NOT_NEGATIVE = auto()
    """No result is below zero, whatever the input."""
    EXACT = auto()
    """Functions of which one float32 operation rounds every step."""
    EXPONENTIAL = auto()
    """Functions that the core computes by an exponential."""
    PRODUCT = auto()
    """Sums of products of the first two inputs, which are int8 operands, and of the third, a bias."""
    TRANSPOSED = auto()
    """Products whose input pixels spread over outputs."""
    RESHAPE = auto()
    """The elements of the first input in the same order, under another shape."""
    TRANSPOSE = auto()
    """The elements of the first input with its axes in another order."""
    SHUFFLE = auto()
    """The elements of the first input, channels as pixels or pixels as channels."""
    PICK = auto()
    """Elements of the first input: some of them, or some several times."""
    STRIDED = auto()
    """Those at regular distances."""
    JOIN = auto()
    """The elements of all inputs side by side."""
    SCATTER = auto()
    """The first input with other elements at some indices."""
    POOL = auto()
    """Windows of an image, channel by channel."""
    GLOBAL_POOL = auto()
    """The whole of an image, channel by channel."""
    SOFTMAX = auto()
    MAXIMUM = auto()
    """Of the elements that it reads it sees the largest (a softmax: nothing that lies far enough below)."""
    MINIMUM = auto()
    """Of the elements that it reads it sees the smallest."""
    IMAGE = auto()
    """The first input is an image of channels, whatever its producer says."""
    RECURRENT = auto()
    """Steps along a sequence, each with the state that the one before left."""
    CONTROL = auto()
    """It runs graphs in its attributes."""
    SEQUENCE = auto()
    """Of sequences of tensors."""
    INTEGER_PRODUCT = auto()
    """Products of integers, as quantisation tools write them."""


ELEMENTWISE = Kind.UNARY | Kind.BINARY
WEIGHTED = Kind.PRODUCT | Kind.TRANSPOSED
MOVE = Kind.SAME | Kind.RESHAPE | Kind.TRANSPOSE | Kind.SHUFFLE
"""All elements of the first input."""
KEEPS_SCALE = MOVE | Kind.PICK
"""Nothing but elements of the first input: what holds for all of them holds for the result, its scale too."""

_ROWS = {
    Kind.UNARY: "Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cast CastLike Cos Cosh Erf Gelu IsInf IsNaN Log "
    "Mish Not Round Shrink Sign Sin Sinh Tan",
    Kind.UNARY | Kind.NOT_NEGATIVE: "Softplus",
    Kind.UNARY | Kind.EXPONENTIAL: "Celu Elu QuickGelu Selu Swish Tanh",
    Kind.UNARY | Kind.EXPONENTIAL | Kind.NOT_NEGATIVE: "Exp Sigmoid",
    Kind.UNARY | Kind.EXACT: "Ceil Clip Dropout Floor HardSwish Neg Reciprocal Softsign ThresholdedRelu",
    Kind.UNARY | Kind.EXACT | Kind.NOT_NEGATIVE: "Abs HardSigmoid Sqrt",
    Kind.UNARY | Kind.EXACT | Kind.HOMOGENEOUS: "LeakyRelu",
    Kind.UNARY | Kind.EXACT | Kind.HOMOGENEOUS | Kind.NOT_NEGATIVE: "Relu",
    Kind.UNARY | Kind.EXACT | Kind.HOMOGENEOUS | Kind.SAME: "Identity",
    Kind.BINARY: "And Equal Greater GreaterOrEqual Less LessOrEqual Mean Mod Or Pow Sum Where Xor",
    Kind.BINARY | Kind.EXACT: "Max Min PRelu",
    Kind.BINARY | Kind.EXACT | Kind.ARITHMETIC: "Add Sub Mul Div",
    Kind.PRODUCT: "Gemm MatMul",
    Kind.PRODUCT | Kind.IMAGE: "Conv",
    Kind.TRANSPOSED | Kind.IMAGE: "ConvTranspose",
    Kind.RESHAPE: "Flatten Reshape Squeeze Unsqueeze",
    Kind.TRANSPOSE: "Transpose",
    Kind.SHUFFLE | Kind.IMAGE: "DepthToSpace SpaceToDepth",
    Kind.PICK: "Gather GatherElements GatherND",
    Kind.PICK | Kind.STRIDED: "Expand Slice Split Tile",
    Kind.PICK | Kind.MAXIMUM: "ReduceMax",
    Kind.PICK | Kind.MINIMUM: "ReduceMin",
    Kind.PICK | Kind.MAXIMUM | Kind.POOL | Kind.IMAGE: "MaxPool",
    Kind.PICK | Kind.MAXIMUM | Kind.GLOBAL_POOL | Kind.IMAGE: "GlobalMaxPool",
    Kind.POOL | Kind.IMAGE: "AveragePool LpPool",
    Kind.GLOBAL_POOL | Kind.IMAGE: "GlobalAveragePool",
    Kind.IMAGE: "BatchNormalization InstanceNormalization LRN Resize Upsample",
    Kind.JOIN: "Concat",
    Kind.SCATTER: "ScatterElements ScatterND",
    Kind.MAXIMUM: "ArgMax",
    Kind.MINIMUM: "ArgMin",
    Kind.MAXIMUM | Kind.SOFTMAX: "LogSoftmax",
    Kind.MAXIMUM | Kind.SOFTMAX | Kind.NOT_NEGATIVE: "Softmax",
    Kind.RECURRENT: "GRU LSTM RNN",
    Kind.CONTROL: "If Loop Scan",
    Kind.SEQUENCE: "ConcatFromSequence SequenceAt SequenceConstruct SequenceEmpty SequenceErase "
    "SequenceInsert SequenceLength SplitToSequence",
    Kind.INTEGER_PRODUCT: "ConvInteger MatMulInteger QLinearConv QLinearMatMul",
}
_KINDS: Mapping[str, int] = {op: kind.value for kind, ops in _ROWS.items() for op in ops.split()}
_DOMAINS = ("", "ai.onnx", "com.microsoft")


def is_a(node: Node, kinds: Kind) -> bool:
    """Whether a node does one of some things."""
    return node.domain in _DOMAINS and _KINDS.get(node.op, 0) & kinds._value_ != 0


@cache
def named(kinds: Kind) -> frozenset[str]:
    """The operators that do one of some things."""
    return frozenset(op for op, found in _KINDS.items() if found & kinds.value)
