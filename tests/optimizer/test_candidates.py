from hypothesis import given
from hypothesis import strategies as st

from fadiff.optimizer.layer.candidates import blocked_extents, divisors, extents, ragged


@given(st.integers(1, 5000))
def test_ragged_extents_are_all_ceilings(size):
    assert ragged(size) == tuple(sorted({-(-size // n) for n in range(1, size + 1)}))


@given(st.integers(1, 5000))
def test_divisors_divide(size):
    assert divisors(size) == tuple(d for d in range(1, size + 1) if size % d == 0)


@given(st.integers(1, 600), st.sampled_from([2, 16, 32]))
def test_blocked_extents_add_whole_blocks(size, block):
    found = blocked_extents(size, min(size, block), "ragged")
    assert set(extents(size, "ragged")) <= set(found)
    assert found[-1] == size
    assert list(found) == sorted(set(found))
