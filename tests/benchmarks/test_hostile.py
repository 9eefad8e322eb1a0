"""A seeded slice of the hostile suite (all of it: python -m benchmarks hostile --seconds N)."""

from __future__ import annotations

import tempfile
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from benchmarks.hostile import all_kinds, attack
from benchmarks.hostile.mutate import mutated_data, mutated_model
from benchmarks.hostile.seeds import HEADER, models
from benchmarks.hostile.watch import Watched

ROUNDS = 8


def test_hostile_files_end_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kinds = all_kinds(tmp_path)
    faults, codes = [], Counter[int]()
    for kind, seed, _, run in islice(attack(kinds, list(kinds), 1, tmp_path), ROUNDS * len(kinds)):
        codes[run.code] += 1
        if run.fault:
            faults.append((kind, seed, run))
    assert not faults
    assert codes[2] > ROUNDS and codes[0] > 0, "most are refused, some changes do not matter"


def test_equal_seeds_give_equal_cases() -> None:
    model = models()["residual"]
    changed = [mutated_model(np.random.default_rng(7), model).SerializeToString() for _ in range(2)]
    assert changed[0] == changed[1] != model.SerializeToString()
    data = {"a": [1, 2, {"b": 3.0}], "c": "text"}
    assert str(mutated_data(np.random.default_rng(7), data)) == str(
        mutated_data(np.random.default_rng(7), data)
    )


def test_what_the_watch_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes beside the folder and hangs are not overlooked, and what is right is no fault."""
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.setenv("TMPDIR", str(inside))
    (tmp_path / "params.h").write_text(HEADER)
    written = ["targets", "import", str(tmp_path / "params.h"), "-o"]
    with Watched((inside,), 60) as watched:
        assert watched.run(["no such command"]).code == 2
        assert not watched.run([*written, str(inside / "t.yaml")]).fault
        assert watched.run([*written, str(tmp_path / "t.yaml")]).fault == "outside_write"
    with Watched((inside,), 0.0) as watched:
        assert watched.run(["targets", "list"]).fault == "hang"
