"""C identifiers from whatever the nodes are called."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from emitters.gemmini.names import Names, c_identifier


def test_examples() -> None:
    assert c_identifier("/layer1.0/Conv") == "layer1_0_conv"
    assert c_identifier("3x3") == "n3x3"
    assert c_identifier("while") == "while_"
    assert c_identifier("") == "unnamed"
    assert c_identifier("Größe*/ #define") == "gr_e_define"


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
