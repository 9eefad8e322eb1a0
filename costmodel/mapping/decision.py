"""What is decided for one graph on one target: mappings, fusion groups and the rules they obey.

A fusion group runs its members once per *group tile*: a block (N, P, Q) of the last member's output, of all
its groups or (attention: heads) of some, of all its channels or of some.  For every group tile, member by
member in graph order, the region of the member's output that later members need (halo included) is computed
by the member's own loop nest, whose bounds are that region instead of the whole layer.  What flows between
members never goes to DRAM: it goes through the tile buffer.  Between groups
tensors go to DRAM, except those in `resident_tensors`, which stay on chip whole.  A layer alone is a group
of one whose tile is its whole output.  Several layers without a group tile run side by side: one on Gemmini,
the others on the core meanwhile (fadiff.costmodel.group.side_by_side).

The cost model's rules are written in terms of a `Decision`; one that obeys them all is a `Schedule`
(fadiff.costmodel.schedule.schedule), from which everything above the rules takes these types.
"""

from __future__ import annotations

from collections.abc import Mapping as MappingABC
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from fadiff.converter.ir.graph import Graph
from fadiff.costmodel.mapping.counting import COUNTING, Counting, LatencyModel, Profile
from fadiff.costmodel.mapping.mapping import AdditionIssue, Mapping
from fadiff.costmodel.target.target import Target

FusionModel = Literal["sound", "paper"]


@dataclass(frozen=True)
class GroupTile:
    """Extents of one group tile in the last member's output; ragged at the edges.

    `G` of the groups (attention: heads) that all members have alike; None: every member computes all its own.
    `K` of the output channels that all members hand on one by one (groups of a depthwise layer); None: all.
    Tiles of groups or channels are the outermost loop of the tiles, those of N, P and Q follow in this order.
    """

    N: int
    P: int
    Q: int
    G: int | None = None
    K: int | None = None

    @property
    def is_part(self) -> bool:
        """Whether it has some of the groups or channels only."""
        return self.G is not None or self.K is not None


@dataclass(frozen=True)
class FusionGroup:
    """Layers executed together, in graph order (each layer of the graph is in exactly one group).

    `tile` is None for a group of one, and for layers that run side by side.
    Overlapping rows of intermediates are computed again.  Weights of
    `resident_weights` members are loaded once and stay in the scratchpad: all of them for the whole group,
    or those of a tile's G or K as long as its N, P and Q tiles run.
    Outputs of members reach later members through the tile buffer; in profile dosa and the paper's model
    they stay in the scratchpad.
    `resident_tensors` are whole tensors that are on chip while this group runs (profile hw: in the tile
    buffer, dosa: in the scratchpad): those it reads, those it writes and those that wait for a later group.
    `pipelined`: while the core computes a host operator of one group tile, Gemmini runs products of others
    (fadiff.costmodel.group.pipeline).
    """

    layers: tuple[str, ...]
    tile: GroupTile | None = None
    resident_weights: frozenset[str] = frozenset()
    resident_tensors: frozenset[str] = frozenset()
    pipelined: bool = False

    @property
    def side_by_side(self) -> bool:
        """Whether its layers need nothing of each other (fusion model sound)."""
        return self.tile is None and len(self.layers) > 1


@dataclass(frozen=True)
class Decision:
    """Mapping of every tensor-core layer and partition into groups, legal or not.

    `additions` says how residual additions are issued; those that it does not name by single instructions.
    `copies` are those that Gemmini's DMA makes, by single instructions; the core makes the others.
    """

    graph: Graph = field(repr=False)
    target: Target
    mappings: MappingABC[str, Mapping]
    groups: tuple[FusionGroup, ...]
    profile: Profile = "hw"
    fusion_model: FusionModel = "sound"
    additions: MappingABC[str, AdditionIssue] = field(default_factory=dict)
    copies: frozenset[str] = frozenset()

    @cached_property
    def group_of(self) -> MappingABC[str, FusionGroup]:
        """The group of every layer."""
        return {name: group for group in self.groups for name in group.layers}

    @property
    def counting(self) -> Counting:
        """The rules of the profile."""
        return COUNTING[self.profile]

    @property
    def is_executable(self) -> bool:
        """Whether a program does what is counted."""
        return self.profile == "hw" and self.fusion_model == "sound"

    @property
    def latency(self) -> LatencyModel:
        """By which its cycles are counted."""
        return self.counting.latency_model(paper=self.fusion_model == "paper")

    @property
    def copies_into_scratchpad(self) -> bool:
        """Whether fused tensors wait in the scratchpad, not in the tile buffer."""
        return self.counting.copies_into_scratchpad(paper=self.fusion_model == "paper")

    def is_fused(self, producer: str, consumer: str) -> bool:
        """Whether the edge between two layers stays inside a group."""
        return consumer in self.group_of[producer].layers


def singleton_groups(graph: Graph) -> tuple[FusionGroup, ...]:
    """The unfused partition: every layer alone."""
    return tuple(FusionGroup((layer.name,)) for layer in graph.layers)
