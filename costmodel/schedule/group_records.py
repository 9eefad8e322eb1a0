"""Records of schedule.json about fusion groups: edges, group tiles, and how groups run."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from fadiff.costmodel.target.record import ReadRecord, without_former

Names = Annotated[
    tuple[str, ...], BeforeValidator(lambda names: sorted(names) if isinstance(names, frozenset) else names)
]
"""In the order of the file; of a set sorted."""


EdgePath = Literal["dram", "tile-buffer", "spad", "store"]


class EdgeRecord(ReadRecord):
    """A tensor from one layer to another."""

    producer: str
    consumer: str
    tensor: str
    fused: bool
    path: EdgePath = Field(
        "dram",
        description="what it flows through; inside a group, or resident across groups: on chip (store: a max "
        "pool takes it as it leaves the accumulator)",
    )


def _new(record: dict[str, Any], name: str, used: bool) -> dict[str, Any]:
    """Without a field that is not `used`, as before there was one: timed programs go by the bytes."""
    return {key: value for key, value in record.items() if used or key != name}


class GroupTileRecord(ReadRecord):
    """Extents of one group tile in the last member's output."""

    N: int
    P: int
    Q: int
    G: int | None = Field(None, description="of the groups (heads) that all members have alike; null: all")
    K: int | None = Field(None, description="of the channels that all members hand on one by one; null: all")

    @model_serializer(mode="wrap")
    def _only_if_some_channels(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _new(serialise(self), "K", self.K is not None)


class ExecutionRecord(ReadRecord):
    """How a fusion group runs."""

    tile: GroupTileRecord | None = Field(None, description="null: one layer, or several side by side")
    resident_weights: Names = ()
    resident_tensors: Names = Field(
        (), description="whole tensors that are on chip while the group runs, across group boundaries"
    )
    pipelined: bool = Field(
        False, description="the core computes host operators of one group tile while Gemmini runs others"
    )

    @model_validator(mode="before")
    @classmethod
    def _without_former_fields(cls, record: Any) -> Any:
        """Files that say that nothing is done of what no schedule does any more are read."""
        return without_former(
            record, prefetch_during=None, halo="recompute", in_scratchpad=[], in_accumulator=[]
        )

    @model_serializer(mode="wrap")
    def _only_if_pipelined(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _new(serialise(self), "pipelined", self.pipelined)


class FusionRecord(ReadRecord):
    """Which layers run together."""

    edges: tuple[EdgeRecord, ...]
    groups: tuple[tuple[str, ...], ...] = Field(description="every layer once, in execution order")
    execution: tuple[ExecutionRecord, ...] = Field(description="one per group")

    @model_validator(mode="before")
    @classmethod
    def _without_former_fields(cls, record: Any) -> Any:
        return without_former(record, path="tile-buffer")

    @model_validator(mode="after")
    def _parallel(self) -> Self:
        if len(self.groups) != len(self.execution):
            raise ValueError(f"{len(self.groups)} groups but {len(self.execution)} execution entries")
        return self
