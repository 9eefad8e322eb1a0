"""schedule.json as pydantic models: the file's format, its JSON Schema and its validation.

Plain data only; `costmodel.schedule.serialize` turns it into a `Schedule` and back.  Sizes are bytes or
elements, energies picojoules, latencies cycles, EDP microjoules x cycles.
"""

from __future__ import annotations

import json
import math
from typing import Annotated, Literal, Self, get_args

from pydantic import (
    BeforeValidator,
    Field,
    model_validator,
)

from fadiff.converter.ir.graph import TensorCoreOp
from fadiff.converter.ir.loops import Dim
from fadiff.costmodel.mapping.mapping import AdditionIssue, Issue, Level
from fadiff.costmodel.schedule.conversion_record import ConversionRecord
from fadiff.costmodel.schedule.group_records import FusionRecord
from fadiff.costmodel.schedule.schedule import FusionModel, LatencyModel, Profile
from fadiff.costmodel.target.record import ReadRecord
from fadiff.costmodel.target.target import Target

Positive = Annotated[int, Field(ge=1)]
Scale = Annotated[float, Field(gt=0)]
Padding = Annotated[int, Field(ge=0, lt=2**20)]
"""Pixels; more are no image any more."""
Cycles = Annotated[float, Field(ge=0)]
Extents = dict[Dim, Positive]
"""Dimensions that are left out are 1."""


class PartRecord(ReadRecord):
    """Consecutive indices of an axis: real value = scale * integer + offset."""

    count: Positive
    scale: Scale
    offset: float = 0.0


class AxisScalesRecord(ReadRecord):
    """What the integers of an input or output mean, part by part along an axis of its storage."""

    axis: Annotated[int, Field(ge=0)]
    parts: tuple[PartRecord, ...]


class TensorRecord(ReadRecord):
    """A tensor in storage order (images are N H W C)."""

    name: str
    shape: tuple[int, ...]
    dtype: Literal["int8", "uint8", "int32", "float32"]
    scale: Scale | None = Field(None, description="real value = scale * (integer - zero)")
    constant: bool = False
    onnx_name: str | None = None
    onnx_axes: tuple[int, ...] | None = Field(None, description="storage = transpose(onnx value, onnx_axes)")
    zero: int = Field(0, description="the integer that stands for 0.0")
    along: AxisScalesRecord | None = Field(
        None, description="of an input or output: stands for scale and zero in the program around"
    )


class StateRecord(ReadRecord):
    """An output tensor that becomes an input tensor of the next run."""

    output: str
    input: str


class ModelRecord(ReadRecord):
    """Where the schedule came from."""

    name: str
    sha256: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    states: tuple[StateRecord, ...] = ()
    """Outputs that are inputs of the next run."""


class ViewRecord(ReadRecord):
    """Strided access to a tensor; see fadiff.converter.ir.graph.View."""

    tensor: str
    offset: int
    strides: tuple[int, int, int, int, int]


class OperandsRecord(ReadRecord):
    """What a tensor-core layer reads and writes."""

    input: ViewRecord
    weight: ViewRecord
    output: ViewRecord
    bias: str | None = None
    channel_scale: str | None = Field(
        None, description="of a float32 tensor: scale of each output channel's results, beside the layer's"
    )
    channel_block: int = Field(1, description="channels, from a multiple of it on, that share such a scale")
    row_scale: ViewRecord | None = Field(
        None, description="of a float32 tensor: scale of each pixel's results, beside the layer's"
    )


_FORMER_ISSUES = {"tiled_matmul": "loop_ws", "tiled_conv": "loop_conv_ws"}
"""Calls of gemmini.h, over the same tiles, that files of earlier versions have."""


class SpatialRecord(ReadRecord):
    """Factors unrolled over the array."""

    rows: Extents
    cols: Extents


class MappingRecord(ReadRecord):
    """One loop nest; L3 DRAM, L2 scratchpad, L1 accumulator, L0 array block."""

    temporal: dict[Level, Extents] = Field(
        description="trip counts of full tiles; follows from tile and spatial"
    )
    spatial: SpatialRecord
    order: dict[Level, str] = Field(description="loop order, outermost first, all eight dimensions")
    tile: dict[Literal["L2", "L1", "L0"], Extents] = Field(
        description="extents of one tile; the last may be smaller"
    )
    issue: Annotated[Issue, BeforeValidator(lambda issue: _FORMER_ISSUES.get(issue, issue))] = Field(
        "instructions",
        description="instructions: the core issues every move and product; core_ws: the same in tiles "
        "as of loop_ws; loop_ws, loop_conv_ws: one hardware loop per scratchpad tile",
    )
    by_core: str = Field("", description="why no hardware loop runs it, where the core does; for people")


class TransferRecord(ReadRecord):
    """Bytes one tensor of one layer moves."""

    read: int = 0
    write: int = 0


class TrafficRecord(ReadRecord):
    """What the emitted C moves, and what the functional model measures.

    Keys are roles: I, I2 (second input of an addition), W, bias, O, psum (spilled partial sums).
    """

    dram: dict[str, TransferRecord]
    tile_buffer: dict[str, TransferRecord] = Field({})
    host_bytes: int = Field(0, description="moved by the core, not by Gemmini")


class CostRecord(ReadRecord):
    """Cost of one layer."""

    energy_pj: float
    latency_cycles: Cycles
    clock_cycles: float | None = Field(
        None,
        description="the same number, where there is a program",
    )
    bound: str = Field(description="what limits the latency: compute, L1, L2, L3, tile-buffer, issue, host")
    utilization: float = Field(description="multiply-accumulates per cycle over those of the whole array")
    traffic: TrafficRecord
    bytes_per_memory: dict[str, int] = Field(
        description="all bytes read or written in dram, tile-buffer, scratchpad, accumulator, register, host"
    )
    energy_breakdown: dict[str, float] = Field(description="picojoules per memory, and of the products (mac)")


