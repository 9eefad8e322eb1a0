"""The batched evaluator equals the exact one, mapping by mapping."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter.ir.dims import Dims
from costmodel.group.fusion import ScheduleError
from costmodel.group.legality import check_mapping
from costmodel.mapping.mapping import Mapping
from costmodel.mapping.shape import LayerShape
from costmodel.mapping.tiling import Window
from costmodel.schedule.batch import MappingBatch, evaluate_batch
from costmodel.schedule.evaluate import layer_cost
from costmodel.target.target import load_target
from tests.costmodel.networks import layer_of
from tests.costmodel.strategies import layer_shapes, mappings

SMALL = load_target("gemmini-small")


@pytest.mark.parametrize("profile", ["hw", "dosa"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_equals_exact(profile, data):
    shape = data.draw(layer_shapes())
    target = SMALL.model_copy(update={"has_full_width_read": data.draw(st.booleans())})
    several = data.draw(st.lists(mappings(shape), min_size=1, max_size=5))
    batch = MappingBatch.of(several)
    costs = evaluate_batch(shape, batch, target, profile)
    for index, mapping in enumerate(several):
        assert batch.mapping(index) == mapping
        exact = layer_cost(shape, mapping, target, profile)
        assert costs.energy_pj[index] == pytest.approx(exact.energy_pj, rel=1e-12)
        assert costs.latency_cycles[index] == exact.latency_cycles
        for memory, moved in costs.memory_bytes.items():
            assert moved[index] == sum(m.bytes for m in exact.moves if m.memory == memory)
        try:
            check_mapping(layer_of(shape), mapping, target, profile)
            legal = True
        except ScheduleError:
            legal = False
        assert costs.fits[index] == legal


def test_rejects_unrolled_pixels():
    window = Window(1, 1, 1, 0, 1)
    shape = LayerShape(Dims(), window, window, False, False)
    batch = MappingBatch.of([Mapping(Dims(), Dims(), Dims())])
    batch.rows[0, 4] = 2
    with pytest.raises(ValueError, match="not unrolled"):
        evaluate_batch(shape, batch, SMALL)
