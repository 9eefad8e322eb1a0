"""Which outputs are the next run's inputs: named by the user, or guessed by their names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import onnx

from fadiff.converter.errors import ModelError
from fadiff.converter.ir.program import Program
from fadiff.converter.ir.recurrence import Arrays, State, chained
from fadiff.converter.names import did_you_mean
from fadiff.converter.read.inputs import Samples
from fadiff.converter.read.runtime import explaining, open_session, run_model

_BEFORE = frozenset(("past", "prev", "previous", "old", "last"))
_AFTER = frozenset(("present", "next", "new", "updated"))
_SIDES = frozenset(("in", "out", "input", "output", "cur", "current", "0", "1", "n", "t"))
_KEEPERS = frozenset(
    "buf buffer c cache carry cell context h hidden hx mem memory state states".split()  # noqa: SIM905
)
"""Words that name something which is kept."""
_SPELLED = {"h0": "h", "hn": "h", "c0": "c", "cn": "c", "staten": "state"}


def find_states(
    file: str, program: Program, given: Sequence[State], *, guess: bool
) -> tuple[tuple[State, ...], str]:
    """The states of a model, and a note where they were guessed.

    Args:
        file: for messages.
        program: the normalised model.
        given: by the user, by names of outputs and inputs; nothing is guessed where there are any.
        guess: pair outputs and inputs whose names say so (`hn` and `h`, `present.0.key` and `past.0.key`,
            `cache_out` and `cache`) and whose shapes and types agree.

    Raises:
        ModelError: a name that is no output or no input, named twice, or of another shape or type.
    """
    for state in given:
        _check(file, program, state)
    for side in ("output", "input"):
        names = [getattr(state, side) for state in given]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ModelError(f"{file}: --state: {side} {twice} is named twice; name it once")
    for side, known in (("input", program.inputs), ("output", program.outputs)):
        if given and len(given) == len(known):
            raise ModelError(f"{file}: --state: every {side} would be a state, none be left; leave one out")
    most = min(len(program.inputs), len(program.outputs)) - 1  # (something goes in and comes out besides)
    if given or not guess or most < 1:
        return tuple(given), ""
    found = _guessed(program)
    found = found if len(found) <= most else ()
    pairs = ", ".join(f"{state.output} -> {state.input}" for state in found)
    note = f"state kept between runs, guessed by name: {pairs} (--no-state: none; --state OUT=IN: others)"
    return found, note if found else ""


def _check(file: str, program: Program, state: State) -> None:
    for side, name, known in (
        ("output", state.output, program.outputs),
        ("input", state.input, program.inputs),
    ):
        if name not in known:
            advice = did_you_mean(name, known) or f"there are {', '.join(known)}"
            raise ModelError(f"{file}: --state {state}: the model has no {side} {name}; {advice}")
    if not _alike(program, state):
        shapes = " and ".join(_described(program, name) for name in (state.output, state.input))
        raise ModelError(
            f"{file}: --state {state}: shapes and types differ: {shapes}; bind --dim so that they agree, or "
            "export the model with a window of fixed size"
        )


def _described(program: Program, name: str) -> str:
    shape = "x".join(map(str, program.shapes.get(name, ("?",)))) or "scalar"
    return f"{name} is {shape} {onnx.TensorProto.DataType.Name(program.types[name]).lower()}"


def _alike(program: Program, state: State) -> bool:
    shapes = [program.shapes.get(name) for name in (state.output, state.input)]
    types = [program.types.get(name) for name in (state.output, state.input)]
    return shapes[0] is not None and shapes[0] == shapes[1] and types[0] == types[1]


def _guessed(program: Program) -> tuple[State, ...]:
    outputs, inputs = _by_base(program.outputs, _BEFORE), _by_base(program.inputs, _AFTER)
    pairs = []
    for base, names in inputs.items():
        others = outputs.get(base, [])
        if len(names) == len(others) == 1:
            state = State(others[0], names[0])
            sides = _words(names[0]) & _BEFORE and _words(others[0]) & _AFTER
            told = sides or set(base) & _KEEPERS
            if told and _alike(program, state):
                pairs.append(state)
    return tuple(pairs)


def _by_base(names: Iterable[str], other_side: frozenset[str]) -> dict[tuple[str, ...], list[str]]:
    """Names by what remains of them without the words that tell input from output."""
    found: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        words = _split(name)
        if not set(words) & other_side:
            dropped = _BEFORE | _AFTER | (_SIDES if set(words) & _KEEPERS else frozenset())
            base = tuple(word for word in words if word not in dropped) or tuple(words)
            found.setdefault(base, []).append(name)
    return found


def _split(name: str) -> list[str]:
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", "_", name).lower().replace("past_key_values", "past")
    words = [_SPELLED.get(word, word) for word in re.split(r"[^a-z0-9]+", spaced) if word]
    return [part for word in words for part in _unglued(word)]


def _unglued(word: str) -> list[str]:
    """`statein` and `hout` are two words."""
    for side in ("in", "out"):
        if word.endswith(side) and word.removesuffix(side) in _KEEPERS:
            return [word.removesuffix(side), side]
    return [word]


def _words(name: str) -> set[str]:
    return set(_split(name))


def in_sequence(program: Program, steps: Samples, states: Sequence[State]) -> Samples:
    """Inputs of consecutive steps with the states that the float model reaches, from zero.

    Args:
        program: the float model.
        steps: the other inputs by name.
        states: by ONNX name.

    Raises:
        ModelError: ONNX Runtime cannot run the model on them.
    """
    zeros = {state.input: np.zeros(*program.interface[state.input]) for state in states}
    run = runner(program, [state.output for state in states])
    return [dict(inputs) for inputs, _ in chained(run, ({**step, **zeros} for step in steps), states)]


def runner(program: Program, outputs: Sequence[str]) -> Callable[[Arrays], dict[str, np.ndarray]]:
    """A function that runs the model once: inputs by name to `outputs` by name."""
    if program.weights:
        return lambda given: {
            name: values[0] for name, values in run_model(program, [given], frozenset(outputs))
        }
    with explaining():
        session = open_session(program.model)

    def run(given: Arrays) -> dict[str, np.ndarray]:
        with explaining():
            return dict(zip(outputs, session.run(list(outputs), dict(given)), strict=True))

    return run
