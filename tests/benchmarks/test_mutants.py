"""Mutants are small changes that parse, each of one place."""

from __future__ import annotations

from pathlib import Path

from benchmarks.mutants import mutants

SOURCE = """
def clipped(x, low=0):
    \"\"\"Not below.\"\"\"
    return x + 1 if x > low and x != 300 else low
"""


def test_every_place_is_changed_once() -> None:
    found = {(mutant.line, mutant.before, mutant.after) for mutant in mutants(Path("m.py"), SOURCE)}
    whole = "x + 1 if x > low and x != 300 else low"
    assert found == {
        (2, "0", "1"),
        (4, whole, "low if x > low and x != 300 else x + 1"),
        (4, "x > low and x != 300", "x > low or x != 300"),
        (4, "x + 1", "x - 1"),
        (4, "x > low", "x >= low"),
        (4, "x != 300", "x == 300"),
        (4, "1", "2"),
    }


def test_the_rest_of_the_file_stays() -> None:
    sources = [mutant.source for mutant in mutants(Path("m.py"), SOURCE)]
    assert len(set(sources)) == len(sources)
    for source in sources:
        names: dict[str, object] = {}
        exec(compile(source, "m.py", "exec"), names)
        assert callable(names["clipped"])
