"""Which host operators may run on the tiles of a fusion group."""

from __future__ import annotations

import numpy as np
import pytest

from fadiff.costmodel.group.row_operators import obstacle_to_rows
from fadiff.costmodel.schedule.host_records import operator_of
from tests.optimizer.graphs import Net


@pytest.mark.parametrize(("rows", "obstacle"), [(4, ""), (2, "part of a tensor"), (1, "part of a tensor")])
def test_a_table_over_a_slice_is_no_member(rows: int, obstacle: str) -> None:
    """Gates of a recurrent layer: a table over the first rows of what a product wrote."""
    net = Net(size=4, channels=4)
    whole = net.conv("product", net.x, 8)
    table = net.builder.tensor("table", (256,), "int8", 0.5, np.zeros(256, np.int8))
    part = net.builder.tensor("part", (1, rows, 4, 8), scale=0.5)
    attributes = {"shape": (rows * 32,), "offset": 0, "strides": (1,), "out_strides": (1,)}
    net.builder.host("gate", operator_of("lookup", attributes), (whole, table), (part,))
    graph = net.build(part)
    found = obstacle_to_rows(graph, graph.by_name["gate"])  # type: ignore[arg-type]
    assert obstacle in found and bool(obstacle) == bool(found)
