"""Every rule of the execution contract refuses the schedule that breaks it, by name and number."""

from dataclasses import replace

import pytest

from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.count.capacity import occupancy
from fadiff.costmodel.group.fusion import ScheduleError
from fadiff.costmodel.group.legality import Room, check_mapping
from fadiff.costmodel.mapping.mapping import Mapping
from fadiff.costmodel.mapping.shape import shape_of
from fadiff.costmodel.schedule.schedule import Schedule, singleton_groups
from fadiff.costmodel.target.target import load_target
from tests.costmodel.networks import conv, graph, pair, whole_tile

SMALL = load_target("gemmini-small")
LARGE = load_target("gemmini-large")


def legal():
    layer = conv("a", "x", "y", 16, 16, 8, 8, 3, 1, 1)
    return layer, whole_tile(layer.dims, P=2, Q=4)


def test_double_buffering_counts_refetched_tiles_twice():
    layer, mapping = legal()
    used = occupancy(shape_of(layer), mapping, SMALL, "hw")
    # P and Q loops refetch I and O; W is irrelevant to them and stays.
    assert used.weights == 9 * 16
    assert used.inputs == 2 * (4 * 6)
    assert used.outputs == 2 * 8
    assert (used.inputs_twice, used.weights_twice, used.outputs_twice) == (True, False, True)
    once = occupancy(shape_of(layer), whole_tile(layer.dims), SMALL, "hw")
    assert (once.inputs, once.outputs) == (100, 64)


def test_capacity_exactly_full_is_legal():
    layer = conv("a", "x", "y", 16, 16, 8, 16, 1)
    mapping = whole_tile(layer.dims)  # 16 + 128 rows of 512, 128 of 128
    check_mapping(layer, mapping, SMALL, "hw")
    check_mapping(layer, mapping, SMALL, "hw", room=Room(reserved=512 - 144))
    with pytest.raises(
        ScheduleError, match=r"a: scratchpad overflows: W 16 \+ I 128 \+ reserved 369 = 513 of 512"
    ):
        check_mapping(layer, mapping, SMALL, "hw", room=Room(reserved=512 - 143))


@pytest.mark.parametrize(
    "profile, message",
    [("hw", "a: accumulator overflows: O 144 of 128 rows"), ("dosa", "O 144 of 128 words per column")],
)
def test_accumulator_capacity(profile, message):
    layer = conv("a", "x", "y", 16, 16, 9, 16, 1)
    with pytest.raises(ScheduleError, match=message):
        check_mapping(layer, whole_tile(layer.dims), SMALL, profile)


def test_the_fullest_column_holds_the_outputs_of_every_block():
    """8 channels on 7 columns: the first holds two of them, the mean (83 words) decides nothing."""
    layer = conv("a", "x", "y", 8, 16, 8, 9, 1)
    mapping = Mapping(layer.dims, layer.dims, Dims(K=7, C=16), Dims(C=16), Dims(K=7))
    for profile, unit in (("hw", "rows"), ("dosa", "words per column")):
        with pytest.raises(ScheduleError, match=f"accumulator overflows: O 144 of 128 {unit}"):
            check_mapping(layer, mapping, SMALL, profile)


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"cols": Dims(K=8, P=2), "tile_l0": Dims(K=8, C=16, P=2, Q=4)},
            "P cannot be spread over the array columns",
        ),
        ({"rows": Dims(R=3), "tile_l0": Dims(K=16, R=3, P=2)}, "R cannot be spread over the array rows"),
        ({"tile_l0": Dims(K=16, C=16, S=3, P=2)}, "array block S=3 must equal its spatial factor 1"),
        ({"rows": Dims(C=8, S=3), "tile_l0": Dims(K=16, C=8, S=3)}, "24 array rows of 16"),
        (
            {"rows": Dims(C=4, S=3), "tile_l0": Dims(K=16, C=4, S=3)},
            "row packing .* needs all of C=16 inside, not 4",
        ),
    ],
)
def test_array_rules(change, message):
    layer, mapping = legal()
    with pytest.raises(ScheduleError, match=message):
        check_mapping(layer, replace(mapping, **change), SMALL, "hw")


def test_row_packing_needs_the_hardware():
    layer = conv("a", "x", "y", 16, 3, 8, 8, 3, 1, 1)
    mapping = Mapping(
        layer.dims.replace({"P": 2}),
        layer.dims.replace({"P": 2}),
        Dims(K=16, C=3, S=3, P=2),
        Dims(C=3, S=3),
        Dims(K=16),
    )
    check_mapping(layer, mapping, LARGE, "hw")
    with pytest.raises(ScheduleError, match="has no row packing"):
        check_mapping(layer, mapping, LARGE.model_copy(update={"has_row_packing": False}), "hw")
    dilated = replace(layer, dilation=(1, 2), pads=(1, 2, 1, 2))  # pixel_repeats puts neighbours in a row
    with pytest.raises(ScheduleError, match="without dilation"):
        check_mapping(dilated, mapping, LARGE, "hw")
    check_mapping(dilated, mapping, LARGE, "dosa")


def test_grouped_layers_hold_one_group():
    layer = replace(legal()[0], dims=Dims(G=2, K=8, C=8, P=2, Q=2))
    mapping = Mapping(Dims(G=2, K=8, C=8), Dims(K=8, C=8), Dims(K=8, C=8), Dims(C=8), Dims(K=8))
    with pytest.raises(ScheduleError, match="one group at a time, tile G=2"):
        check_mapping(layer, mapping, SMALL, "hw")
    check_mapping(layer, mapping, SMALL, "dosa")


def test_tiles_stay_inside_the_layer():
    layer, mapping = legal()
    bigger = replace(mapping, tile_l2=mapping.tile_l2.replace({"P": 9}))
    with pytest.raises(ScheduleError, match="scratchpad tile P=9 exceeds the bound 8"):
        check_mapping(layer, bigger, SMALL, "hw")


def test_schedules_are_total():
    network = pair(P=8)
    mappings = {name: whole_tile(network.by_name[name].dims) for name in ("a", "b")}
    Schedule(network, SMALL, mappings, singleton_groups(network))
    with pytest.raises(ScheduleError, match="b: has no mapping"):
        Schedule(network, SMALL, {"a": mappings["a"]}, singleton_groups(network))
    with pytest.raises(ScheduleError, match="b: is in no fusion group"):
        Schedule(network, SMALL, mappings, singleton_groups(network)[:1])
    with pytest.raises(ScheduleError, match="c: has a mapping but is no tensor-core layer"):
        Schedule(network, SMALL, {**mappings, "c": mappings["a"]}, singleton_groups(network))
    other = graph([conv("a", "x", "y", 4, 4, 8, 8)], ("x",), ("y",))
    with pytest.raises(ScheduleError, match="b: is in a fusion group but not in the graph"):
        Schedule(other, SMALL, {"a": mappings["a"]}, singleton_groups(network))


def test_transposed_weights_fill_rows_with_input_channels():
    """17 x 100: two column blocks of 100 rows, or, stored along C, seven row blocks of 17."""
    layer = conv("a", "x", "y", 17, 100, 1, 8)
    tile = layer.dims
    mapping = Mapping(tile, tile, Dims(K=16, C=16, Q=8), Dims(C=16), Dims(K=16))
    stored_along_c = replace(layer, weight=replace(layer.weight, strides=(0, 0, 0, 1, 100)))
    assert occupancy(shape_of(layer), mapping, LARGE, "hw").weights == 2 * 100
    assert occupancy(shape_of(stored_along_c), mapping, LARGE, "hw").weights == 7 * 17
