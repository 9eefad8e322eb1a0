"""Equal steps of a recurrence become a loop of the C that does what they did; steps that differ do not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fadiff.converter import convert
from fadiff.costmodel.schedule.schedule import Schedule
from fadiff.costmodel.target.target import load_target
from fadiff.emitters.gemmini import emit
from fadiff.emitters.gemmini.equal_steps import Statements, print_statements
from fadiff.emitters.gemmini.printer import CPrinter
from fadiff.optimizer import optimize
from tests.emitters.gemmini.executed import Case, check
from tests.recurrences import cell, chain, loop

LOOP = re.compile(r"for \(int32_t step = 0; step < (\d+); step\+\+\) \{")
MOVED = re.compile(r"\(?(\d+ [+-] )?\bstep\b( \* \d+)?\)?")


def _printed(statements: Sequence[Statements]) -> str:
    c = CPrinter()
    print_statements(c, statements)
    return c.text


def _unrolled(text: str) -> list[str]:
    """The statements that the C runs, one after the other."""
    done: list[str] = []
    body: list[str] | None = None
    for line in (line.strip() for line in text.splitlines() if not line.strip().startswith("/*")):
        if match := LOOP.match(line):
            turns, body = int(match[1]), []
        elif line == "}" and body is not None:
            done += [
                re.sub(r"@(.*?)@", lambda e, t=t: str(eval(e[1], {"step": t})), one)
                for t in range(turns)
                for one in body
            ]
            body = None
        elif body is not None:
            body.append(re.sub(r"(\d+ [+-] )?\bstep\b( \* \d+)?", lambda e: f"@{e[0]}@", line))
        else:
            done.append(line)
    return [re.sub(r"\((-?\d+)\)", r"\1", re.sub(r"\((-?\d+)\)", r"\1", line)) for line in done]


CALLS = st.lists(
    st.tuples(st.sampled_from("fg"), st.integers(0, 3), st.integers(-2, 2), st.integers(1, 6)),
    min_size=1,
    max_size=5,
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(CALLS, st.integers(1, 7), st.integers(0, 4))
def test_loops_run_what_was_to_be_printed(
    body: list[tuple[str, int, int, int]], turns: int, odd: int
) -> None:
    lines = [
        f"{function}(at({place * 100 + stride * t + 50}), {10 * place + 1}, x{place});"
        for t in range(turns)
        for function, place, stride, _ in body
    ]
    lines.insert(odd % len(lines), "f(at(7), 7, x7);")
    statements = [Statements((line,)) for line in lines]
    plain = [re.sub(r"\((-?\d+)\)", r"\1", line) for line in lines]
    assert _unrolled(_printed(statements)) == plain


def test_a_loop_is_printed() -> None:
    lines = [f"{name}(x + {16 * t + at}, {7 - t});" for t in range(5) for name, at in (("f", 0), ("g", 8))]
    text = _printed([Statements((line,), f"layer {i}") for i, line in enumerate(lines)])
    assert "for (int32_t step = 0; step < 5; step++) {" in text
    assert "    f(x + (step * 16), 7 - step);" in text
    assert "    g(x + (8 + step * 16), 7 - step);" in text
    assert "layer 1" in text
    assert "layer 2" not in text


def test_two_places_by_turns_are_a_loop_of_two_steps() -> None:
    lines = [f"f(at({t % 2 * 64}), at({(t + 1) % 2 * 64}));" for t in range(8)]
    text = _printed([Statements((line,)) for line in lines])
    assert LOOP.findall(text) == ["4"]


def test_numbers_in_names_are_names() -> None:
    text = _printed([Statements((f"f{t}(0x{t}p+1f);",)) for t in range(5)])
    assert not LOOP.search(text)


def _schedule(model: onnx.ModelProto, folder: Path) -> Schedule:
    path = folder / "model.onnx"
    onnx.save(model, path)
    return optimize(convert(path).graph, load_target("gemmini-small"), method="layerwise").schedule


def _code(model: onnx.ModelProto, folder: Path) -> str:
    return (emit(_schedule(model, folder), model_name="net", out_dir=folder / "c") / "net.c").read_text()


def _run(code: str) -> str:
    return code[code.index("int net_run(") :]


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(cell("GRU", 7, "bidirectional"), id="gru both ways"),
        pytest.param(cell("LSTM", 6, "reverse"), id="lstm backwards"),
        pytest.param(cell("RNN", 7), id="rnn"),
        pytest.param(loop("Scan", 7), id="scan"),
        pytest.param(loop("Loop", 7), id="loop"),
    ],
)
def test_loops_compute_what_the_reference_does(model: onnx.ModelProto, tmp_path: Path) -> None:
    schedule = _schedule(model, tmp_path)
    check(Case(schedule))
    code = (emit(schedule, model_name="net", out_dir=tmp_path / "c") / "net.c").read_text()
    assert LOOP.search(code)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_c_does_not_grow_with_steps(op: str, direction: str, tmp_path: Path) -> None:
    """More digits are all that there is to write; tiles of the first product are another matter."""
    few, many = (_code(cell(op, steps, direction), tmp_path) for steps in (8, 24))
    assert len(_run(many)) <= 1.03 * len(_run(few))
    assert many.count("static void layer_") == few.count("static void layer_")
    assert many.count("static const loops_t") == few.count("static const loops_t")


def test_steps_of_other_weights_stay_apart(tmp_path: Path) -> None:
    code = _code(chain(6), tmp_path)
    assert not LOOP.search(code)
    assert len(re.findall(r"^static void layer_", code, re.M)) == 6
