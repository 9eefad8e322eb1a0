"""The adversary finds nothing below a bound, and would find what is."""

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.adversary import ATTACKS, attacks
from benchmarks.adversary.graphs import exchange
from fadiff.converter.ir.loops import Dims
from fadiff.costmodel.mapping.shape import LayerShape
from fadiff.costmodel.mapping.tiling import Window
from fadiff.costmodel.target.target import Target
from fadiff.optimizer.layer.enumerate import _pixels


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_is_below_a_bound(name, seed):
    attempt = ATTACKS[name](np.random.default_rng(seed))
    assert not attempt.breaks, attempt.case


@pytest.mark.parametrize(("name", "seed"), [("schedules", 48), ("channels", 81)])
def test_two_tiles_of_weights_stay_in_a_group_of_one_tile(name, seed):
    """Of its only member on the array: these walks find such schedules."""
    assert not ATTACKS[name](np.random.default_rng(seed)).breaks


def test_every_partition_of_crossing_branches_is_compared():
    attempt = attacks.cuts(np.random.default_rng(1), exchange())
    assert attempt.tried > 100
    assert attempt.lowest == pytest.approx(1)


def test_a_front_that_lacks_a_mapping_is_noticed(monkeypatch, request):
    """Without the mappings that one array block of weights makes worth their while."""
    dims = Dims(K=16, C=1, P=16, Q=16, S=7)
    shape = LayerShape(dims, Window(1, 1, 1, 0, 16), Window(7, 1, 1, 3, 16), False, True)
    target = Target(name="packed", side=8, scratchpad_bytes=8192, accumulator_bytes=512)
    request.addfinalizer(_pixels.cache_clear)
    assert not attacks.fronts(np.random.default_rng(0), shape, target).breaks
    monkeypatch.setattr("fadiff.optimizer.layer.enumerate._undominated", lambda grid, _: np.arange(1))
    _pixels.cache_clear()
    assert attacks.fronts(np.random.default_rng(0), shape, target).breaks


def test_the_last_line_has_figures_and_a_break_fails(monkeypatch, capsys):
    def breaks(rng):
        return attacks.Attempt(1, 0.9, "a case")

    assert main(["adversary", "--attack", "cuts", "--cases", "2"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert "broken=0" in last and "cuts_cases=2" in last and "cuts_outside=inf" in last
    monkeypatch.setitem(ATTACKS, "cuts", breaks)
    assert main(["adversary", "--attack", "cuts", "--cases", "1"]) == 1
    assert "cuts seed 0" in capsys.readouterr().out


def test_what_is_on_chip_while_a_group_leaves_layers_out_is_outside_of_the_space():
    """A layer between the two layers of a group in graph order writes a tensor that waits for the group."""
    attempt = ATTACKS["schedules"](np.random.default_rng(212))
    assert attempt.outside < 1 and not attempt.breaks
