"""What can still be chosen of a fusion group at one tile: its members' spaces, and which weights stay."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fadiff.converter.ir.graph import TensorCoreLayer
from fadiff.costmodel.group.fusion import Member
from fadiff.costmodel.group.loop_setting import PinnedWeights
from fadiff.costmodel.schedule.schedule import FusionGroup
from fadiff.optimizer.layer.space import LayerSpace


@dataclass(frozen=True)
class OpenMember:
    """A tensor-core member of a group with its weights streamed and resident."""

    name: str
    layer: TensorCoreLayer
    streamed: LayerSpace
    resident: LayerSpace


@dataclass(frozen=True)
class OpenWay:
    """One way to run a group: spaces and energy and latency of its tensor-core members and of the others."""

    group: FusionGroup
    spaces: tuple[tuple[str, LayerSpace], ...]
    host: tuple[float, float]


@dataclass(frozen=True)
class GroupAtTile:
    """A group at one tile: all that its ways share."""

    group: FusionGroup
    plan: dict[str, Member]
    members: tuple[OpenMember, ...]
    sizes: dict[str, int]
    """Bytes (profile dosa) of the weights that may stay, by member."""
    live: dict[str, int]
    """Scratchpad bytes (profile hw: none) of fused tensors while each member runs."""
    reserved: int
    """Bytes of tensors that stay across groups."""
    host: tuple[float, float]

    def spaces(self, staying: Container[str]) -> list[LayerSpace]:
        """Of every member with all memory to itself."""
        return [m.resident if m.name in staying else m.streamed for m in self.members]


class Residents(NamedTuple):
    """Weights to keep, in the order of `path.sizes`; those from place `at` on may still be left out."""

    path: GroupAtTile
    staying: tuple[str, ...]
    at: int = 0
    pinned: PinnedWeights | None = None
    """Those of them that stay for loop units (latency clock)."""

    def fewer(self) -> Iterator[Residents]:
        """Sets with one less: every set comes from one other."""
        for at in range(self.at, len(self.staying)):
            yield Residents(self.path, self.staying[:at] + self.staying[at + 1 :], at)
