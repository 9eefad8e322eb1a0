"""Host operators: one record per kind, with everything its C needs besides the tensors (docs/host-ops.md).

`op` is the name of the kind, scales are float32 values; layers of float32 tensors compute in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fadiff.converter.ir.loops import Access, Loops

Activation = Literal["none", "relu"]


@dataclass(frozen=True)
class Rows:
    """The first input, dense, as [outer, length, inner]; the work is along `length`."""

    outer: int
    length: int
    inner: int


@dataclass(frozen=True)
class PoolWindow:
    """A pooling window: pairs along height and width; pads top, left, bottom, right."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    pads: tuple[int, int, int, int]


@dataclass(frozen=True)
class HostOperator:
    """Any of them."""

    op: ClassVar[str]
    least_inputs: ClassVar[int] = 1
    """Inputs that it cannot do without; more are tables, masks and states."""


@dataclass(frozen=True)
class StridedOperator(HostOperator):
    """Element by element, each of its first `walked` inputs and the output with strides of its own.

    Raises:
        ValueError: loops over another number of inputs.
    """

    walked: ClassVar[int] = 1
    loops: Loops

    def __init_subclass__(cls) -> None:
        cls.least_inputs = max(cls.least_inputs, cls.walked)

    def __post_init__(self) -> None:
        if len(self.loops.inputs) != self.walked:
            raise ValueError(f"{self.op} walks {self.walked} inputs, not {len(self.loops.inputs)}")


@dataclass(frozen=True)
class Copy(StridedOperator):
    """Elements moved."""

    op = "copy"


@dataclass(frozen=True)
class Lookup(StridedOperator):
    """A table of what every int8 becomes."""

    op = "lookup"
    least_inputs = 2


@dataclass(frozen=True)
class Formula(StridedOperator):
    """Primitives of one float32, one after the other."""

    op = "formula"
    formula: tuple[str, ...]


@dataclass(frozen=True)
class Binary(StridedOperator):
    """A function of two elements; scales and `ceiling` (of float32 alone) are float32 numbers."""

    op = "binary"
    walked = 2
    function: str
    a_scale: float
    b_scale: float
    scale: float
    activation: Activation = "none"
    ceiling: float | None = None


@dataclass(frozen=True)
class TableProduct(StridedOperator):
    """A product of two elements, the first by way of a table."""

    op = "table_product"
    walked = 2
    least_inputs = 3
    scale: float
    activation: Activation = "none"


@dataclass(frozen=True)
class Integer(StridedOperator):
    """A function of two int32 numbers."""

    op = "integer"
    walked = 2
    function: str


@dataclass(frozen=True)
class Select(StridedOperator):
    """One of two int32 numbers."""

    op = "select"
    walked = 3


@dataclass(frozen=True)
class Quantise(StridedOperator):
    """int32 to elements."""

    op = "quantise"
    scale: float


@dataclass(frozen=True)
class Where(StridedOperator):
    """One of two elements."""

    op = "where"
    walked = 3
    a_scale: float
    b_scale: float


@dataclass(frozen=True)
class ScaleShift(StridedOperator):
    """A factor and an addend, both float32 tensors."""

    op = "scale_shift"
    walked = 3
    activation: Activation = "none"


@dataclass(frozen=True)
class Add(HostOperator):
    """The residual addition that Gemmini does: operands of one shape, dense."""

    op = "add"
    least_inputs = 2
    a_scale: float = 1.0
    b_scale: float = 1.0
    scale: float = 1.0
    activation: Activation = "none"


@dataclass(frozen=True)
class Fill(HostOperator):
    """Every element the same."""

    op = "fill"
    least_inputs = 0
    value: float


@dataclass(frozen=True)
class MaxPool(HostOperator):
    """Largest element of each window."""

    op = "max_pool"
    window: PoolWindow


@dataclass(frozen=True)
class AveragePool(HostOperator):
    """Mean of each window."""

    op = "average_pool"
    window: PoolWindow
    count_include_pad: bool
    ratio: float


@dataclass(frozen=True)
class GlobalAveragePool(HostOperator):
    """Mean over all pixels."""

    op = "global_average_pool"
    scale: float


@dataclass(frozen=True)
class ResizeLinear(HostOperator):
    """Linear interpolation between rows and columns."""

    op = "resize_linear"
    least_inputs = 5
    scale: float


@dataclass(frozen=True)
class RowOperator(HostOperator):
    """Along one axis."""

    rows: Rows


