"""States: what one run leaves for the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Arrays = Mapping[str, np.ndarray]

LOST_BY_STATES = "int8 loses by what is kept from step to step"
"""How a note begins that advises to keep states in float."""


@dataclass(frozen=True)
class State:
    """A state: the `output` of one run is the `input` of the next; before the first, `input` is zero."""

    output: str
    input: str

    def __str__(self) -> str:
        """As `--state` takes it."""
        return f"{self.output}={self.input}"


def chained(
    run: Callable[[Arrays], Arrays], steps: Iterable[Arrays], states: Sequence[State], length: int = 0
) -> Iterator[tuple[Arrays, Arrays]]:
    """Run one step after the other; what was run and what came out of it.

    Args:
        run: computes the outputs of the states, among others, from the inputs of one step.
        steps: inputs by name; those of the states count in the first step of a sequence only.
        states: by the same names.
        length: steps of a sequence; 0: all.
    """
    kept: dict[str, np.ndarray] = {}
    for at, step in enumerate(steps):
        given = {**step, **kept} if length == 0 or at % length else step
        found = run(given)
        yield given, found
        kept = {s.input: np.reshape(found[s.output], np.shape(given[s.input])) for s in states}