Attribute = bool | int | float | str


class LayerRecord(ReadRecord):
    """A layer, its place in the ONNX model, its mapping and its cost.  Host layers have no mapping."""

    name: str
    op: str
    onnx_nodes: tuple[str, ...]
    dims: dict[Literal["N", "K", "C", "P", "Q", "R", "S"], Positive] | None = None
    groups: Positive = 1
    stride: tuple[Positive, Positive] = (1, 1)
    dilation: tuple[Positive, Positive] = (1, 1)
    pads: tuple[Padding, Padding, Padding, Padding] = Field(
        (0, 0, 0, 0), description="top, left, bottom, right"
    )
    input_size: tuple[int, int] | None = None
    activation: Literal["none", "relu"] = "none"
    polynomial: tuple[int, int] | None = Field(
        None, description="of I-GELU in place of an activation: qb and qc of CONFIG_NORM"
    )
    scale: float = Field(
        1.0,
        description="requantisation: output integer = round(accumulator * scale)",
        allow_inf_nan=False,
    )
    operands: OperandsRecord | None = None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = Field(min_length=1)
    attributes: dict[str, Attribute | tuple[Attribute, ...]] = Field({})
    mapping: MappingRecord | None = None
    issue: AdditionIssue | None = Field(
        None,
        description="of an addition: instructions (if absent, too): the core issues every move; "
        "tiled_resadd: gemmini.h adds in one call; of a copy: instructions: Gemmini's DMA makes it, the core "
        "issues every move; if absent: the core copies",
    )
    cost: CostRecord

    @property
    def is_tensor_core(self) -> bool:
        """Whether the layer runs on the array and so has dims, operands and a mapping."""
        return self.op in get_args(TensorCoreOp)

    @property
    def macs(self) -> int:
        """Multiply-accumulates; 0 for a layer that is not on the array."""
        return 0 if self.dims is None else self.groups * math.prod(self.dims.values())

    @property
    def dram_bytes(self) -> int:
        """Bytes that Gemmini moves to and from DRAM."""
        return sum(move.read + move.write for move in self.cost.traffic.dram.values())

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for name in ("dims", "operands", "input_size", "mapping"):
            if (getattr(self, name) is not None) != self.is_tensor_core:
                raise ValueError(
                    f"{name} is {'missing' if self.is_tensor_core else 'not allowed'} for op {self.op!r}"
                )
        if self.issue is not None and (self.op, self.issue) != ("copy", "instructions") and self.op != "add":
            raise ValueError(
                f"issue is not allowed for op {self.op!r}: layers on the array have mapping.issue"
            )
        return self


class HistoryPoint(ReadRecord):
    """The best feasible schedule known at a moment of the search."""

    seconds: float
    step: int
    edp_uj_cycles: float


class SearchRecord(ReadRecord):
    """How the schedule was found."""

    method: str
    objective: str = "edp"
    tiling: str = "ragged"
    seed: int
    seconds: float
    steps: int
    automatic_dram_bytes: int | None = Field(None, description="of gemmini.h's automatic tiles")
    unfused_dram_bytes: int | None = Field(None, description="of the best schedule without fusion")
    history: tuple[HistoryPoint, ...] = ()


class TotalsRecord(ReadRecord):
    """Cost of the network: energies and latencies of the layers summed, then multiplied."""

    energy_pj: float
    latency_cycles: Cycles = Field(
        description="of the emitted program, by the model fitted to RTL; profile dosa: of the roofline"
    )
    clock_cycles: float | None = Field(None, description="the same number, where there is a program")
    clock_error: str = Field("", description="how far that model was from RTL cycles")
    edp_uj_cycles: float
    dram_bytes: int
    macs: int
    lower_bound_edp_uj_cycles: float | None = Field(None, description="no schedule of this space is better")
    bound_kind: Literal["proven", "unfused", "relaxed", "sequential"] | None = Field(
        None,
        description="unfused: proven for schedules without fusion; relaxed: may be out of reach; sequential: "
        "of schedules that run one layer after the other; this one may be below",
    )
    gap: float | None = Field(None, description="edp / lower bound - 1")


class ScheduleDocument(ReadRecord):
    """The whole of schedule.json."""

    version: Literal[1] = 1
    generator: str
    model: ModelRecord
    target: Target
    profile: Profile
    fusion_model: FusionModel
    latency_model: LatencyModel
    latency_error: str = Field("", description="how far this latency model was from RTL cycles")
    totals: TotalsRecord
    tensors: tuple[TensorRecord, ...]
    layers: tuple[LayerRecord, ...]
    fusion: FusionRecord
    search: SearchRecord | None = None
    conversion: ConversionRecord = ConversionRecord()

    @property
    def fused(self) -> tuple[bool, ...]:
        """Of each group whether its layers run tile by tile: not one alone, nor some side by side."""
        groups = zip(self.fusion.groups, self.fusion.execution, strict=True)
        return tuple(
            len(names) > 1 and not (self.is_executable and run.tile is None) for names, run in groups
        )

    @property
    def is_executable(self) -> bool:
        """Whether the rules it was scored by are those of a program: only then C is emitted."""
        return self.profile == "hw" and self.fusion_model == "sound"


def json_schema() -> str:
    """docs/schedule.schema.json; written by `make docs`."""
    return json.dumps(ScheduleDocument.model_json_schema(), indent=1) + "\n"


if __name__ == "__main__":
    print(json_schema(), end="")
