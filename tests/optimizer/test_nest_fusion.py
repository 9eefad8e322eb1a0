"""Fusion on any machine: regions, what is counted of a tensor that is handed over, and what the cut takes."""

from dataclasses import replace

import pytest

from fadiff.costmodel.nests.machine import OPERANDS, FanOut, Machine, MachineError, Memory
from fadiff.optimizer.nests.fusion import fused, groups_of, least
from fadiff.optimizer.nests.network import map_network
from tests.optimizer.graphs import Net, residual, separable

ALL = frozenset(OPERANDS)


def machine(words: int) -> Machine:
    """A buffer for everything in front of a multiplier with registers."""
    dram = Memory("DRAM", ALL, read_pj=100, write_pj=100, update_pj=100, shared_bandwidth=1)
    return Machine("two", (dram, Memory("buffer", frozenset("IO"), frozenset("W"), words)), 1.0)


def test_a_fused_pair_moves_what_is_counted_by_hand():
    """3 x 3 depthwise of 4 x 8 x 8, then 1 x 1 to 4: with room for all, every word moves once.

    Inputs with their border 4 x 10 x 10, weights 36 and 16, outputs 256; alone the 256 words between the two
    are written and read as well.
    """
    found = map_network(separable(8, 4, 1), machine(2000), "energy")
    [(layers, tile)] = found.best.groups.items()
    assert (layers, tile.P) == (("dw0", "pw0"), 8)
    bytes_of = {mapped.layer.name: mapped.traffic(found.machine)["DRAM"] for mapped in found.best.layers}
    assert bytes_of == {"dw0": 400 + 36, "pw0": 16 + 256}
    assert found.saved(layers) == 2 * 256
    assert found.bound <= found.best.energy < found.unfused.energy
    assert found.unfused_bound <= found.unfused.energy
    alone = map_network(separable(8, 4, 1), machine(2000), "energy", fusion=False)
    assert not alone.best.groups and alone.best.energy == found.unfused.energy == alone.unfused.energy


def test_members_compute_their_halo_again_and_leave_room():
    net = Net(8, 2)
    graph = net.build(net.conv("b", net.conv("a", net.x, 2), 2, 3))
    [layers] = groups_of(graph, machine(1000))
    # Between them 2 x 8 x 8 words, 2 x 10 x 10 with the border that b reads.
    tiles = {each.tile.P: each.runs for each in fused(graph, layers, machine(1000))}
    assert [(run.workload.dims.P, run.times) for run in tiles[8].values()] == [(8, 1), (8, 1)]
    assert [(run.workload.dims.P, run.times) for run in tiles[4].values()] == [(5, 2), (4, 2)]
    assert [(run.workload.dims.P, run.times) for run in tiles[2].values()] == [(4, 4), (2, 4)]
    assert tiles[2]["a"].inside == {"O"} and tiles[2]["b"].inside == {"I"}
    # Room for 2 x 10 columns of 6 rows, but not of 10.
    assert [each.tile.P for each in fused(graph, layers, machine(2 * 10 * 6))] == [4, 2, 1]
    seen = tiles[4]["b"].on(machine(1000))
    assert "I" not in seen.memories[0].keeps and "I" in seen.memories[1].keeps
    assert least(seen, tiles[4]["b"].workload)[0] == 100 * (36 + 64) + 2 * 2 * 9 * 32


def test_host_operators_in_groups_move_nothing_that_is_not_counted():
    """What an add reads or writes outside a group is counted nowhere: it joins none."""
    groups = groups_of(residual(8, 4), machine(10_000))
    assert set(groups) == {("a1", "a2"), ("b1", "b2")}


def test_machines_without_a_shared_memory_fuse_nothing():
    dram, buffer = machine(64).levels
    spread = Machine("spread", (dram, FanOut("parts", "X", 2), buffer), 1.0)
    assert groups_of(residual(8, 4), spread) == {}
    with pytest.raises(MachineError, match="no memory on chip is shared"):
        spread.holding(frozenset("I"), frozenset("I"), 0)
    cut = replace(dram, limits=replace(dram.limits, exact={"P": 2}))
    with pytest.raises(MachineError, match="fixed factors of DRAM cut"):
        Machine("cut", (cut, buffer), 1.0).holding(frozenset("I"), frozenset("I"), 0)
