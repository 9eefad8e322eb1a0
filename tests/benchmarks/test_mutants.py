"""Mutants are small changes that parse, each of one place, and run against what runs their statement."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import benchmarks.mutants
from benchmarks.mutants import chosen, equivalents
from benchmarks.mutants.changes import Mutant, mutant, places
from benchmarks.mutants.reach import Reach

SOURCE = """
def clipped(x, low=0):
    \"\"\"Not below.\"\"\"
    return x + 1 if x > low and x != 300 else low
"""


def _all(source: str) -> list[Mutant]:
    return [mutant(Path("m.py"), source, place) for place in places(source)]


def test_every_place_is_changed_once() -> None:
    found = {(mutant.line, mutant.before, mutant.after) for mutant in _all(SOURCE)}
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
    sources = [mutant.source for mutant in _all(SOURCE)]
    assert len(set(sources)) == len(sources)
    for source in sources:
        names: dict[str, object] = {}
        exec(compile(source, "m.py", "exec"), names)
        assert callable(names["clipped"])


def test_a_number_has_its_sign() -> None:
    assert {(one.before, one.after) for one in _all("x[-1:]; y[not x:]; z[-2]")} == {
        ("-1", "-0"),
        ("-2", "-1"),
    }


def test_a_mutant_knows_its_statement() -> None:
    source = "A = 1\nclass C:\n  def f(self, x=5):\n    if (x >\n        2):\n      return (3,\n        4)\n"
    found = {mutant.before: (mutant.function, mutant.lines) for mutant in _all(source)}
    assert found == {
        "1": ("", range(1, 2)),
        "5": ("", range(3, 4)),
        "x > 2": ("C.f", range(4, 6)),
        "2": ("C.f", range(4, 6)),
        "3": ("C.f", range(6, 8)),
        "4": ("C.f", range(6, 8)),
    }


def test_a_seed_draws_the_same_mutants_again(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(SOURCE)
    (first, possible), (again, _), (other, _) = (chosen(tmp_path, 3, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert (len(first), possible) == (3, 7)


_CHECKOUT = {
    "converter/__init__.py": "",
    "converter/m.py": "def twice(x):\n    return 2 * x\n\n\ndef thrice(x):\n    return 3 * x\n",
    "tests/test_m.py": "import pytest\nfrom converter.m import thrice, twice\n\n\n"
    "@pytest.fixture(scope='module')\ndef six():\n    return thrice(2)\n\n\n"
    "def test_twice():\n    assert twice(2) == 4\n\n\n"
    "def test_first(six):\n    assert six == 6\n\n\ndef test_second(six):\n    assert six > 2\n",
}


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two functions and their tests."""
    for name, text in _CHECKOUT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{benchmarks.mutants._ROOT}")
    monkeypatch.setattr(benchmarks.mutants, "_ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_tests_that_run_a_line_are_found_through_fixtures_and_after_edits(checkout: Path) -> None:
    pytest.importorskip("coverage")
    file = checkout / "converter" / "m.py"
    file.write_text(f"# Gone when the tests are recorded.\n{_CHECKOUT['converter/m.py']}")
    (checkout / "kept").mkdir()
    reach = Reach(checkout, checkout / "kept", [Path("tests/test_m.py")])
    file.write_text(_CHECKOUT["converter/m.py"])

    def tests(line: int) -> set[str]:
        one = Mutant(Path("converter/m.py"), "f", range(line, line + 1), line, "", "", "")
        return {test.test.split("::")[1] for test in reach.tests(one)}

    assert tests(2) == {"test_twice"}
    assert tests(6) == {"test_first", "test_second"}


def test_mutants_are_counted_by_room(
    checkout: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are killed; the verdicts are kept, and what is kept is not run again."""
    pytest.importorskip("coverage")
    run = ["converter", "--tests", "tests", "--count", "2"]
    assert benchmarks.mutants.main(run) == 0
    assert "converter, seed 0: 2 killed, 0 survived, 0 equivalent (100%; 4 mutants" in capsys.readouterr().out
    log = checkout / "build" / "mutants" / "log.jsonl"
    first, second = (json.loads(line) for line in log.read_text().splitlines())
    assert first["by"].startswith("tests/test_m.py::test_")
    log.write_text(f"{json.dumps(first)}\n{json.dumps(second | {'verdict': 'survived', 'by': ''})}\n")
    assert benchmarks.mutants.main(run) == 1
    assert "1 killed, 1 survived, 0 equivalent (50%" in capsys.readouterr().out
    function = "twice" if second["place"].endswith(":2") else "thrice"
    known = {("converter/m.py", function, second["before"], second["after"]): "for the test"}
    monkeypatch.setattr(benchmarks.mutants, "equivalents", lambda: known)
    assert benchmarks.mutants.main(run) == 0
    assert "1 killed, 0 survived, 1 equivalent (100%" in capsys.readouterr().out


def test_equivalents_are_mutants_of_today() -> None:
    """Each is a change that can be drawn: what is gone from the source goes from the list."""
    for file, function, before, after in equivalents():
        source = (benchmarks.mutants._ROOT / file).read_text()
        nodes = list(ast.walk(ast.parse(source)))
        alike = [place for place in places(source) if ast.unparse(nodes[place]) == before]
        changes = (mutant(Path(file), source, place) for place in alike)
        assert any((one.function, one.after) == (function, after) for one in changes), f"{file}: {before}"
