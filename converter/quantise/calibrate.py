"""Calibration samples: the user's, or random ones; of models with states consecutive steps."""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fadiff.converter.errors import ModelError
from fadiff.converter.ir.program import Program
from fadiff.converter.ir.recurrence import State
from fadiff.converter.read.inputs import (
    Samples,
    Spans,
    as_sample,
    random_input,
    read_arrays,
    read_inputs,
)
from fadiff.converter.read.states import find_states, in_sequence

RANDOM_STEPS = 16
"""Steps of a model with states: so many that these reach what they usually are."""


@dataclass
class CalibrationData:
    """Reads calibration data once the model's inputs are known, and finds the states among them.

    With states the samples are consecutive steps: the states are those that the float model reaches from
    zero, unless the data has arrays for all of them.
    """

    path: Path
    """The model."""
    given: str | Path | Samples | None
    """.npz file or samples; None: FILE.calibration.npz beside the model, if there is one."""
    named: Sequence[State] = ()
    guess: bool = True
    states: tuple[State, ...] = ()
    note: str = ""
    samples: Samples = ()
    recorded: bool = False
    """The data brings the states itself: samples need not be consecutive."""

    def __post_init__(self) -> None:
        if self.given is not None and not isinstance(self.given, (str, Path)):
            self.given = list(self.given)  # (a generator has its samples once)

    @property
    def names(self) -> frozenset[str]:
        """The inputs that there is data for, as far as it can be read."""
        given = self._file if self.given is None else self.given
        if not isinstance(given, (str, Path)):
            return frozenset(given[0]) if given else frozenset()
        try:
            with np.load(given, allow_pickle=False) as arrays:
                return frozenset(arrays.files)
        except (OSError, ValueError, AttributeError, TypeError, zipfile.BadZipFile):  # a single array, say
            return frozenset()

    @property
    def _file(self) -> Path:
        return self.path.with_suffix(".calibration.npz")

    def read(self, program: Program) -> Samples:
        """The samples for a normalised model, none where there are none.

        Raises:
            ModelError: states or data do not fit the model.
        """
        self.states, self.note = find_states(str(self.path), program, self.named, guess=self.guess)
        given = self.given
        if given is None:
            given = self._file if self._file.is_file() else ()
        kept = {state.input for state in self.states}
        if isinstance(given, (str, Path)):
            self.recorded = kept <= set(read_arrays(Path(given), "calibration data", kept)[0])
            self.samples = load_samples(program, Path(given), frozenset() if self.recorded else kept)
        else:
            self.recorded = all(kept <= sample.keys() for sample in given)
            names = [name for name in program.inputs if self.recorded or name not in kept]
            wanted = {name: entry for name, entry in program.interface.items() if name in names}
            missing = [name for name in names if any(name not in sample for sample in given)]
            if missing:
                raise ModelError(
                    f"{self.path}: a calibration sample has no array for input {missing[0]}; give one, or "
                    "name the output that it is in the next run"
                )
            self.samples = [
                {n: as_sample(str(self.path), n, sample[n], *entry) for n, entry in wanted.items()}
                for sample in given
            ]
        if self.samples and not self.recorded:
            self.samples = in_sequence(program, self.samples, self.states)
        return self.samples

    def draw(self, program: Program, seed: int, spans: Spans) -> Samples:
        """Random samples; with states a sequence of some length."""
        if not self.states:
            return random_samples(program, seed, spans)
        return in_sequence(program, random_samples(program, seed, spans, RANDOM_STEPS), self.states)


def random_samples(program: Program, seed: int, spans: Spans, count: int = 4) -> list[dict[str, np.ndarray]]:
    """Random inputs (converter/read/inputs.py), repeatable for a seed."""
    generator = np.random.default_rng(seed)
    return [
        {
            name: random_input(generator, *wanted, spans.get(name))
            for name, wanted in program.interface.items()
        }
        for _ in range(count)
    ]


def load_samples(program: Program, path: Path, without: Collection[str] = ()) -> list[dict[str, np.ndarray]]:
    """Samples of an .npz file (converter/read/inputs.py), `without` some inputs.

    Raises:
        ModelError: unreadable file, missing input, a shape that does not fit, or nothing but zeros.
    """
    wanted = {name: entry for name, entry in program.interface.items() if name not in without}
    stacked = read_inputs(path, "calibration data", wanted)
    floats = [array for name, array in stacked.items() if program.is_float(name)]
    if floats and not any(array.any() for array in floats):
        raise ModelError(
            f"{path}: the calibration data is zero everywhere: no range can come from it; give real inputs"
        )
    count = len(next(iter(stacked.values())))
    return [{name: array[i, ...] for name, array in stacked.items()} for i in range(count)]  # (scalars, too)
