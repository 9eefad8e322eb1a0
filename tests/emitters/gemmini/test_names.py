"""C identifiers from whatever the nodes are called."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

import fadiff.emitters.gemmini
from fadiff.emitters.gemmini.names import Names, c_identifier, model_identifier


def test_examples() -> None:
    assert c_identifier("/layer1.0/Conv") == "layer1_0_conv"
    assert c_identifier("3x3") == "n3x3"
    assert c_identifier("while") == "while_"
    assert c_identifier("") == "unnamed"
    assert c_identifier("Größe*/ #define") == "gr_e_define"


PUBLIC = "run|set_hook|hook|tensor|layer|layers|inputs|outputs|arena|tile_buffer|weights|self_test"


def test_a_models_public_names_are_no_names_of_its_c() -> None:
    """`first_run` of a model `first`, say, would be the function that begins a run of elements."""
    emitter = Path(fadiff.emitters.gemmini.__file__).parent
    files = [*emitter.glob("runtime/*.h"), *emitter.glob("templates/*.j2"), *emitter.glob("*.py")]
    names = {
        name
        for file in files
        for name in re.findall(rf"(?<![\w}}])([a-z][a-z0-9_]*)_(?:{PUBLIC})\b", file.read_text())
    }
    assert {"first", "next", "load"} <= names
    words_of_the_printer = {
        "plan", "print", "resident", "in", "fused", "float", "loads", "same", "graph", "_", "has_transposed"
    }  # fmt: skip
    assert [n for n in sorted(names - words_of_the_printer) if model_identifier(n) == n] == []


def test_collisions_get_numbers() -> None:
    names = Names()
    assert [names.unique(n) for n in ("a/b", "a.b", "A_B")] == ["a_b", "a_b_2", "a_b_3"]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.text(max_size=80), max_size=20))
def test_always_unique_identifiers(raw: list[str]) -> None:
    names = Names()
    made = [names.unique(n) for n in raw]
    assert len(set(made)) == len(made)
    assert all(re.fullmatch(r"[a-z_][a-z0-9_]*", n) for n in made)