@dataclass(frozen=True)
class Softmax(RowOperator):
    """`mask_rows`: rows of its mask, used in turn; 0 without a mask."""

    op = "softmax"
    scale: float
    mask_rows: int = 0


@dataclass(frozen=True)
class LogSoftmax(RowOperator):
    """The logarithm in steps of `unit`."""

    op = "log_softmax"
    ratio: float
    unit: float


@dataclass(frozen=True)
class LayerNorm(RowOperator):
    """Layer norm (`center`) or RMS norm; gamma and beta along `length`, or `per_inner`."""

    op = "layer_norm"
    least_inputs = 3
    center: bool
    per_inner: bool
    epsilon: float
    variance_scale: float
    unit: float


EXPONENTIAL = 127
"""exp(0) as `Exponentials` stores it."""
EXPONENTIAL_SUM = 2.0**30 / EXPONENTIAL
"""One such in the sums of its table."""


@dataclass(frozen=True)
class Exponentials(RowOperator):
    """Numerators of a softmax in int8, and a float32 for each row: the reciprocal of their sum.

    Its table has 2^22 exp(x - max), in the upper 24 bits, which are summed, and `EXPONENTIAL` exp(x - max),
    in the lowest 8, which are stored.
    """

    op = "exponentials"
    least_inputs = 2
    mask_rows: int = 0


@dataclass(frozen=True)
class InverseRoot(RowOperator):
    """A float32 for each row: 1 / root(mean square + epsilon).

    The input has products of each row with those of its block of `length` (the last block ends at the end):
    with itself the sum of its squares, which `scale` makes the mean.
    """

    op = "inverse_root"
    scale: float
    epsilon: float


@dataclass(frozen=True)
class Moments(RowOperator):
    """Terms that a layer norm adds to each row before it divides, and for each row a float32: 1 / deviation.

    Inputs are products of rows of `width` elements as of `InverseRoot`, and their sums.  Of its output it
    writes the `room` elements behind every `block` elements of a row, in units of these: mean to the nearest
    integer and the rest in 16ths, deviation likewise; then 0.
    """

    op = "moments"
    least_inputs = 2
    width: int
    block: int
    room: int
    part: float
    """Share of one element in a mean."""
    variance_scale: float
    """Factor of width times the squares less the square of the sum."""
    epsilon: float
    steps: float
    """Steps of the elements in a deviation of 1."""


@dataclass(frozen=True)
class Reduce(RowOperator):
    """Sum or extremum of a row."""

    op = "reduce"
    function: str
    scale: float


@dataclass(frozen=True)
class ArgMax(RowOperator):
    """Index of a row's extremum."""

    op = "arg_max"
    function: str
    select_last: bool


@dataclass(frozen=True)
class Gather(RowOperator):
    """Elements picked along `length`."""

    op = "gather"
    least_inputs = 2


@dataclass(frozen=True)
class Scatter(RowOperator):
    """The first input with other elements at positions along `length`."""

    op = "scatter"
    least_inputs = 3


@dataclass(frozen=True)
class ToFloat(HostOperator):
    """int8 to float32."""

    op = "to_float"
    scale: float


@dataclass(frozen=True)
class ToInt8(HostOperator):
    """float32 to int8."""

    op = "to_int8"
    scale: float


@dataclass(frozen=True)
class FloatProduct(HostOperator):
    """A convolution or matrix product in float32: `dims` are G N K C P Q R S."""

    op = "float_product"
    least_inputs = 2
    dims: tuple[int, int, int, int, int, int, int, int]
    input_size: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    pads: tuple[int, int, int, int]
    input: Access
    weight: Access
    output: Access
    activation: Activation = "none"
    ceiling: float | None = None


@dataclass(frozen=True)
class Planes(HostOperator):
    """float32 as 128 high + low: two int8 planes, and (second output) the value of one step.

    A step is the largest magnitude / WIDE_STEPS, 1 where that is below WIDE_LEAST.
    """

    op = "planes"


WIDE_STEPS = 127 * 128
WIDE_LEAST = float(np.float32(1e-30))


@dataclass(frozen=True)
class FloatSums(HostOperator):
    """Sums of both planes, times the step of activations and those of weights [K], plus a bias: float32."""

    op = "float_sums"
    least_inputs = 3
    activation: Activation = "none"
    ceiling: float | None = None


_KINDS = [kind for kind in globals().values() if isinstance(kind, type) and issubclass(kind, HostOperator)]
OPERATORS = tuple(kind for kind in _KINDS if "op" in vars(kind))
"""Those with a name of their own: the others are only what several share."""
