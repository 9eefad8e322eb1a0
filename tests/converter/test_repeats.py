"""Equal steps of a recurrence are found, and stay equal in int8: one scale, one table, one bias for all."""

from __future__ import annotations

from pathlib import Path

import pytest

from fadiff.converter.ir.recurrence import Operation, Repeat, find_repeats, shared_roles
from tests.converter.oracle import Checked, check, weights
from tests.recurrences import BATCH, GATES, WIDTH, cell, chain, loop

GOOD_DB = 20.0


def _steps(count: int, state: str = "h0") -> list[Operation]:
    """a_t = f(x_t, h_t); h_t+1 = g(a_t, w)."""
    found = []
    for t in range(count):
        found.append(Operation("f", (f"x{t}", state), (f"a{t}",)))
        found.append(Operation("g", (f"a{t}", "w"), (state := f"h{t + 1}",)))
    return found


def _slices(count: int) -> list[Operation]:
    return [Operation("slice", ("x",), (f"x{t}",)) for t in range(count)]


def test_steps_are_found_with_what_comes_before_and_behind() -> None:
    operations = [
        Operation("first", ("x",), ("h0",)),
        *_slices(5),
        *_steps(5),
        Operation("last", ("h5",), ("y",)),
    ]
    assert find_repeats(operations) == (Repeat(1, 1, 5), Repeat(6, 2, 5))


def test_steps_may_read_backwards() -> None:
    assert find_repeats([*_slices(4)[::-1], *_steps(4)]) == (Repeat(0, 1, 4), Repeat(4, 2, 4))


def test_two_steps_are_noloop() -> None:
    assert not find_repeats([*_slices(2), *_steps(2)])


def test_other_weights_make_other_steps() -> None:
    kinds = [
        Operation((op.kind, i // 2) if op.kind == "g" else op.kind, op.reads, op.writes)
        for i, op in enumerate(_steps(6))
    ]
    assert not find_repeats(kinds)


def test_steps_that_read_an_older_state_are_no_steps_of_oneloop() -> None:
    operations = [*_slices(6), *_steps(6)]
    skipping = Operation("f", ("x3", "h1"), ("a3",))  # (not h3)
    operations[6 + 2 * 3] = skipping
    assert Repeat(6, 2, 6) not in find_repeats(operations)


def test_what_steps_read_in_one_place_has_one_role() -> None:
    operations = [Operation("first", ("x",), ("h0",)), *_slices(4), *_steps(4)]
    roles = shared_roles(operations)
    assert {roles[f"h{t}"] for t in range(5)} == {"h0"}
    assert {roles[f"a{t}"] for t in range(4)} == {"a0"}
    assert len(set(roles.values())) == 3


def _constants(checked: Checked) -> int:
    return sum(tensor.data is not None for tensor in checked.conversion.graph.tensors.values())


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", GATES)
def test_constants_of_a_recurrence_do_not_grow_with_its_steps(
    op: str, direction: str, tmp_path: Path
) -> None:
    few, many = (check(cell(op, steps, direction), tmp_path) for steps in (6, 9))
    assert _constants(few) == _constants(many)
    assert min(few.sqnr_db, many.sqnr_db) > GOOD_DB


def test_judged_samples_leave_steps_equal(tmp_path: Path) -> None:
    """Corrections of biases and zero points are found step by step, and shared."""
    samples = [{"x": weights(10 + i, 12, BATCH, WIDTH)} for i in range(12)]
    few = check(cell("GRU", 6, "forward"), tmp_path, calibration=[{"x": s["x"][:6]} for s in samples])
    many = check(cell("GRU", 12, "forward"), tmp_path, calibration=samples)
    assert _constants(many) <= _constants(few) + 1  # (ranges may be chosen differently)
    assert many.sqnr_db > GOOD_DB


def test_steps_of_other_weights_share_no_scale(tmp_path: Path) -> None:
    """A chain of products looks like a recurrence, but its weights are its own."""
    count = 6
    graph = check(chain(count), tmp_path).conversion.graph
    scales = {tensor.scale for name, tensor in graph.tensors.items() if name.startswith("a")}
    assert len(scales) == count


@pytest.mark.parametrize("op", ["Loop", "Scan"])
def test_bodies_of_loops_are_steps(op: str, tmp_path: Path) -> None:
    few, many = (check(loop(op, steps), tmp_path) for steps in (6, 9))
    assert _constants(few) == _constants(many)
    assert min(few.sqnr_db, many.sqnr_db) > GOOD_DB
