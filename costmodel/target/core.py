"""Core: cycles of the RISC-V core beside the array, for commands and for operators that it runs itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, create_model, model_serializer

from fadiff.costmodel.target.record import Record

HOST_INSTRUCTIONS: Mapping[str, float] = {
    "arg_max": 5.1,  # per element read
    "average_pool": 1.8,  # per tap
    "binary": 11.3,
    "copy_elements": 4.6,  # transposed, say
    "copy_runs": 0.43,
    "division": 28.0,  # a divider takes one bit per cycle
    "exponentials": 8.2,
    "fill": 0.5,
    "float_sums": 16.0,
    "float_binary": 5.0,
    "float_formula": 100.0,
    "float_max_pool": 5.6,  # per tap
    "float_product": 4.0,  # per multiply-accumulate
    "float_scale_shift": 10.7,
    "formula": 100.0,  # a call or two of the math library
    "gather": 6.4,  # one by one
    "global_average_pool": 0.87,  # per element read
    "integer": 4.6,
    "inverse_root": 60.0,  # a division and a root
    "layer_norm": 18.3,
    "log_softmax": 14.5,
    "lookup": 4.4,
    "max_pool": 1.6,  # per tap
    "moments": 0.6,
    "planes": 24.0,  # a division for every two
    "quantise": 7.4,
    "reduce": 1.02,  # per element read
    "resize_linear": 23.5,
    "rms_norm": 15.0,
    "scale_shift": 11.3,
    "select": 4.8,
    "softmax": 16.5,
    "table_product": 13.3,  # counted in its source: an address and a load more than binary
    "to_float": 4.6,
    "to_int8": 24.0,  # a division
    "where": 9.8,
}
"""Core instructions per element of every host operator's C, for int8 (docs/host-ops.md says how counted).

Per element written unless said; a division counts as what it takes.  What beginning a run, or storing what a
window gives, takes besides is counted as elements (costmodel/group/host_work.py).
"""


ROCKET_INSTRUCTION = 1.3
"""Cycles per instruction of plain C."""
CYCLES_PER_INSTRUCTION: Mapping[str, float] = {
    "average_pool": 1.07,
    "copy_runs": 2.6,  # both sides leave the L1
    "max_pool": 1.41,  # short loops, and windows that begin anew
    "where": 1.55,  # a branch that the data decides
} | dict.fromkeys(
    (
        *("binary", "copy_elements", "exponentials", "global_average_pool", "integer", "layer_norm"),
        *(
            "log_softmax",
            "lookup",
            "quantise",
            "reduce",
            "resize_linear",
            "rms_norm",
            "scale_shift",
            "select",
        ),
        "softmax",
        "table_product",
    ),
    1.04,
)
"""Rocket's: of long copies timed on RTL, of the others by instructions and the latencies of its pipeline
(docs/host-ops.md).  Where four results are under way, hardly anything waits."""


VECTOR_WORK: Mapping[str, tuple[int, int]] = {
    "average_pool": (24, 0),
    "binary": (296, 0),
    "exponentials": (184, 1),
    "global_average_pool": (24, 0),
    "layer_norm": (488, 0),
    "lookup": (24, 1),
    "max_pool": (16, 0),
    "rms_norm": (440, 0),
    "scale_shift": (304, 0),
    "softmax": (376, 2),
}
"""Of one element in runtime/vector.h: bits that vector instructions compute or move, elements they gather.

Counted, not timed: scalar instructions around them are left out, and a gather takes a cycle.
"""


class _Prices(Record):
    @model_serializer(mode="wrap")
    def _given(self, everything: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Defaults that stand elsewhere are left out."""
        return {name: value for name, value in everything(self).items() if value is not None}


HostCycles = create_model(
    "HostCycles",
    __base__=_Prices,
    **{operator: (float | None, Field(None, gt=0)) for operator in HOST_INSTRUCTIONS},  # type: ignore[call-overload]
)
"""Cycles per element of each operator."""


class Core(_Prices):
    """Cycles of the core.  Default: Rocket, single issue."""

    instruction: float = Field(
        ROCKET_INSTRUCTION,
        description="per instruction of plain C; operators that were timed scale with it",
        gt=0,
    )
    command: float | None = Field(
        None, description="per command issued one by one; default: fitted to RTL", gt=0
    )
    loop: float | None = Field(
        None, description="per tile that a loop unit runs; default: fitted to RTL", gt=0
    )
    visit: float | None = Field(
        None,
        description="per visit of a layer: fence, first loads, last stores; default: fitted to RTL",
        gt=0,
    )
    vector: int | None = Field(
        None,
        description="bits that the core's vector unit (RVV 1.0) computes in a cycle; default: it has none",
        ge=64,
    )
    host: HostCycles = Field(
        HostCycles(), description="per element of a host operator; default: its instructions * instruction"
    )

    def host_cycles(self, operator: str, elements: float) -> float:
        """Cycles that the core takes for elements of an operator of HOST_INSTRUCTIONS."""
        given: float | None = getattr(self.host, operator)
        if given is None and self.vector is not None and operator in VECTOR_WORK:
            bits, gathered = VECTOR_WORK[operator]
            given = bits / self.vector + gathered
        if given is None:
            timed = CYCLES_PER_INSTRUCTION.get(operator, ROCKET_INSTRUCTION)
            given = HOST_INSTRUCTIONS[operator] * timed * self.instruction / ROCKET_INSTRUCTION
        return elements * given
