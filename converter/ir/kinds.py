"""What operators do: the one table of their kinds, which all rooms ask."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Flag, auto
from functools import cache


class Kind(Flag):
    """What an operator does; most are of several kinds."""

    UNARY = auto()
    """An element of the result depends on the same element of one input only."""
    BINARY = auto()
    """It depends on the same element of each input only."""
    ADDITIVE = auto()
    """A sum or difference of two values."""
    FACTOR = auto()
    """A product or quotient of two values."""
    CONVERT = auto()
    """The same numbers in another type, as far as it has them."""
    ANGLE = auto()
    """Functions with a period: steps of int8 are no angles."""
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
    MATRIX = auto()
    """Products of rows and columns."""
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
    PART = auto()
    """Ranges along axes, at regular distances."""
    REPEAT = auto()
    """All of them, each several times."""
    JOIN = auto()
    """The elements of all inputs side by side."""
    PAD = auto()
    """The elements of the first input, and others around them."""
    RESIZE = auto()
    """An image of other size."""
    SCATTER = auto()
    """The first input with other elements at some indices."""
    POOL = auto()
    """Windows of an image, channel by channel."""
    GLOBAL_POOL = auto()
    """The whole of an image, channel by channel."""
    REDUCE = auto()
    """One number of those along some axes."""
    SUM = auto()
    """Their sum or mean."""
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
    QUANTISATION = auto()
    """From numbers to integers and back."""
    SIZE = auto()
    """What follows from the shape of the first input alone."""
    CONSTANT = auto()
    """Of no value that is computed at run time."""


ELEMENTWISE = Kind.UNARY | Kind.BINARY
ARITHMETIC = Kind.ADDITIVE | Kind.FACTOR
STRIDED = Kind.PART | Kind.REPEAT
WEIGHTED = Kind.PRODUCT | Kind.TRANSPOSED
REARRANGE = Kind.SAME | Kind.RESHAPE | Kind.TRANSPOSE
"""All elements of the first input, its axes in another order or under another shape."""
MOVE = REARRANGE | Kind.SHUFFLE
"""All elements of the first input."""
KEEPS_SCALE = MOVE | Kind.PICK
"""Nothing but elements of the first input: what holds for all of them holds for the result, its scale too."""

_ROWS = {
    Kind.UNARY: "Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cosh Erf Gelu IsInf IsNaN Log Mish Not Round "
    "Shrink Sign Sinh Tan",
    Kind.UNARY | Kind.ANGLE: "Cos Sin",
    Kind.UNARY | Kind.CONVERT: "Cast CastLike",
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
    Kind.BINARY | Kind.EXACT | Kind.ADDITIVE: "Add Sub",
    Kind.BINARY | Kind.EXACT | Kind.FACTOR: "Mul Div",
    Kind.PRODUCT | Kind.MATRIX: "Gemm MatMul",
    Kind.PRODUCT | Kind.IMAGE: "Conv",
    Kind.TRANSPOSED | Kind.IMAGE: "ConvTranspose",
    Kind.RESHAPE: "Flatten Reshape Squeeze Unsqueeze",
    Kind.TRANSPOSE: "Transpose",
    Kind.SHUFFLE | Kind.IMAGE: "DepthToSpace SpaceToDepth",
    Kind.PICK: "Gather GatherElements GatherND",
    Kind.PICK | Kind.PART: "Slice Split",
    Kind.PICK | Kind.REPEAT: "Expand Tile",
    Kind.PICK | Kind.MAXIMUM | Kind.REDUCE: "ReduceMax",
    Kind.PICK | Kind.MINIMUM | Kind.REDUCE: "ReduceMin",
    Kind.PICK | Kind.MAXIMUM | Kind.POOL | Kind.IMAGE: "MaxPool",
    Kind.PICK | Kind.MAXIMUM | Kind.GLOBAL_POOL | Kind.IMAGE: "GlobalMaxPool",
    Kind.POOL | Kind.IMAGE: "AveragePool LpPool",
    Kind.GLOBAL_POOL | Kind.IMAGE: "GlobalAveragePool",
    Kind.IMAGE: "BatchNormalization InstanceNormalization LRN",
    Kind.IMAGE | Kind.RESIZE: "Resize Upsample",
    Kind.JOIN: "Concat",
    Kind.PAD: "Pad",
    Kind.REDUCE | Kind.SUM: "ReduceMean ReduceSum",
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
    Kind.QUANTISATION: "DequantizeLinear QuantizeLinear",
    Kind.SIZE: "Shape Size",
    Kind.CONSTANT: "Constant ConstantOfShape EyeLike Range",
}
KINDS: Mapping[str, int] = {op: kind.value for kind, ops in _ROWS.items() for op in ops.split()}
"""By operator, as numbers."""


@cache
def named(kinds: Kind) -> frozenset[str]:
    """The operators that do one of some things."""
    return frozenset(op for op, found in KINDS.items() if found & kinds.value)
