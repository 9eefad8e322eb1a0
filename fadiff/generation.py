"""Tokens in, tokens out: the loop around a compiled language model, on the integers of the device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fadiff.converter.ir.recurrence import first_rows, with_rows
from fadiff.emitters.gemmini.tokens import TokenProgram, prompt_programs, step_programs, token_program
from fadiff.errors import InputError
from fadiff.vectors import onnx_name, onnx_states

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

    from fadiff.converter.ir.graph import Graph

Chooser = Callable[[np.ndarray], int]
"""The next token by the scores of all."""


_MOST, _WORD = 64, 0xFFFFFFFF


def likeliest(scores: np.ndarray) -> int:
    """The first of the largest."""
    return int(np.argmax(scores))


def top_k(most: int, temperature: float = 1.0, seed: int = 1) -> Chooser:
    """Draws among the `most` likeliest by softmax(scores / temperature), as `<model>_sample` of the firmware.

    Args:
        most: Tokens to draw among, at most 64.
        temperature: Above 0; the lower, the more often the likeliest.
        seed: State of the generator at first, 1 to 2**32 - 1.

    Raises:
        InputError: a number out of these.
    """
    if not 1 <= most <= _MOST or not temperature > 0 or not 0 < seed < 2**32:
        raise InputError(f"top_k: 1 to {_MOST} tokens, a temperature above 0, a seed from 1 to 2**32 - 1")
    state = seed

    def choose(scores: np.ndarray) -> int:
        nonlocal state
        state ^= state << 13 & _WORD
        state ^= state >> 17
        state ^= state << 5 & _WORD
        best = np.argsort(-scores, kind="stable")[:most]
        below = scores[best].astype(np.float64) - float(scores[best[0]])
        shares = [math.exp(x / float(np.float32(temperature))) for x in below]
        left = (state >> 8) / 2**24 * sum(shares)
        for token, share in zip(best[:-1], shares, strict=False):
            if left < share:
                return int(token)
            left -= share
        return int(best[-1])

    return choose


@dataclass
class Generation:
    """One sequence: what `<model>_prompt` and `<model>_step` of the firmware do, to the bit.

    Args:
        entries: of the model, in the order of a run: prompts first, the last takes one token at a time.
            Each is a graph, and what computes its integers (those of float32 targets: the float model).

    Raises:
        InputError: an entry takes something else than tokens and their positions.
    """

    entries: Sequence[tuple[Graph, InferenceSession]]
    position: int = 0
    """Tokens of the sequence so far."""
    scores: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """Of the next token, as the float model has them [vocabulary]."""
    _kept: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    """What the sequence has left, by the ONNX names of states' inputs."""

    def __post_init__(self) -> None:
        self._programs = [_tokens_of(graph) for graph, _ in self.entries]
        self._steps = step_programs(self._programs)
        if self._programs[-1].count != 1:
            raise InputError(f"{self.entries[-1][0].name}: no entry takes one token: compile one that does")

    def prompt(self, tokens: Sequence[int] | np.ndarray) -> None:
        """Begin a new sequence.

        Raises:
            InputError: no token, or more than there are positions.
        """
        if len(tokens) < 1:
            raise InputError("a prompt has at least one token")
        self.position, rest = 0, list(map(int, tokens))
        self._kept.clear()
        sizes = {number: self._programs[number].count for number in prompt_programs(self._programs)}
        fits = [number for number, size in sizes.items() if len(rest) <= size]
        number = next(iter([*fits, *reversed(sizes)]), -1)
        program = self._programs[number]
        if sizes and (program.fills_up or len(rest) >= program.count):
            used, rest = rest[: program.count], rest[program.count :]
            rows = self._run(number, used + [0] * (program.count - len(used)))
            self.scores, self.position = rows[len(used) - 1 if program.rows > 1 else 0], len(used)
        for token in rest:
            self.step(token)

    def step(self, token: int) -> None:
        """Go on with a token.

        Raises:
            InputError: there is no position for it.
        """
        fits = [number for number in self._steps if self.position < self._programs[number].sees]
        if not fits:
            raise InputError(
                f"the sequence has {self.position} tokens, as many as the model has positions for"
            )
        (self.scores,) = self._run(fits[0], [token])
        self.position += 1

    def generate(
        self, tokens: Sequence[int] | np.ndarray, count: int, choose: Chooser = likeliest
    ) -> np.ndarray:
        """The `count` tokens that follow a prompt [count]."""
        self.prompt(tokens)
        found: list[int] = []
        for _ in range(count):
            if found:
                self.step(found[-1])
            found.append(choose(self.scores))
        return np.array(found, np.int64)

    def _run(self, number: int, tokens: Sequence[int]) -> np.ndarray:
        """Scores [rows, vocabulary] of one call."""
        (graph, session), program = self.entries[number], self._programs[number]
        end = self.position + program.count
        places = np.arange(self.position, end)
        given = {program.tokens: np.array(tokens)} | dict.fromkeys(program.positions, places)
        given |= {name: np.arange(graph.tensors[name].size) < end for name in program.masks}
        stored = {n: v.astype(np.int32).reshape(graph.tensors[n].shape) for n, v in given.items()}
        found, self._kept = _called(graph, session, stored, self._kept)
        tensor = graph.tensors[program.scores]
        scale = np.float32(1.0 if tensor.scale is None else tensor.scale)
        return found.reshape(program.rows, program.vocabulary).astype(np.float32) * scale


def _called(
    graph: Graph,
    session: InferenceSession,
    arguments: Mapping[str, np.ndarray],
    kept: Mapping[str, np.ndarray],
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The only result of a call, as stored, and the states after it; what is not `kept` is zero."""
    is_float = graph.element_type == "float32"

    def named(tensor: str) -> str:
        """In the session; names, types and axes of the float model are the file's."""
        return onnx_name(graph, tensor) if is_float else tensor

    inputs = {node.name: node for node in session.get_inputs()}
    given = {named(tensor): array for tensor, array in arguments.items()}
    names = [(state, known.input) for state, known in zip(graph.states, onnx_states(graph), strict=True)]
    for state, name in names:
        node = inputs[named(state.input)]
        given[node.name] = first_rows(kept[name], node.shape) if name in kept else np.zeros(node.shape)
    given = {n: a.reshape(inputs[n].shape).astype(_NUMPY[inputs[n].type]) for n, a in given.items()}
    outputs = [named(graph.results[0]), *(named(state.output) for state, _ in names)]
    computed: list[np.ndarray] = session.run(outputs, given)
    found, *left = computed
    after = dict(kept)
    for (state, name), rows in zip(names, left, strict=True):
        after[name] = with_rows(kept.get(name), rows.reshape(inputs[named(state.input)].shape))
    return found, after


_NUMPY = {
    "tensor(float)": np.float32,
    "tensor(int8)": np.int8,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}


def _tokens_of(graph: Graph) -> TokenProgram:
    found = token_program(graph)
    if found is None:
        names = ", ".join(onnx_name(graph, name) for name in graph.arguments)
        raise InputError(
            f"{graph.name}: generate needs a model of tokens, their positions and masks with one output of "
            f"scores; this one reads {names or 'nothing'}"
        )
    return found
