"""Where the operands of a tensor-core layer live, as its fusion group and resident tensors decide."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fadiff.converter.ir.graph import Graph, TensorCoreLayer
from fadiff.costmodel.count.traffic import Placement, Pooled
from fadiff.costmodel.group.fusion import Member, stored_as
from fadiff.costmodel.group.pooling import pool_of
from fadiff.costmodel.mapping.decision import FusionGroup
from fadiff.costmodel.mapping.shape import extents


def placement_of(
    graph: Graph,
    group: FusionGroup,
    plan: Mapping[str, Member],
    layer: TensorCoreLayer,
    *,
    paper: bool = False,
) -> Placement:
    """Placement of one member of `group`, also of a group of one; `plan` has its members.

    A resident tensor is read and written like a fused one.  The paper's model knows none.
    """
    stored = stored_as(plan, layer.name)
    resident = frozenset[str]() if paper else group.resident_tensors
    stays = graph.by_name[stored.name].outputs[0] in resident
    return Placement(
        input_is_fused=layer.input.tensor in plan[layer.name].fused_inputs or layer.input.tensor in resident,
        output_is_fused=stored.writes_inside or stays,
        output_to_dram=stored.writes_outside and not stays,
        weights_are_resident=layer.name in group.resident_weights,
        is_paper=paper,
        weights_on_chip=layer.weight.tensor in resident,
        pooled=pooled(graph, plan, layer.name),
        stores_sums=stores_sums(graph, layer),
        has_row_scale=layer.row_scale is not None,
    )


def stores_sums(graph: Graph, layer: TensorCoreLayer) -> bool:
    """Whether the sums of an int8 layer leave the accumulator as they are."""
    return graph.tensors[layer.output.tensor].dtype == "int32"


def pooled(graph: Graph, members: Mapping[str, Member], name: str) -> Pooled | None:
    """What a max pool makes of the output of a member on its way out; None if there is none."""
    member = stored_as(members, name)
    if member.name == name:
        return None
    layer = graph.by_name[member.name]
    pool = pool_of(graph, layer)
    assert pool is not None
    size = graph.tensors[layer.outputs[0]].size
    pixels = math.prod(sum(extents(axis)) for axis in member.computed)
    return Pooled(pixels * size // math.prod(member.size), size, pool.kernel**2, pool.steps)
